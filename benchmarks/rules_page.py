"""The page of the rules' study: one table of rules for each kind of step, and all distances, folded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from rules_steps import NETWORKS, STEPS, WHOLE_NETWORKS, Case, Distance, Kind, Refusal

from commsched.problems.estimates.architectures import parameters

KINDS: tuple[Kind, ...] = ("backward", "whole", "sharded")


class Group:
    """Rules that make equally good plans in all cases, and their distances in the cases' order."""

    def __init__(self, rows: Sequence[Distance], cases: Sequence[Case]) -> None:
        self.titles = [rows[0].title]
        place = {case: k for k, case in enumerate(cases)}
        self.rows = sorted(rows, key=lambda row: place[row.case])

    @property
    def key(self) -> object:
        """What groups that share a row have in common."""
        return [(row.case, row.makespan_ns, row.launches) for row in self.rows]

    @property
    def title(self) -> str:
        """All titles."""
        return " = ".join(self.titles)

    @property
    def mean(self) -> float:
        """The mean share over the optimum."""
        return float(sum(Fraction(row.over_ns, row.best_ns) for row in self.rows)) / len(self.rows)

    @property
    def worst(self) -> Distance:
        """The case in which the rule does worst."""
        return max(self.rows, key=lambda row: row.share)


def groups(found: Iterable[Distance], kind: Kind) -> list[Group]:
    """Return the rules on the steps of a kind, best mean first."""
    rows = [row for row in found if row.case.kind == kind]
    cases = list(dict.fromkeys(row.case for row in rows))
    made: list[Group] = []
    for name in dict.fromkeys(row.rule for row in rows):
        one = Group([row for row in rows if row.rule == name], cases)
        twin = next((other for other in made if other.key == one.key), None)
        if twin is None:
            made.append(one)
        else:
            twin.titles += one.titles
    return sorted(made, key=lambda group: group.mean)


def table(made: Sequence[Group], *, over: str, exposed: bool) -> list[str]:
    """Return the rules' table."""
    head = ["rule", "steps", "optimal in", f"mean over {over}", "worst", "where"]
    head += ["exposed / optimum's"] * exposed
    lines = [
        f"| {' | '.join(head)} |",
        f"| --- | ---: | ---: | ---: | ---: | ---{' | ---:' * exposed} |",
    ]
    for group in made:
        worst = group.worst
        cells = [
            group.title,
            str(len(group.rows)),
            str(sum(row.optimal for row in group.rows)),
            f"{100 * group.mean:.2f}%",
            f"{100 * worst.share:.1f}%",
            worst.case.title if worst.share > 0.00005 else "",
        ]
        if exposed:
            shares = [r.exposed_ns / r.best_exposed_ns for r in group.rows if r.best_exposed_ns > 0]
            cells.append(f"{statistics.median(shares):.2f}x")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def left_out(found: Iterable[Refusal], kind: Kind) -> list[str]:
    """Return which best settings were not looked for."""
    by_reason: dict[str, dict[str, int]] = {}
    for refusal in found:
        if refusal.case.kind == kind:
            counts = by_reason.setdefault(refusal.reason, {})
            counts[refusal.title] = counts.get(refusal.title, 0) + 1
    lines: list[str] = []
    for reason, counts in by_reason.items():
        texts = [f"{title} in {count} steps" for title, count in counts.items()]
        lines += ["", f"Left out, because {reason}: {'; '.join(texts)}."]
    return lines


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines that are shown on demand."""
    return ["", f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>"]


def matrix(made: Sequence[Group], wanted: Sequence[Case], head: Callable[[Case], str]) -> list[str]:
    """Return the distances in some cases, in percent."""
    lines = [
        "Over the optimum, or its bound, in percent; `=` is optimal.",
        "",
        f"| rule | {' | '.join(map(head, wanted))} |",
        f"| --- |{' ---: |' * len(wanted)}",
    ]
    for group in made:
        by_case = {row.case: row for row in group.rows}
        cells = [_share(by_case.get(case)) for case in wanted]
        if any(cells):
            lines.append(f"| {group.title} | {' | '.join(cells)} |")
    return lines


def _share(row: Distance | None) -> str:
    if row is None:
        return ""
    if row.optimal:
        return "="
    value = 100 * row.share
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}" if value >= 0.005 else "0.00"


INTRODUCTION = """# How far every rule is from the optimum

Written by `make study` (benchmarks/rules_study.py): every rule as it comes, and with the best value of
its knob over all values. Rules that do the same in all steps share a row. A share is of the optimum's
step time: with 100% over it a step takes twice as long.

## Backward passes

{backward} steps: {models} models times {networks} networks, and {library_backward} steps of
[the library](library.md). The optimum is exact: of scope `in-order`, and where costs are affine no plan
of any scope is better. The last column is the median of exposed time divided by the optimum's.
"""
WHOLE = """
## Whole steps

{whole} steps with the next forward pass, in which each block waits for its gradients: {models} models
times {whole_networks} networks, and {library_whole} of the library. What is needed first is ready last,
so launching in the order of readiness has its price here. Distances are from a proved lower bound on
every plan in any order, so a rule is at most so far from the optimum; the row of the best plan found
says how much of that the bound can be off.
"""
SHARDED = """
## Sharded steps and steps with experts

The library's {sharded} steps with gathers and scatters, or with all-to-alls, about which few rules have
something to say. Distances are from a proved lower bound on every plan in any order.
"""
COMPUTED = """
## What was computed

Backward times are *estimated* from each layer's multiply-adds at this sustained rate; sizes are exact.
The library's steps have [rates and networks of their own](library.md).

| model | gradients | samples a rank | TFLOP/s | backward | dtype |
| --- | ---: | ---: | ---: | ---: | --- |"""
CONSTANTS = """
MG-WFBP's table for 10 Gb/s has copies of its rows for 56 Gb/s for 2 and 4 GPUs; they are not used twice.
DeAR's copy adds larger clusters, with factors put in by hand, and three times the start-up for 16 GPUs.
All-reduces only: MG-WFBP's constants of all-gathers and AutoParallel's of several nodes are left out.
"""


def page(found: Sequence[Distance | Refusal]) -> str:
    """Return the page for the documentation."""
    rows = [each for each in found if isinstance(each, Distance)]
    refused = [each for each in found if isinstance(each, Refusal)]
    models = [s.model for s in STEPS if any(r.case.step == s.model for r in rows)]
    counts: dict[str, int] = {
        "models": len(models),
        "networks": len(NETWORKS),
        "whole_networks": len(WHOLE_NETWORKS),
    }
    made: dict[Kind, list[Group]] = {}
    for kind in KINDS:
        of_kind = {row.case for row in rows if row.case.kind == kind}
        counts[kind] = len(of_kind)
        counts[f"library_{kind}"] = sum(not case.network for case in of_kind)
        made[kind] = groups(rows, kind)
    lines = [INTRODUCTION.format(**counts)]
    lines += table(made["backward"], over="optimum", exposed=True)
    lines += [*left_out(refused, "backward"), WHOLE.format(**counts)]
    lines += table(made["whole"], over="the bound", exposed=False)
    lines += [*left_out(refused, "whole"), SHARDED.format(**counts)]
    lines += table(made["sharded"], over="the bound", exposed=False)
    lines += [*left_out(refused, "sharded"), "", "## Every distance"]
    lines += _details(rows, made, models)
    lines += [COMPUTED]
    lines += [
        f"| {s.model} | {len(parameters(s.model))} | {s.samples:,} | {s.tflop_s:g} "
        f"| {s.backward_ms:.0f} ms | {s.dtype} |"
        for s in STEPS
    ]
    lines += ["", "| network | alpha | bandwidth | constants of |", "| --- | ---: | ---: | --- |"]
    lines += [
        f"| {n.name} | {n.alpha_s * 1e6:.1f} us | {1e-9 / n.beta_s:.2f} GB/s | {n.source} |"
        for n in NETWORKS
    ]
    return "\n".join([*lines, CONSTANTS])


def _details(
    rows: Sequence[Distance], made: Mapping[Kind, Sequence[Group]], models: Sequence[str]
) -> list[str]:
    """Return all distances, folded by model."""
    short = {network.name: network.short for network in NETWORKS}
    order = list(short)
    known = list(dict.fromkeys(row.case for row in rows))
    lines: list[str] = []
    for model in models:
        for kind, title in (("backward", "backward"), ("whole", "whole step")):
            wanted = [case for case in known if (case.step, case.kind) == (model, kind)]
            wanted.sort(key=lambda case: order.index(case.network))
            lines += folded(
                f"{model}, {title}", matrix(made[kind], wanted, lambda case: short[case.network])
            )
    for kind, title in (
        ("backward", "the library's backward passes"),
        ("sharded", "the library's sharded steps and those with experts"),
    ):
        wanted = sorted(case for case in known if not case.network and case.kind == kind)
        lines += folded(title, matrix(made[kind], wanted, lambda case: case.step.replace("/", " ")))
    return lines
