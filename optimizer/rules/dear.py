"""DeAR's grouping: modules in forward order, as long as they stay below a threshold together.

Source: dear_pytorch, dear/dopt_rsag.py, ``_generate_groups_with_threshold``. Default: ``THRESHOLD`` =
25. The source computes a module's size as elements times 4 / 1024 / 1024, so that is 25 MiB with every
element counted as four bytes, whatever the dtype.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting, reached
from commsched.models.step import FusionKey
from commsched.models.units import MIB
from commsched.optimizer.rules.common import is_layer, module_of, reductions
from commsched.optimizer.rules.rows import Cut, Rows, Sketch, Sketcher

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
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    threshold
        In bytes, with every element counted as four; by default 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> names = ["d.weight", "c.weight", "b.bias", "b.weight", "a.weight"]
    >>> gradients = [Gradient(name, 4000, ready_ns=k) for k, name in enumerate(names)]
    >>> [b.names for b in dear(GradientProblem(gradients, AlphaBeta(1, 1)), 12_001).buckets]
    [('d.weight', 'c.weight'), ('b.bias', 'b.weight', 'a.weight')]
    """
    return dear_sketcher(problem)(threshold).plan()


def dear_sketcher(problem: Problem) -> Sketcher:
    """Return :func:`dear` from its knob to buckets."""
    ordered: list[tuple[FusionKey, list[int]]] = []
    # Of each row where its modules end, and their sizes up to there.
    ends: list[list[int]] = []
    sizes: list[list[int]] = []
    for key, modules in _modules(problem).items():
        ordered.append((key, [k for members in modules for k in members]))
        ends.append([0, *accumulate(len(members) for members in modules)])
        counts = (
            sum(elements(problem.bytes[k], key.dtype) for k in members) for members in modules
        )
        sizes.append([0, *accumulate(BYTES_AN_ELEMENT * count for count in counts)])
    rows = Rows(problem, ordered)

    def sketch(threshold: Setting) -> Sketch:
        cuts: list[Cut] = []
        for row, (places, totals) in enumerate(zip(ends, sizes, strict=True)):
            begin, modules = 0, len(places) - 1
            while begin < modules:
                # A group is empty as long as it has no elements.
                held = bisect_right(totals, totals[begin], begin + 1)
                end = reached(totals, min(held, modules) + 1, totals[begin], threshold) - 1
                cuts.append(Cut(row, places[begin], places[end]))
                begin = end
        return rows.by_last_member(cuts)

    return sketch


def largest_modules(problem: Problem) -> dict[FusionKey, int]:
    """Return for each fusion key the bytes of its largest module, which is never cut."""
    return {
        key: max(sum(problem.bytes[k] for k in members) for members in modules)
        for key, modules in _modules(problem).items()
    }


def _modules(problem: Problem) -> dict[FusionKey, list[list[int]]]:
    """Return for each fusion key its modules in forward order."""
    found: dict[FusionKey, list[list[int]]] = {}
    for key, chain in reductions(problem, "DeAR's rule").items():
        modules: dict[str, list[int]] = {}
        for position in reversed(chain):
            name = problem.names[position]
            module = name if is_layer(name.rpartition(".")[2]) else module_of(name)
            modules.setdefault(module, []).append(position)
        found[key] = list(modules.values())
    return found
