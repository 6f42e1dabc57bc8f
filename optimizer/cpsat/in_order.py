"""CP-SAT, scope in-order: one optional interval of fixed size for each candidate bucket.

A candidate is a pair (i, j) of places in a fusion key's ready order. Its duration is a constant that
is computed outside the model, so any cost curve is exact. Each place has the start and end of the
launch that carries it; the places of one launch share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ortools.sat.python import cp_model

from commsched.models import FusionKey, Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.base import (
    StepModel,
    chain_label,
    longest_ns,
)
from commsched.optimizer.cpsat.limits import add_limits, counts_ready, ready_var
from commsched.optimizer.grouping import bucket_bytes, conflicts
from commsched.optimizer.model_size import MAX_PAIRS, pairs, small_enough


class _Chain:
    """The variables of one fusion key."""

    def __init__(
        self,
        step: StepModel,
        key: FusionKey,
        chain: Sequence[int],
    ) -> None:
        problem, cp = step.problem, step.cp
        count = len(chain)
        self.names = [problem.names[k] for k in chain]
        self.start = [
            step.time_var(step.head[name], f"start {chain_label(key, p)}")
            for p, name in enumerate(self.names)
        ]
        self.end = [
            step.time_var(step.head[name], f"end {chain_label(key, p)}")
            for p, name in enumerate(self.names)
        ]
        sent = [0, *accumulate(problem.bytes[k] for k in chain)]
        self.place = {name: p for p, name in enumerate(self.names)}
        apart = conflicts(problem, chain)
        least, most = bucket_bytes(problem)
        cost = problem.cost(key)
        self.candidate: dict[tuple[int, int], cp_model.IntVar] = {}
        self.length: dict[tuple[int, int], int] = {}
        self.intervals = []
        # The last place before it with which a place cannot share.
        waited_for = [(apart[q] & ((1 << q) - 1)).bit_length() - 1 for q in range(count)]
        for i in range(count):
            ready_ns = tail_ns = 0
            for j in range(i + 1, count + 1):
                if waited_for[j - 1] >= i:
                    break
                name = self.names[j - 1]
                ready_ns = max(ready_ns, step.head[name])
                tail_ns = max(tail_ns, step.tail[name])
                size = sent[j] - sent[i]
                if size > most:
                    break
                if size < least:
                    continue
                if ready_ns + cost.ns(size) + tail_ns > step.horizon_ns:
                    break  # no plan that is as good as the known one has such a launch
                present = cp.new_bool_var(f"bucket {chain_label(key, i)}..{j}")
                self.candidate[i, j] = present
                self.length[i, j] = step.length(cost.ns(size))
                self.intervals.append(
                    cp.new_optional_fixed_size_interval_var(
                        self.start[i], self.length[i, j], present, f"{chain_label(key, i)}..{j}"
                    )
                )
        self.over: list[list[tuple[int, cp_model.IntVar]]] = [[] for _ in range(count)]
        for (i, j), present in self.candidate.items():
            for p in range(i, j):
                self.over[p].append((j, present))
        self.begins: list[list[int]] = [[] for _ in range(count)]
        self.finishes: list[list[int]] = [[] for _ in range(count)]
        for i, j in self.candidate:
            self.begins[i].append(j)
            self.finishes[j - 1].append(i)

    def constrain(self, step: StepModel) -> None:
        """Ensure that the buckets partition the chain in order, when ready, one after another.

        A bucket begins at a place if and only if one ends just before it: seen as a path through
        the places, that takes far fewer terms than counting the buckets over every place.
        """
        cp = step.cp
        count = len(self.names)
        cut = [cp.new_bool_var("") for _ in range(count)]
        self.cut = cut
        cp.add(cut[0] == 1)
        for p in range(count):
            cp.add_exactly_one([*(self.candidate[p, j] for j in self.begins[p]), ~cut[p]])
            ending = [self.candidate[i, p + 1] for i in self.finishes[p]]
            if p + 1 < count:
                cp.add_exactly_one([*ending, ~cut[p + 1]])
            else:
                cp.add_exactly_one(ending)
        for p in range(1, count):
            cp.add(self.start[p] == self.start[p - 1]).only_enforce_if(~cut[p])
            cp.add(self.end[p] == self.end[p - 1]).only_enforce_if(~cut[p])
            cp.add(self.start[p] >= self.end[p - 1]).only_enforce_if(cut[p])
        for (i, j), present in self.candidate.items():
            cp.add(self.end[i] == self.start[i] + self.length[i, j]).only_enforce_if(present)
        carried: Any = 0
        for p in range(count - 1, -1, -1):
            name = self.names[p]
            for before in step.problem.graph.pred[name]:
                step.after(self.start[p], before)
            cp.add(step.makespan >= self.end[p] + step.tail[name] * step.scale)
            # What the LP sees: launches of this key that begin at p or later run after start[p].
            begun = [(p, j) for j in self.begins[p]]
            carried += sum(self.length[b] * self.candidate[b] for b in begun)
            cp.add(step.makespan >= self.start[p] + carried)

    def bucket_ready(self, step: StepModel) -> list[Any]:
        """Return for each place when the bucket is ready that carries it.

        Going along the chain the latest ready time of the bucket so far is kept; going back, all
        places of a bucket get that of its last one.
        """
        cp, count = step.cp, len(self.names)
        so_far: list[Any] = []
        for p, name in enumerate(self.names):
            own = ready_var(step, name)
            if p == 0:
                so_far.append(own)
                continue
            carried = step.time_var(0, f"so far {name}")
            cp.add(carried == so_far[-1]).only_enforce_if(~self.cut[p])
            cp.add(carried == 0).only_enforce_if(self.cut[p])
            latest = step.time_var(0, f"latest {name}")
            cp.add_max_equality(latest, [own, carried])
            so_far.append(latest)
        ready: list[Any] = [None] * count
        for p in range(count - 1, -1, -1):
            if p == count - 1:
                ready[p] = so_far[p]
                continue
            ready[p] = step.time_var(0, f"bucket of {self.names[p]} ready")
            cp.add(ready[p] == so_far[p]).only_enforce_if(self.cut[p + 1])
            cp.add(ready[p] == ready[p + 1]).only_enforce_if(~self.cut[p + 1])
        return ready


class InOrderModel:
    """The model of scope ``in-order``.

    Parameters
    ----------
    problem
        The step.
    known
        A plan of this scope: the model's hint, and its makespan is the horizon. None if no plan
        is known that keeps the limits.
    lower_ns
        A proved lower bound on the makespan.

    Raises
    ------
    NotApplicableError
        If there are too many candidate buckets.
    """

    def __init__(
        self,
        problem: Problem,
        known: Plan | None,
        lower_ns: int,
    ) -> None:
        if not small_enough(problem):
            raise NotApplicableError(
                f"cpsat: {pairs(problem)} candidate buckets are more than {MAX_PAIRS}"
            )
        horizon_ns = longest_ns(problem) if known is None else play(problem, known).makespan_ns
        self.step = StepModel(problem, horizon_ns, lower_ns)
        self.chains = {key: _Chain(self.step, key, c) for key, c in problem.chains.items()}
        for variables in self.chains.values():
            for name, end in zip(variables.names, variables.end, strict=True):
                self.step.ends[name] = end
        for variables in self.chains.values():
            variables.constrain(self.step)
        self.step.add_dependencies(at_once=counts_ready(problem))
        self.step.one_at_a_time({key: c.intervals for key, c in self.chains.items()})
        self._ready: dict[str, Any] = {}
        add_limits(self)
        if known is not None:
            self._hint(known)

    def _hint(self, known: Plan) -> None:
        step = self.step
        times = step.ticks(known)
        bucket_of = {name: b.names for b in known.buckets for name in b.names}
        for variables in self.chains.values():
            place = {name: p for p, name in enumerate(variables.names)}
            chosen = {
                (min(places), max(places) + 1)
                for names in {bucket_of[name] for name in variables.names}
                for places in [[place[name] for name in names]]
            }
            begins = {i for i, _ in chosen}
            for candidate, present in variables.candidate.items():
                step.hint(present, int(candidate in chosen))
            for p, name in enumerate(variables.names):
                step.hint(variables.cut[p], int(p in begins))
                step.hint(variables.start[p], times[name][0])
                step.hint(variables.end[p], times[name][1])
        step.hint_compute({name: end for name, (_, end) in times.items()})
        step.hint(step.makespan, max(end for _, end in times.values()))

    fifo = False

    @property
    def exact(self) -> bool:
        """Always: every duration is a constant."""
        return True

    def launch_count(self) -> Any:
        """Return the number of launches as a linear expression."""
        return sum(present for c in self.chains.values() for present in c.candidate.values())

    def starts(self) -> Sequence[Any]:
        """Return the start of the launch of every collective."""
        return [start for c in self.chains.values() for start in c.start]

    def _of(self, name: str) -> tuple[_Chain, int]:
        problem = self.step.problem
        chain = self.chains[problem.keys[problem.index[name]]]
        return chain, chain.place[name]

    def start_of(self, name: str) -> Any:
        """Return the start of the launch that carries a collective."""
        chain, p = self._of(name)
        return chain.start[p]

    def done(self, name: str) -> Any:
        """Return the end of the launch that carries a collective."""
        chain, p = self._of(name)
        return chain.end[p]

    def partners(self, name: str) -> Sequence[str]:
        """Return those later in its fusion key that may share a bucket with a collective."""
        chain, p = self._of(name)
        return chain.names[p + 1 : max((j for j, _ in chain.over[p]), default=0)]

    def same(self, first: str, second: str) -> Any:
        """Return 1 if two collectives share a bucket, else 0, as a linear expression."""
        chain, p = self._of(first)
        _, q = self._of(second)
        p, q = min(p, q), max(p, q)
        return sum(present for j, present in chain.over[p] if q < j)

    def bucket_ready(self, name: str) -> Any:
        """Return when the bucket of a collective is ready."""
        if not self._ready:
            for chain in self.chains.values():
                found = chain.bucket_ready(self.step)
                self._ready.update(zip(chain.names, found, strict=True))
        return self._ready[name]

    def flights(self) -> Sequence[tuple[Any, Any, Any]]:
        """Return (ready, end, present) of each possible launch."""
        return [
            (self.bucket_ready(name), chain.end[p], chain.cut[p])
            for chain in self.chains.values()
            for p, name in enumerate(chain.names)
        ]

    def launches(self, solver: cp_model.CpSolver) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return a solution's launches as (start, end, names), in ticks."""
        return [
            (solver.value(c.start[i]), solver.value(c.end[i]), tuple(c.names[i:j]))
            for c in self.chains.values()
            for (i, j), present in c.candidate.items()
            if solver.value(present)
        ]
