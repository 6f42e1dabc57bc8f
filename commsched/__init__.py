"""Provably best bucketing and ordering of the communication in one training step.

The five names of everyday use are :func:`read`, :func:`gradient_problem`, :func:`optimize`,
:func:`evaluate` and :func:`compare`. Importing this package loads nothing else: whatever
is needed is loaded when it is asked for, solvers and plotting libraries only when they are used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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

_LAYERS = ("models", "problems", "optimizer")  # each loads those before it


if not TYPE_CHECKING:  # type checkers would take any name for one of these

    def __getattr__(name: str) -> object:
        """Load a public name's layer when it is asked for."""
        from importlib import import_module

        if name in _LAYERS:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            for layer in _LAYERS:
                module = import_module(f"{__name__}.{layer}")
                if name in module.__all__:
                    value = globals()[name] = getattr(module, name)
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return the public names, also those that are not loaded."""
        return sorted({*globals(), *__all__, *_LAYERS})
