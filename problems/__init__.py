"""Where steps come from: problem files, builders, and readers of other programs' files."""

from commsched.problems.cost_rows import read_network, write_network
from commsched.problems.digest import problem_digest
from commsched.problems.limit_rows import limits_of_texts
from commsched.problems.network import Network, NetworkCurve
from commsched.problems.plan_file import plan_of, read_plan
from commsched.problems.problem_file import problem_to_bytes, read_problem, write_problem
from commsched.problems.readers import ReadOptions
from commsched.problems.reading import Loaded, is_recording, load, read, read_recording
from commsched.problems.recorded import (
    Check,
    ImportReport,
    RecordedGraph,
    RecordedLaunch,
    RecordedStep,
    Recording,
)
from commsched.problems.steps.builders import gradient_problem
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.experts import Experts, all_to_all_bytes, estimated_experts
from commsched.problems.steps.fsdp_step import FSDP2_PREFETCH, fsdp_step
from commsched.problems.steps.layer_models import PROFILED, estimated_profile, measured_profile
from commsched.problems.steps.layers import Layer, LayerProfile, Tensor
from commsched.problems.steps.moe_step import moe_step, moe_steps
from commsched.problems.steps.two_level import two_level

__all__ = [
    "FSDP2_PREFETCH",
    "PROFILED",
    "Check",
    "Experts",
    "ImportReport",
    "Layer",
    "LayerProfile",
    "Loaded",
    "Network",
    "NetworkCurve",
    "ReadOptions",
    "RecordedGraph",
    "RecordedLaunch",
    "RecordedStep",
    "Recording",
    "Tensor",
    "all_to_all_bytes",
    "ddp_step",
    "estimated_experts",
    "estimated_profile",
    "fsdp_step",
    "gradient_problem",
    "is_recording",
    "limits_of_texts",
    "load",
    "measured_profile",
    "moe_step",
    "moe_steps",
    "plan_of",
    "problem_digest",
    "problem_to_bytes",
    "read",
    "read_network",
    "read_plan",
    "read_problem",
    "read_recording",
    "two_level",
    "write_network",
    "write_problem",
]
