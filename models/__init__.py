"""What a step is and what it costs; no solver, no file format."""

from commsched.models.collectives import (
    KINDS,
    AllToAllLedger,
    Kind,
    all_to_all_ledger,
    bus_factor,
    sent_bytes,
)
from commsched.models.cost import AlphaBeta, BusBandwidth, CostCurve, PiecewiseLinear, StepTable
from commsched.models.errors import (
    CommschedError,
    CommschedWarning,
    CycleError,
    DeadlockError,
    ExtrapolationWarning,
    InputError,
    MissingExtraError,
    NotApplicableError,
    PlanError,
    SolverError,
)
from commsched.models.exposure import (
    Exposure,
    Reason,
    launch_exposures,
    merge_intervals,
    overlap,
)
from commsched.models.faces import (
    alltoall_route_ledger,
    communication_exposure,
    communication_time_ms,
    ring_allreduce_payload_mib,
    schedule_gradient_buckets,
)
from commsched.models.gradients import GradientProblem
from commsched.models.plan import Bucket, Chunk, Plan, close_at_or_above
from commsched.models.problem import Problem
from commsched.models.step import Collective, Compute, FusionKey, Gradient, Task
from commsched.models.timeline import Launch, Span, Timeline, evaluate

__all__ = [
    "KINDS",
    "AllToAllLedger",
    "AlphaBeta",
    "Bucket",
    "BusBandwidth",
    "Chunk",
    "Collective",
    "CommschedError",
    "CommschedWarning",
    "Compute",
    "CostCurve",
    "CycleError",
    "DeadlockError",
    "Exposure",
    "ExtrapolationWarning",
    "FusionKey",
    "Gradient",
    "GradientProblem",
    "InputError",
    "Kind",
    "Launch",
    "MissingExtraError",
    "NotApplicableError",
    "PiecewiseLinear",
    "Plan",
    "PlanError",
    "Problem",
    "Reason",
    "SolverError",
    "Span",
    "StepTable",
    "Task",
    "Timeline",
    "all_to_all_ledger",
    "alltoall_route_ledger",
    "bus_factor",
    "close_at_or_above",
    "communication_exposure",
    "communication_time_ms",
    "evaluate",
    "launch_exposures",
    "merge_intervals",
    "overlap",
    "ring_allreduce_payload_mib",
    "schedule_gradient_buckets",
    "sent_bytes",
]
