"""What several rules need: which steps they speak of, and modules by name."""

from __future__ import annotations

from collections.abc import Collection

from commsched.models import Problem
from commsched.models.errors import NotApplicableError
from commsched.models.step import FusionKey


def kinds_only(problem: Problem, who: str, kinds: Collection[str], what: str) -> None:
    """Check that a step has no other collectives than those that a rule buckets.

    Parameters
    ----------
    problem
        The step.
    who
        The rule, for the message.
    kinds
        The kinds that it buckets.
    what
        These kinds for people.

    Raises
    ------
    NotApplicableError
        If it has others.
    """
    others = sorted({key.kind for key in problem.chains} - set(kinds))
    if others:
        raise NotApplicableError(f"{who} buckets {what}; the step has {', '.join(others)}")


def reductions(
    problem: Problem, who: str, kinds: Collection[str] = ("allreduce",), what: str = "all-reduces"
) -> dict[FusionKey, list[int]]:
    """Return the chains of the kinds that a rule of data-parallel training buckets.

    Whatever else the step sends (the all-to-alls of experts, the gathers of sharded parameters) goes
    by itself, in ready order: the framework that makes the buckets does not see it.

    Parameters
    ----------
    problem
        The step.
    who
        The rule, for the message.
    kinds
        The kinds that it buckets.
    what
        These kinds for people.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce, and others than these kinds.
    """
    present = {key.kind for key in problem.chains}
    if "allreduce" not in present:
        kinds_only(problem, who, kinds, what)
    return {key: chain for key, chain in problem.chains.items() if key.kind in kinds}


def module_of(name: str) -> str:
    """Return the module of a parameter: its name up to the last dot, or all of it without one.

    Examples
    --------
    >>> module_of("layers.3.attn.q.weight"), module_of("scale")
    ('layers.3.attn.q', 'scale')
    """
    return name.rpartition(".")[0] or name


def is_layer(part: str) -> bool:
    """Return whether a component of a name is the number of a layer, with or without a note.

    Steps that are built from layers name their collectives after them: ``layers.3``,
    ``gather layers.3 again``.

    Examples
    --------
    >>> is_layer("3"), is_layer("3 again"), is_layer("weight"), is_layer("")
    (True, True, False, False)
    """
    return part.partition(" ")[0].isdecimal()
