"""FSDP's grouping: one bucket for each layer, as with one ``fully_shard`` call for each layer.

Source: torch/distributed/fsdp, ``fully_shard`` (one all-gather and one reduce-scatter a call). Which
modules are units is the user's choice, by habit the layers.
"""

from __future__ import annotations

from itertools import groupby

from commsched.models import Plan, Problem
from commsched.optimizer.rules.common import is_layer, kinds_only, module_of
from commsched.optimizer.rules.order import in_launch_order


def unit_of(name: str) -> str:
    """Return the layer of a parameter by its name.

    That is the name up to the first component that is a number, or its module's path if none is; a
    name without a dot is a layer by itself. So ``layers.3`` is a layer and no parameter of
    ``layers``; that the entries of a ``ParameterList`` are named alike cannot be seen.

    Examples
    --------
    >>> [unit_of(name) for name in ("layers.3.attn.q.weight", "layers.3", "norm.weight", "scale")]
    ['layers.3', 'layers.3', 'norm', 'scale']
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        if is_layer(part):
            return ".".join(parts[: place + 1])
    return module_of(name)


def fsdp_units(problem: Problem) -> Plan:
    """Return the plan with one bucket for each layer, see :func:`unit_of`.

    Only what follows each other in ready order is fused: a layer that comes back later gets another
    bucket. Buckets are launched as they become complete. FSDP's root unit, which holds what is in no
    other unit, is not formed: each module outside the layers is a unit of its own.

    It has no parameter.

    Parameters
    ----------
    problem
        A step whose collectives are all-reduces, reduce-scatters or all-gathers.

    Raises
    ------
    NotApplicableError
        If the step has other collectives.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> names = ["head.weight", "h.1.mlp.w", "h.1.attn.w", "h.0.mlp.w", "h.0.attn.w"]
    >>> gradients = [Gradient(name, 8, ready_ns=k) for k, name in enumerate(names)]
    >>> [b.names for b in fsdp_units(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('head.weight',), ('h.1.mlp.w', 'h.1.attn.w'), ('h.0.mlp.w', 'h.0.attn.w')]
    """
    kinds = ("allreduce", "reduce_scatter", "all_gather")
    kinds_only(problem, "FSDP's rule", kinds, "all-reduces, reduce-scatters and all-gathers")
    units = {position: unit_of(name) for position, name in enumerate(problem.names)}
    buckets = [
        list(members)
        for chain in problem.chains.values()
        for _, members in groupby(chain, key=units.__getitem__)
    ]
    return in_launch_order(problem, buckets)
