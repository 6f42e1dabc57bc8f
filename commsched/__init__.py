"""Provably best bucketing and ordering of the communication in one training step.

The five names of everyday use are :func:`read`, :func:`gradient_problem`, :func:`optimize`,
:func:`evaluate` and :func:`compare`. Importing this package loads neither a solver nor a plotting
library; they are loaded when they are needed.
"""

from commsched.models import (
    AlphaBeta,
    Bucket,
    BusBandwidth,
    Collective,
    CommschedError,
    Compute,
    CostCurve,
    Gradient,
    InputError,
    PiecewiseLinear,
    Plan,
    Problem,
    StepTable,
    Timeline,
    evaluate,
)
from commsched.optimizer import (
    Comparison,
    Result,
    Status,
    compare,
    optimize,
    optimize_variants,
    rule,
    tune,
)
from commsched.problems import (
    Layer,
    LayerProfile,
    ddp_step,
    fsdp_step,
    gradient_problem,
    moe_step,
    moe_steps,
    read,
    two_level,
    write_problem,
)

__version__ = "0.1.0"

__all__ = [
    "AlphaBeta",
    "Bucket",
    "BusBandwidth",
    "Collective",
    "CommschedError",
    "Comparison",
    "Compute",
    "CostCurve",
    "Gradient",
    "InputError",
    "Layer",
    "LayerProfile",
    "PiecewiseLinear",
    "Plan",
    "Problem",
    "Result",
    "Status",
    "StepTable",
    "Timeline",
    "compare",
    "ddp_step",
    "evaluate",
    "fsdp_step",
    "gradient_problem",
    "moe_step",
    "moe_steps",
    "optimize",
    "optimize_variants",
    "read",
    "rule",
    "tune",
    "two_level",
    "write_problem",
]
