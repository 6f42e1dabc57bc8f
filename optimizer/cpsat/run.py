"""One run of CP-SAT: in a thread of its own, so that it can be watched and interrupted."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from commsched.models.errors import SolverError
from commsched.optimizer.cpsat.base import StepModel

POLL_S = 0.1
WORK_A_SECOND = 0.05
"""CP-SAT's deterministic time for each second of a limit: less than most machines manage, so that a
repeatable run ends by what it has done and not by the clock."""


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@dataclass(frozen=True)
class Budget:
    """What a solve may use; the defaults are fixed so that machines agree.

    Attributes
    ----------
    time_limit_s, workers, seed
        Seconds, search threads and random seed.
    log
        Whether CP-SAT's log goes to standard error.
    within
        By which share of the makespan a plan with fewer launches may be longer than the best.
    progress
        Is told the objective (None without a solution) and the bound of the model when they improve.
    work
        If given, how much CP-SAT may do, in its own deterministic time. Its workers then exchange
        what they find at fixed points of their work, so that the same seed and number of workers
        give the same plan unless the time is over before.
    """

    time_limit_s: float = 60.0
    workers: int = 8
    seed: int = 0
    log: bool = False
    within: float = 0.0
    progress: Callable[[int | None, int], None] | None = None
    work: float | None = None


@dataclass
class Statistics:
    """What the runs of CP-SAT did, added up."""

    values: dict[str, float | int] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        """Add to the values of these names."""
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0) + value

    @property
    def work(self) -> float:
        """The deterministic time of all runs."""
        return self.values.get("deterministic_time", 0)


class Watched:
    """A run of a model: solver and status, and whether somebody stopped it.

    Parameters
    ----------
    step
        The model.
    budget
        Workers, seed, log.
    deadline
        When to stop, on the clock of :func:`time.monotonic`.
    statistics
        Where to add what was done; ``clock_cuts`` counts the runs that the clock ended.
    progress
        As in :class:`Budget`; called in the caller's thread. What it raises stops the run.
    work
        If given, the most deterministic time for this run.
    """

    def __init__(
        self,
        step: StepModel,
        budget: Budget,
        deadline: float,
        statistics: Statistics,
        progress: Callable[[int | None, int], None] | None = None,
        work: float | None = None,
    ) -> None:
        self.cp = cp = step.cp
        self.solver = solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.max_time_in_seconds = max(0.01, deadline - time.monotonic())
        parameters.num_workers = budget.workers
        parameters.random_seed = budget.seed
        if not step.cuts:
            parameters.cut_level = 0
        if budget.work is not None:
            parameters.interleave_search = True
            left = budget.work - statistics.work
            work = max(0.0, left if work is None else min(work, left))
        if work is not None:
            parameters.max_deterministic_time = work
        # Python's own handler of Ctrl-C is to be asked, see below.
        parameters.catch_sigint_signal = False
        if budget.log:
            parameters.log_search_progress = True
            parameters.log_to_stdout = False
            solver.log_callback = _log
        self.progress = progress
        self.interrupted: BaseException | None = None
        self.status: Any = cp_model.UNKNOWN
        self._failed: BaseException | None = None
        self._seen = _Seen() if progress else None
        thread = threading.Thread(target=self._solve, daemon=True)
        thread.start()
        told: tuple[int | None, int] = (None, 0)
        while thread.is_alive():
            try:
                thread.join(POLL_S)
                if self._seen is not None and progress is not None:
                    now = self._seen.now
                    if now != told:
                        told = now
                        progress(*now)
            except BaseException as stop:
                if self.interrupted is not None:
                    raise  # asked twice: do not wait for the solver
                self.interrupted = stop
                solver.stop_search()
        if self._failed is not None:
            raise SolverError(f"CP-SAT failed: {self._failed}") from self._failed
        if self.status == cp_model.MODEL_INVALID:
            raise SolverError(f"CP-SAT refuses the model: {cp.validate()}")
        done = solver.response_proto.deterministic_time
        ended = self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        ended = ended or (work is not None and done >= work)
        statistics.add(
            runs=1,
            clock_cuts=int(not ended),
            conflicts=solver.num_conflicts,
            branches=solver.num_branches,
            solver_s=solver.wall_time,
            deterministic_time=done,
        )
        if self.interrupted is not None and not isinstance(self.interrupted, KeyboardInterrupt):
            raise self.interrupted

    def _solve(self) -> None:
        try:
            if self._seen is not None:
                self.solver.best_bound_callback = self._seen.bound
            self.status = self.solver.solve(self.cp, self._seen)
        except BaseException as failed:  # told in the caller's thread
            self._failed = failed


class _Seen(cp_model.CpSolverSolutionCallback):
    """Remembers the last objective and bound; nothing else happens in CP-SAT's threads."""

    def __init__(self) -> None:
        super().__init__()
        self.now: tuple[int | None, int] = (None, 0)

    def on_solution_callback(self) -> None:
        """Remember a solution's objective."""
        self.now = (int(self.objective_value), max(self.now[1], int(self.best_objective_bound)))

    def bound(self, value: float) -> None:
        """Remember a bound."""
        self.now = (self.now[0], max(self.now[1], int(value)))
