"""What several rules need: which steps they speak of, and modules by name."""

from __future__ import annotations

from collections.abc import Collection

from commsched.models import Problem
from commsched.models.errors import NotApplicableError


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


def allreduce_only(problem: Problem, who: str) -> None:
    """Check that all collectives of a step are all-reduces.

    Raises
    ------
    NotApplicableError
        If there are others.
    """
    kinds_only(problem, who, ("allreduce",), "all-reduces")


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
