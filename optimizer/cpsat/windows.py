"""Large-neighbourhood search with CP-SAT: most buckets stay, those of a window are free.

A window is a stretch of launches in the order of their starts. In each round the model may regroup the
collectives of the window's launches and may order all launches anew; the known plan is its hint and its
horizon. Windows slide over the step until a whole pass brings nothing, then they grow.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from ortools.sat.python import cp_model

from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.any_order import AnyOrderModel
from commsched.optimizer.cpsat.in_order import InOrderModel
from commsched.optimizer.cpsat.run import Budget, Statistics, Watched
from commsched.optimizer.cpsat.search import extract, set_hints
from commsched.optimizer.incumbent import Incumbent

FIRST_WINDOW = 24
ROUND_S = 3.0


def improve_by_windows(
    known: Incumbent, budget: Budget, statistics: MutableMapping[str, float | int]
) -> bool:
    """Improve a plan window by window until the time limit; return whether Ctrl-C ended it.

    Parameters
    ----------
    known
        Has a plan.
    budget
        Workers, seed and log; the time limit is the incumbent's.
    statistics
        Where to add what was done.
    """
    build = InOrderModel if known.scope == "in-order" else AnyOrderModel
    counted = Statistics()
    size, begin, improved = FIRST_WINDOW, 0, False
    try:
        while known.left_s > 0.2 and not known.proved:
            assert known.plan is not None
            assert known.timeline is not None
            order = [name for launch in known.timeline.launches for name in launch.names]
            if begin >= len(order):
                if not improved:
                    if size >= len(order):
                        break
                    size *= 2
                begin, improved = 0, False
            free = set(order[begin : begin + size])
            begin += size // 2
            model = build(known.problem, known.plan, known.bound.ns, free)
            set_hints(model.step.cp, model.step.hints)
            model.step.cp.minimize(model.step.makespan)
            until = min(known.until, known.until - known.left_s + ROUND_S)
            run = Watched(model.step.cp, budget, until, counted)
            if run.interrupted is not None:
                return True
            if run.status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                continue
            plan = extract(model, run.solver)
            before = known.makespan_ns
            if known.offer(plan, "cpsat windows"):
                improved = improved or play(known.problem, plan).makespan_ns < (before or 0)
    except NotApplicableError:
        pass
    finally:
        for name, value in counted.values.items():
            statistics[name] = statistics.get(name, 0) + value
    return False
