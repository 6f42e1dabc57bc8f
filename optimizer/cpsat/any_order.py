"""CP-SAT, scope any: every partition within a fusion key, every order.

A bucket is represented by its member that comes first in ready order: ``carried[b, p]`` says that the
collective in place p travels in the bucket of place b <= p. So each partition has one
representation. Which bytes a bucket carries is a decision, hence also its duration: an integer that
is at least the cost curve's piece for that size, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ortools.sat.python import cp_model

from commsched.models import FusionKey, Plan, Problem
from commsched.models.cost import Piece
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.base import (
    StepModel,
    chain_label,
    longest_ns,
)
from commsched.optimizer.cpsat.fifo import Slot, add_fifo, check_fifo, ready_fixed, unheld
from commsched.optimizer.cpsat.limits import add_limits, counts_ready, ready_var
from commsched.optimizer.cpsat.pricing import safe_piece
from commsched.optimizer.grouping import bits, bucket_bytes, conflicts
from commsched.optimizer.model_size import MAX_PAIRS, pairs, small_enough


class _Chain:
    """The variables of one fusion key."""

    def __init__(
        self,
        step: StepModel,
        key: FusionKey,
        chain: Sequence[int],
        *,
        no_longer: bool,
    ) -> None:
        problem, cp = step.problem, step.cp
        self.step, self.no_longer = step, no_longer
        self.names = [problem.names[k] for k in chain]
        self.place = {name: p for p, name in enumerate(self.names)}
        self.cost = problem.cost(key)
        sizes = [problem.bytes[k] for k in chain]
        self.unit = math.gcd(*sizes) or 1
        self.sizes = [size // self.unit for size in sizes]
        apart = conflicts(problem, chain)
        count = len(chain)
        self.carried = {
            (b, p): cp.new_bool_var(f"{chain_label(key, p)} in bucket of {b}")
            for b in range(count)
            for p in range(b, count)
            if not apart[b] >> p & 1
        }
        self.leads = [b for b in range(count) if (b, b) in self.carried]
        self.leads_of: list[list[int]] = [[] for _ in range(count)]
        self.members = [0] * count
        for b, p in self.carried:
            self.leads_of[p].append(b)
            self.members[b] |= 1 << p
        for b in self.leads:
            for p in bits(self.members[b]):
                for q in bits(apart[p] & self.members[b] & ((1 << p) - 1)):
                    cp.add_at_most_one(self.carried[b, p], self.carried[b, q])
        self.start = [step.time_var(step.head[n], f"start {n}") for n in self.names]
        self.end = [step.time_var(step.head[n], f"end {n}") for n in self.names]
        self.duration = [cp.new_int_var(0, step.horizon_ns, f"duration {n}") for n in self.names]
        self.exact = True
        self.pieces_used: dict[tuple[int, int], cp_model.IntVar] = {}
        self.intervals = [
            cp.new_optional_interval_var(
                self.start[b],
                self.duration[b] * step.scale + step.tick,
                self.end[b],
                self.carried[b, b],
                f"launch {chain_label(key, b)}",
            )
            for b in self.leads
        ]

    def constrain(self) -> None:
        """Ensure that buckets partition the chain, are priced right, and start when ready."""
        step, cp, carried = self.step, self.step.cp, self.carried
        count = len(self.names)
        for p in range(count):
            cp.add_exactly_one(carried[b, p] for b in self.leads_of[p])
        for (b, p), present in carried.items():
            if p > b:
                cp.add_implication(present, carried[b, b])
            for before in step.problem.graph.pred[self.names[p]]:
                step.after(self.start[b], before, when=present)
            tail = step.tail[self.names[p]] * step.scale
            cp.add(step.makespan >= self.end[b] + tail).only_enforce_if(present)
        for b in self.leads:
            total = sum(self.sizes[p] * carried[b, p] for p in range(b, count) if (b, p) in carried)
            self._price(b, total)

    def _price(self, b: int, total: Any) -> None:
        """Ensure that bucket b lasts at least as long as its bytes cost, rounded up.

        And no longer, where something is counted from a ready time on: the evaluator's launches do
        not last longer to put off what waits for them.
        """
        cp, used = self.step.cp, self.carried[b, b]
        largest = sum(self.sizes[b:])

        def slack(piece: Piece) -> int:
            # What rounding up adds at most, also where the piece itself was rounded down.
            return piece.scale * (1 if self.exact else 2) - 1

        least, most = bucket_bytes(self.step.problem)
        if least:
            cp.add(total >= -(-least // self.unit) * used)
        if most < largest * self.unit:
            cp.add(total <= most // self.unit)
        safe = [
            safe_piece(piece, self.unit, largest, self.step.horizon_ns)
            for piece in self.cost.pieces
        ]
        pieces = [piece for piece, _ in safe]
        self.exact = self.exact and all(exact for _, exact in safe)
        if len(pieces) == 1:
            piece = pieces[0]
            price = piece.intercept * used + piece.slope * total
            cp.add(piece.scale * self.duration[b] >= price)
            if self.no_longer:
                cp.add(piece.scale * self.duration[b] <= price + slack(piece))
            return
        starts = [-(-piece.first_bytes // self.unit) for piece in self.cost.pieces]
        literals = []
        for k, piece in enumerate(pieces):
            if starts[k] > largest:
                break
            literal = cp.new_bool_var("")
            self.pieces_used[b, k] = literal
            literals.append(literal)
            cp.add(total >= starts[k]).only_enforce_if(literal)
            if k + 1 < len(pieces):
                cp.add(total <= starts[k + 1] - 1).only_enforce_if(literal)
            price = piece.intercept + piece.slope * total
            cp.add(piece.scale * self.duration[b] >= price).only_enforce_if(literal)
            if self.no_longer:
                longest = price + slack(piece)
                cp.add(piece.scale * self.duration[b] <= longest).only_enforce_if(literal)
        cp.add(sum(literals) == used)

    def hint(self, buckets: Sequence[Sequence[int]], times: dict[str, tuple[int, int]]) -> None:
        """Propose buckets given as places, with their times."""
        step = self.step
        bucket_of = {p: min(places) for places in buckets for p in places}
        size_of = {min(places): sum(self.sizes[p] for p in places) for places in buckets}
        for (b, p), present in self.carried.items():
            step.hint(present, int(bucket_of[p] == b))
        for b, name in enumerate(self.names):
            used = b in size_of
            start, end = times[name]
            step.hint(self.start[b], start)
            step.hint(self.end[b], end)
            step.hint(self.duration[b], self.cost.ns(size_of[b] * self.unit) if used else 0)
            for k in range(len(self.cost.pieces)):
                if (b, k) in self.pieces_used:
                    piece = self.cost.piece(size_of[b] * self.unit) if used else None
                    step.hint(self.pieces_used[b, k], int(piece is self.cost.pieces[k]))


class AnyOrderModel:
    """The model of scope ``any``.

    Parameters
    ----------
    problem
        The step.
    known
        Any valid plan: the model's hint, and its makespan is the horizon. None if no plan is
        known that keeps the limits.
    lower_ns
        A proved lower bound on the makespan.
    fifo
        Whether a channel runs its launches in the order in which they are ready.

    Raises
    ------
    NotApplicableError
        If there are too many collectives, or a cost's coefficients are too large.
    """

    def __init__(
        self,
        problem: Problem,
        known: Plan | None,
        lower_ns: int,
        *,
        fifo: bool = False,
    ) -> None:
        if fifo and known is not None:
            known = unheld(problem, known)
        if not small_enough(problem):
            raise NotApplicableError(
                f"cpsat: {pairs(problem)} pairs of bucket and member are more than {MAX_PAIRS}"
            )
        horizon_ns = longest_ns(problem) if known is None else play(problem, known).makespan_ns
        self.step = StepModel(problem, horizon_ns, lower_ns)
        self.fifo = fifo
        # The place that stands for a bucket is that of the member that is ready last where that
        # says when the bucket is ready, and that of the first one elsewhere.
        turn = -1 if fifo and ready_fixed(problem) else 1
        at_once = counts_ready(problem) or (fifo and not ready_fixed(problem))
        self.chains = {
            key: _Chain(self.step, key, chain[::turn], no_longer=at_once)
            for key, chain in problem.chains.items()
        }
        if fifo:
            check_fifo(self)
        self._carried: dict[tuple[str, str], Any] = {}
        for name in problem.names:
            if problem.graph.succ[name]:
                self.step.ends[name] = self.done(name)
        for variables in self.chains.values():
            variables.constrain()
        self.step.add_dependencies(at_once=at_once)
        self.step.one_at_a_time({key: c.intervals for key, c in self.chains.items()})
        self._ready: dict[tuple[FusionKey, int], Any] = {}
        self._rank = {problem.names[k]: rank for rank, k in enumerate(problem.ready_order)}
        add_limits(self)
        if fifo:
            add_fifo(self)
        if known is not None:
            self._hint(known)

    def _hint(self, known: Plan) -> None:
        times = self.step.ticks(known)
        for variables in self.chains.values():
            place = {name: p for p, name in enumerate(variables.names)}
            variables.hint(
                [
                    [place[name] for name in bucket.names]
                    for bucket in known.buckets
                    if bucket.names[0] in place
                ],
                times,
            )
        for (what, name), variable in self._carried.items():
            self.step.hint(variable, times[name][0 if what == "start" else 1])
        self.step.hint_compute({name: end for name, (_, end) in times.items()})
        self.step.hint(self.step.makespan, max(end for _, end in times.values()))

    @property
    def exact(self) -> bool:
        """Whether no launch's duration is rounded down by up to a nanosecond."""
        return all(variables.exact for variables in self.chains.values())

    def launch_count(self) -> Any:
        """Return the number of launches as a linear expression."""
        return sum(
            present for c in self.chains.values() for (b, p), present in c.carried.items() if b == p
        )

    def starts(self) -> Sequence[Any]:
        """Return the start of every launch (of unused ones, too, which costs nothing)."""
        return [start for c in self.chains.values() for start in c.start]

    def _of(self, name: str) -> tuple[_Chain, int]:
        problem = self.step.problem
        chain = self.chains[problem.keys[problem.index[name]]]
        return chain, chain.place[name]

    def _own(self, what: str, name: str, of_bucket: Sequence[Any]) -> Any:
        """Return a time of the bucket that carries a collective, whichever that is."""
        if (what, name) not in self._carried:
            chain, p = self._of(name)
            time = self.step.time_var(self.step.head[name], f"{what} {name}")
            for b in chain.leads_of[p]:
                self.step.cp.add(time == of_bucket[b]).only_enforce_if(chain.carried[b, p])
            self._carried[what, name] = time
        return self._carried[what, name]

    def start_of(self, name: str) -> Any:
        """Return the start of the launch that carries a collective."""
        return self._own("start", name, self._of(name)[0].start)

    def done(self, name: str) -> Any:
        """Return the end of the launch that carries a collective."""
        return self._own("end", name, self._of(name)[0].end)

    def partners(self, name: str) -> Sequence[str]:
        """Return those later in its fusion key that may share a bucket with a collective."""
        chain, p = self._of(name)
        found = {q for b in chain.leads_of[p] for q in bits(chain.members[b]) if q > p}
        return [chain.names[q] for q in sorted(found)]

    def same(self, first: str, second: str) -> Any:
        """Return 1 if two collectives share a bucket, else 0, as a linear expression."""
        chain, p = self._of(first)
        _, q = self._of(second)
        p, q = min(p, q), max(p, q)
        both = []
        for b in chain.leads_of[p]:
            if (b, q) in chain.carried:
                both.append(self.step.cp.new_bool_var(f"{first} and {second} in bucket of {b}"))
                pair = [chain.carried[b, p], chain.carried[b, q]]
                self.step.cp.add_min_equality(both[-1], pair)
        return sum(both)

    def _bucket_ready(self, key: FusionKey, b: int) -> Any:
        """Return when bucket b is ready: exactly, as the latest of what it carries."""
        if (key, b) not in self._ready:
            step, chain = self.step, self.chains[key]
            carried = [p for p in range(b, len(chain.names)) if (b, p) in chain.carried]
            own = {p: ready_var(step, chain.names[p]) for p in carried}
            if all(isinstance(ready, int) and ready <= own[b] for ready in own.values()):
                self._ready[key, b] = own[b]
                return own[b]
            latest = []
            for p, time in own.items():
                counted = step.time_var(0, "")
                step.cp.add(counted == time).only_enforce_if(chain.carried[b, p])
                step.cp.add(counted == 0).only_enforce_if(~chain.carried[b, p])
                latest.append(counted)
            ready = step.time_var(0, f"bucket {chain_label(key, b)} ready")
            step.cp.add_max_equality(ready, latest)
            self._ready[key, b] = ready
        return self._ready[key, b]

    def bucket_ready(self, name: str) -> Any:
        """Return when the bucket of a collective is ready."""
        problem = self.step.problem
        key = problem.keys[problem.index[name]]
        chain, p = self._of(name)
        time = self.step.time_var(0, f"bucket of {name} ready")
        for b in chain.leads_of[p]:
            ready = self._bucket_ready(key, b)
            self.step.cp.add(time == ready).only_enforce_if(chain.carried[b, p])
        return time

    def leads(self) -> list[FusionKey]:
        """Return the fusion key of every possible launch."""
        return [key for key, c in self.chains.items() for _ in c.leads]

    def slots(self) -> list[Slot]:
        """Return every possible launch."""
        return [
            Slot(key, c.carried[b, b], self._bucket_ready(key, b), c.start[b], c.end[b])
            for key, c in self.chains.items()
            for b in c.leads
        ]

    def flights(self) -> Sequence[tuple[Any, Any, Any]]:
        """Return (ready, end, present) of each possible launch."""
        return [
            (self._bucket_ready(key, b), chain.end[b], chain.carried[b, b])
            for key, chain in self.chains.items()
            for b in chain.leads
        ]

    def launches(self, solver: cp_model.CpSolver) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return a solution's launches as (start, end, names), in ticks."""
        found = []
        for c in self.chains.values():
            for b in c.leads:
                if solver.value(c.carried[b, b]):
                    names = [
                        name
                        for p, name in enumerate(c.names)
                        if (b, p) in c.carried and solver.value(c.carried[b, p])
                    ]
                    names.sort(key=self._rank.__getitem__)
                    found.append((solver.value(c.start[b]), solver.value(c.end[b]), tuple(names)))
        return found
