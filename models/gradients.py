"""The simplest problem: gradients with fixed ready times, one all-reduce group, one channel.

It is a :class:`~commsched.models.problem.Problem` like any other, but its graph is only built
when somebody looks at it, so that a planner can make and solve thousands of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from commsched.models.collectives import Kind
from commsched.models.cost import CostCurve
from commsched.models.errors import InputError
from commsched.models.given import items_of
from commsched.models.limits import Limit
from commsched.models.problem import Problem, check_total, checked_title
from commsched.models.step import Collective, Compute, FusionKey, Gradient, Task
from commsched.models.units import check_ns

GROUP = "dp"
KIND: Kind = "allreduce"


class GradientProblem(Problem):
    """A backward pass whose gradients must be all-reduced.

    Parameters
    ----------
    gradients
        At least one, each with a name of its own, in any order.
    cost
        What an all-reduce costs.
    name
        A title for people.
    backward_end_ns
        When backward ends, in nanoseconds; by default when the last gradient is ready.
    limits
        What every plan must respect.

    Raises
    ------
    InputError
        If there is no gradient, a name is used twice, a limit names an unknown gradient, or
        ``backward_end_ns`` lies before the last ready time.
    """

    def __init__(
        self,
        gradients: Sequence[Gradient],
        cost: CostCurve,
        *,
        name: str = "",
        backward_end_ns: int | None = None,
        limits: Iterable[Limit] = (),
    ) -> None:
        self.name = checked_title(name)
        self.gradients: tuple[Gradient, ...] = items_of(gradients, "gradients", Gradient)
        if not self.gradients:
            raise InputError("the problem has no gradient: there is nothing to plan")
        self.names = [gradient.name for gradient in self.gradients]
        if len(set(self.names)) != len(self.names):
            twice = Counter(self.names).most_common(1)[0][0]
            raise InputError(f"gradient {twice!r}: the name is used twice")
        self.bytes = [gradient.bytes for gradient in self.gradients]
        self.ready_ns = [gradient.ready_ns for gradient in self.gradients]
        last = max(self.ready_ns)
        self.backward_end_ns = last
        if backward_end_ns is not None:
            self.backward_end_ns = check_ns(backward_end_ns, "backward_end_ns")
            if backward_end_ns < last:
                raise InputError(
                    f"backward_end_ns: {backward_end_ns} lies before the last gradient, "
                    f"which is ready at {last}"
                )
        check_total(cost, self.bytes, "all-reduce")
        self.costs = {(GROUP, KIND): cost}
        self.channels = {GROUP: GROUP}
        self.limits = self._checked_limits(limits) if limits != () else ()

    @cached_property
    def tasks(self) -> tuple[Task, ...]:  # type: ignore[override]
        """Backward cut at each ready time, and an all-reduce after each piece."""
        taken = set(self.names)
        tasks: list[Task] = []
        piece_of = [""] * len(self.names)
        now = 0
        for position in self.ready_order:
            piece = _free_name(f"backward of {self.names[position]}", taken)
            piece_of[position] = piece
            tasks.append(Compute(piece, self.ready_ns[position] - now, stream="backward"))
            now = self.ready_ns[position]
        if self.backward_end_ns > now:
            rest = _free_name("end of backward", taken)
            tasks.append(Compute(rest, self.backward_end_ns - now, stream="backward"))
        tasks += [
            Collective(g.name, g.bytes, KIND, GROUP, g.dtype, (piece_of[k],), g.device, g.sparse)
            for k, g in enumerate(self.gradients)
        ]
        return tuple(tasks)

    def with_limits(self, limits: Iterable[Limit]) -> GradientProblem:
        """Return the same gradients under other limits.

        Raises
        ------
        InputError
            If a limit names an unknown gradient or is given twice.
        """
        (cost,) = self.costs.values()
        return GradientProblem(
            self.gradients or (),
            cost,
            name=self.name,
            backward_end_ns=self.backward_end_ns,
            limits=limits,
        )

    @property
    def compute_ns(self) -> int:
        """When backward ends, in nanoseconds."""
        return self.backward_end_ns

    @cached_property
    def keys(self) -> list[FusionKey]:
        """The fusion key of each gradient's all-reduce."""
        key = {
            (dtype, device): FusionKey(KIND, GROUP, dtype, device)
            for dtype, device in {(g.dtype, g.device) for g in self.gradients}
        }
        return [
            FusionKey(KIND, GROUP, g.dtype, g.device, g.name)
            if g.sparse
            else key[g.dtype, g.device]
            for g in self.gradients
        ]

    @property
    def movable(self) -> bool:
        """No: backward is one chain of fixed compute (and looking would build every task)."""
        return False

    @cached_property
    def waiting(self) -> frozenset[str]:
        """Nothing waits for a collective here."""
        return frozenset()


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name
