"""Problems made in code: what a parallelism planner calls."""

from __future__ import annotations

from collections.abc import Sequence

from commsched.models import CostCurve, Gradient, GradientProblem


def gradient_problem(
    gradients: Sequence[Gradient],
    cost: CostCurve,
    name: str = "",
    *,
    backward_end_ns: int | None = None,
) -> GradientProblem:
    """Return the problem of a backward pass whose gradients must be all-reduced.

    Parameters
    ----------
    gradients
        At least one, in any order; equal ready times keep this order.
    cost
        What an all-reduce costs.
    name
        A title for people.
    backward_end_ns
        When backward ends, in nanoseconds, if later than the last gradient.

    Raises
    ------
    InputError
        If there is no gradient, a name is used twice, or backward ends before the last gradient.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> problem = gradient_problem([Gradient("fc", 4096, ready_ns=1000)], AlphaBeta(8, 50))
    >>> problem.compute_ns
    1000
    """
    return GradientProblem(gradients, cost, name=name, backward_end_ns=backward_end_ns)
