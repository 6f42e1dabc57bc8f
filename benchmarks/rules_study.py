"""How far every rule is from the optimum: steps times networks, as it comes and with its best setting.

Run ``make study`` (or ``python benchmarks/rules_study.py``); it prints the page (rules_page.py) and
writes it to docs/rules_study.md. Everything is computed, nothing is timed, and what is searched ends by
counted work, so the tables are the same on every machine. ``--models`` takes some models only.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rules_page import page
from rules_steps import STEPS, Case, Distance, Kind, Refusal, cases, problem_in

from commsched.models import Plan, Problem, Timeline
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer import RULES, optimize
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.priorities import PrioritySearch, why_no_priorities
from commsched.optimizer.registry import KnobOf
from commsched.optimizer.search import bound_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rules_study.md"
SEARCHED_STATES = 200_000
"""Of a whole step's search, so that it ends by counted work."""
SLOW, MOST_OF_SLOW = "inductor", 200
"""Where compute waits this rule walks the whole graph for each value: minutes for more collectives."""


Made = tuple[str, str, Plan, Timeline]
"""A rule's name and title, its plan, and what that does."""


def plans(problem: Problem, case: Case) -> Iterator[Made | Refusal]:
    """Yield every rule's plan, and those of its best settings."""
    for rule in RULES:
        try:
            plan = rule.make(problem)
            yield rule.name, rule.title, plan, play(problem, plan)
        except (NotApplicableError, DeadlockError) as error:
            if "pieces" in str(error):  # it has something to say, but it would take too long
                yield Refusal(rule.name, rule.title, case, "it would cut too many pieces")
            continue
        for knob in rule.knobs:
            if isinstance(knob, KnobOf) and knob.cuts:  # pieces by the million: too slow here
                continue
            what = "best setting" if isinstance(knob, KnobOf) else "best two caps"
            name, title = f"{rule.name}-{knob.suffix}", f"{rule.title}, {what}"
            if rule.name == SLOW and case.kind == "whole" and len(problem.names) > MOST_OF_SLOW:
                yield Refusal(name, title, case, f"more than {MOST_OF_SLOW} collectives take long")
                continue
            try:
                plan = knob.best(problem).plan
                yield name, title, plan, play(problem, plan)
            except NotApplicableError:
                yield Refusal(name, title, case, "there are too many plans to visit")
            except DeadlockError:
                yield Refusal(name, title, case, "some value's launches wait for each other")


def references(problem: Problem, kind: Kind) -> tuple[int, list[Made]]:
    """Return what distances are measured from, and plans that are no rule's."""
    if kind == "backward":
        return optimize(problem).makespan_ns, []
    bound, found = bound_of(problem), []
    if kind == "whole" and why_no_priorities(problem) is None:
        in_order = optimize(problem)
        assert in_order.status == "optimal"
        assert in_order.plan is not None
        title = "*the best plan in order: free boundaries*"
        found.append(("in-order", title, in_order.plan, in_order.timeline))
        known = Incumbent(problem, "any")
        known.raise_bound(bound)
        known.offer(in_order.plan, "recurrence")
        PrioritySearch(known, 0).by_windows(SEARCHED_STATES, math.inf)
        bound = known.bound
        assert known.plan is not None
        assert known.timeline is not None
        title = "*the best plan found in any order*"
        found.append(("any", title, known.plan, known.timeline))
    return bound.ns, found


def distances(case: Case) -> list[Distance | Refusal]:
    """Return the distance of every rule in a case."""
    problem = problem_in(case)
    best_ns, made = references(problem, case.kind)
    found: list[Distance | Refusal] = []
    for each in (*made, *plans(problem, case)):
        if isinstance(each, Refusal):
            found.append(each)
            continue
        name, title, plan, timeline = each
        if timeline.broken:
            continue
        times = timeline.makespan_ns, plan.launches, timeline.exposed_ns
        found.append(Distance(name, title, case, *times, best_ns, best_ns - timeline.compute_ns))
    return found


def main() -> None:
    """Print the page and write it."""
    models = tuple(step.model for step in STEPS)
    parser = argparse.ArgumentParser(description="rules against the optimum")
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write the page")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--models", nargs="*", default=models, choices=models, metavar="MODEL")
    options = parser.parse_args()
    found: list[Distance | Refusal] = []
    with ProcessPoolExecutor(options.workers) as pool:
        chosen = cases(tuple(options.models))
        for done, rows in enumerate(pool.map(distances, chosen), 1):
            print(f"{done} of {len(chosen)}: {chosen[done - 1].title}", file=sys.stderr)
            found += rows
    text = page(found)
    print(text)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
