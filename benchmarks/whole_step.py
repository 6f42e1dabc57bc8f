"""How good the search for whole steps is: a fixed list of steps, rules, plan, bound and time.

Run it with ``python benchmarks/whole_step.py``. The steps (benchmarks/step_list.py) are of every kind:
backward, all-reduces and the next forward; sharded; with experts; on two levels; in chunks; of real
models with estimated times, on three networks each. ``--write`` puts the table into docs/search.md
between its markers; ``--without PART`` leaves a part of the search out, to see what it brings;
``--quick 0.1`` limits every search to so many seconds and checks that no rule is better. ``--plain``
compares some steps with CP-SAT alone, on the same model without bounds, hints and other methods; with
``--write`` that table goes between markers of its own.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from step_list import Row, steps

from commsched.models import Problem
from commsched.models.timeline import play
from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.result import SCOPES, Bound, Result, Scope, Status, proved_status
from commsched.optimizer.search import Search
from commsched.optimizer.search_options import PARTS, Options
from commsched.optimizer.starting import start

WORKERS = 2
SMALL, SMALL_S, LARGE_S, HUGE_S, OTHER_S, RULES_S = 40, 10.0, 30.0, 60.0, 10.0, 5.0
PLAIN_S = 10.0
PLAIN_NETWORK = "25 GB/s, 20 us"
PLAIN = (
    # kind, name, scope
    ("DDP", "gpt2, blocks", "in-order"),
    ("DDP", "gpt2, blocks", "any"),
    ("DDP", "bert-large, blocks", "any"),
    ("FSDP", "vgg16, 4 parts", "any"),
    ("FSDP", "gpt2, blocks", "any"),
    ("FSDP", "gpt2, blocks, 2 communicators", "any"),
    ("FSDP", "llama3-8b, blocks, limited memory", "any"),
    ("experts", "mixtral-8x7b, 4 layers, 4 chunks", "any"),
    ("experts", "mixtral-8x7b, shared expert", "any"),
    ("two levels", "gpt2, blocks", "any"),
    ("chunks", "vgg16, chunks of 32 MB", "any"),
)
DOCUMENT = Path(__file__).parent.parent / "docs" / "search.md"
TABLE, PLAIN_TABLE = "table", "plain table"
HEADER = (
    "| kind | step | network | collectives | scope | default | best rule | plan | bound | gap | "
    "seconds | method |\n|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---|"
)
PLAIN_HEADER = (
    "| kind | step | collectives | scope | plan | bound | gap | seconds | plain plan | plain bound | "
    "plain gap | plain seconds |\n|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


class Found(NamedTuple):
    """What a search came to: a makespan (None without a plan), a bound, its status, and seconds."""

    makespan_ns: int | None
    bound_ns: int
    status: Status
    seconds: float

    def cells(self) -> tuple[str, str, str, str]:
        """Return plan, bound, gap and seconds for a table; times in milliseconds."""
        bound, seconds = f"{self.bound_ns / 1e6:.3f}", f"{self.seconds:.1f}"
        if self.makespan_ns is None:
            return "none", bound, "", seconds
        gap = (self.makespan_ns - self.bound_ns) / self.makespan_ns
        shown = "proved" if self.status == Status.OPTIMAL else f"{100 * gap:.2f}%"
        return f"{self.makespan_ns / 1e6:.3f}", bound, shown, seconds


def seconds_for(row: Row) -> float:
    """Return the time limit of a step."""
    count = len(row.problem.names)
    if row.kind != "DDP" or count <= SMALL:
        return SMALL_S if row.kind == "DDP" else OTHER_S
    return LARGE_S if count <= 1000 else HUGE_S


def anew(problem: Problem) -> Problem:
    """Return the problem anew, so that nothing that an earlier run left behind may help."""
    return Problem(
        problem.tasks,
        problem.costs,
        channels=problem.groups_of_channel,
        limits=problem.limits,
    )


def default_ns(row: Row) -> int:
    """Return the makespan of what a framework does without any setting."""
    problem, rule = row.default
    return play(problem, rule(problem)).makespan_ns


def best_rule_ns(problem: Problem, scope: Scope) -> int:
    """Return the least makespan of all rules of a scope, with several settings each."""
    rules = Incumbent(problem, scope)
    start(rules, time.monotonic() + RULES_S)
    assert rules.makespan_ns is not None
    return rules.makespan_ns


def search(problem: Problem, scope: Scope, limit_s: float, parts: frozenset[str]) -> Result:
    """Return what the search finds."""
    options = Options(limit_s, WORKERS, 0, parts=parts)
    return Search(problem, scope, "auto", "tasks wait for collectives", options).run()


def searched(
    problem: Problem, scope: Scope, limit_s: float, parts: frozenset[str]
) -> tuple[Found, Result]:
    """Return what the search finds, and in what time."""
    fresh = anew(problem)
    begun = time.perf_counter()
    result = search(fresh, scope, limit_s, parts)
    took = time.perf_counter() - begun
    makespan = None if result.plan is None else result.makespan_ns
    return Found(makespan, result.lower_bound_ns, result.status, took), result


def plain(problem: Problem, scope: Scope, limit_s: float) -> Found:
    """Return what CP-SAT finds on the same model without a plan, a bound or anything else."""
    fresh = anew(problem)
    begun = time.perf_counter()
    make = InOrderModel if scope == "in-order" else AnyOrderModel
    model = make(fresh, None, 0)
    built = time.perf_counter() - begun
    outcome = solve(model, Budget(max(0.01, limit_s - built), WORKERS, 0))
    took = time.perf_counter() - begun
    if outcome.plan is None:
        return Found(None, outcome.bound.ns, Status.UNKNOWN, took)
    timeline = play(fresh, outcome.plan)
    bound = Bound(min(outcome.bound.ns, timeline.makespan_ns), "CP-SAT")
    return Found(timeline.makespan_ns, bound.ns, proved_status(timeline, bound), took)


def write(name: str, lines: Sequence[str]) -> None:
    """Put lines between the markers of a name in the document."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = DOCUMENT.read_text().split(begin)
    _, after = rest.split(end)
    text = "\n".join(lines)
    DOCUMENT.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def show(lines: list[str], cells: Sequence[str]) -> None:
    """Print a line of a table and keep it."""
    lines.append(f"| {' | '.join(cells)} |")
    print(lines[-1], flush=True)


def table(options: argparse.Namespace) -> list[str]:
    """Search all steps that are asked for; return the lines."""
    parts = PARTS - set(options.without)
    lines = [HEADER]
    print(HEADER, flush=True)
    gaps: list[float] = []
    worse = proved = 0
    for row in steps():
        if not chosen(row, options):
            continue
        for scope in options.scope or row.scopes:
            limit_s = options.quick or seconds_for(row)
            found, result = searched(row.problem, scope, limit_s, parts)
            makespan_ns = found.makespan_ns
            assert makespan_ns is not None
            rule_ns = makespan_ns if options.skip_rules else best_rule_ns(row.problem, scope)
            worse += makespan_ns > rule_ns
            proved += found.status == Status.OPTIMAL
            gaps.append(result.gap)
            plan, bound, gap, took = found.cells()
            default, rule = f"{default_ns(row) / 1e6:.3f}", f"{rule_ns / 1e6:.3f}"
            count = f"{len(row.problem.names):,}"
            about = (row.kind, row.name, row.network, count, scope, default, rule)
            show(lines, (*about, plan, bound, gap, took, result.method))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"\n{len(gaps)} searches, {proved} proved, largest gap {100 * max(gaps, default=0):.2f}%, "
        f"average gap {100 * sum(gaps) / max(1, len(gaps)):.3f}%, worse than a rule: {worse}, "
        f"peak memory {peak} MiB"
    )
    return lines


def plain_table(options: argparse.Namespace) -> list[str]:
    """Compare the search with CP-SAT alone; return the lines."""
    lines = [PLAIN_HEADER]
    print(PLAIN_HEADER, flush=True)
    rows = {(row.kind, row.name): row for row in steps() if row.network == PLAIN_NETWORK}
    limit_s = options.quick or PLAIN_S
    for kind, name, scope in PLAIN:
        row = rows[kind, name]
        if not chosen(row, options):
            continue
        checked: Scope = "in-order" if scope == "in-order" else "any"
        found, _ = searched(row.problem, checked, limit_s, PARTS)
        alone = plain(row.problem, checked, limit_s)
        about = (kind, name, str(len(row.problem.names)), scope)
        show(lines, (*about, *found.cells(), *alone.cells()))
    return lines


def chosen(row: Row, options: argparse.Namespace) -> bool:
    """Return whether a step is asked for."""
    return (
        options.only in row.name
        and options.network in row.network
        and (not options.kind or row.kind in options.kind)
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="the search for whole steps, measured")
    parser.add_argument("--scope", action="append", choices=SCOPES)
    parser.add_argument("--only", default="", help="steps with this in their name")
    parser.add_argument("--kind", action="append", help="steps of this kind")
    parser.add_argument("--network", default="", help="networks with this in their name")
    parser.add_argument("--without", action="append", choices=sorted(PARTS), default=[])
    parser.add_argument("--quick", type=float, help="seconds for every search")
    parser.add_argument("--skip-rules", action="store_true", help="do not time the rules")
    parser.add_argument("--plain", action="store_true", help="compare with CP-SAT alone")
    parser.add_argument("--write", action="store_true", help="into docs/search.md")
    options = parser.parse_args()
    lines = plain_table(options) if options.plain else table(options)
    if options.write:
        write(PLAIN_TABLE if options.plain else TABLE, lines)


if __name__ == "__main__":
    main()
