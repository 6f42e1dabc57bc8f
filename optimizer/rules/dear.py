"""DeAR's grouping: modules in forward order, as long as they stay below a threshold together.

Source: dear_pytorch, dear/dopt_rsag.py, ``_generate_groups_with_threshold``. Default: ``THRESHOLD`` =
25. The source computes a module's size as elements times 4 / 1024 / 1024, so that is 25 MiB with every
element counted as four bytes, whatever the dtype.
"""

from __future__ import annotations

from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting
from commsched.models.units import MIB
from commsched.optimizer.rules.common import allreduce_only, is_layer, module_of
from commsched.optimizer.rules.order import in_launch_order

THRESHOLD_BYTES = 25 * MIB
BYTES_AN_ELEMENT = 4


def dear(problem: Problem, threshold: Setting = THRESHOLD_BYTES) -> Plan:
    """Return DeAR's groups, each launched when all its gradients are ready.

    Forward order is the reverse of ready order. A module is what its parameters' names say up to the
    last dot; a name without a dot, or with a number behind the last one (``layers.3``), is a module
    by itself. It stands where its first parameter stands.
    A module joins the open group if that is empty (has no elements), or if both together stay below
    the threshold; so the threshold is a maximum that is not reached, except by one large module. Each
    fusion key has its own groups. Modules are never split.

    DeAR sends a group as a reduce-scatter in backward and an all-gather in the next forward pass; here
    it is one all-reduce in backward.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces.
    threshold
        In bytes, with every element counted as four; by default 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> names = ["d.weight", "c.weight", "b.bias", "b.weight", "a.weight"]
    >>> gradients = [Gradient(name, 4000, ready_ns=k) for k, name in enumerate(names)]
    >>> [b.names for b in dear(GradientProblem(gradients, AlphaBeta(1, 1)), 12_001).buckets]
    [('d.weight', 'c.weight'), ('b.bias', 'b.weight', 'a.weight')]
    """
    allreduce_only(problem, "DeAR's rule")
    buckets: list[list[int]] = []
    for key, chain in problem.chains.items():
        modules: dict[str, list[int]] = {}
        for position in reversed(chain):
            name = problem.names[position]
            module = name if is_layer(name.rpartition(".")[2]) else module_of(name)
            modules.setdefault(module, []).append(position)
        group: list[int] = []
        total = 0
        for members in modules.values():
            counts = (elements(problem.bytes[k], key.dtype) for k in members)
            size = BYTES_AN_ELEMENT * sum(counts)
            if total == 0 or total + size < threshold:
                group += members
                total += size
            else:
                buckets.append(group)
                group, total = list(members), size
        buckets.append(group)
    return in_launch_order(problem, buckets)
