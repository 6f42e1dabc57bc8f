"""How much a plan depends on its input: networks of the rules' study, its smaller models or all.

Run ``python benchmarks/sensitivity_study.py``; it prints a page and writes it to
docs/sensitivity_study.md. Everything is computed, nothing is timed (unless a search reaches its time
limit, which the page then says), so the tables are the same on every machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rules_steps import NETWORKS, STEPS, Network, Step, problem_of

from commsched.optimizer import optimize
from commsched.optimizer.robust import robust
from commsched.optimizer.sensitivity import sensitivity
from commsched.optimizer.slowed import optimize_slowed

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sensitivity_study.md"
SMALLER = ("resnet50", "vgg16")
CHOSEN = (
    "10 GbE, 16 GPUs",
    "10 GbE, 8 GPUs",
    "56 Gb/s, 16 GPUs",
    "56 Gb/s, 4 GPUs",
    "A100, NVLink, 8 GPUs",
    "A100, HDR IB, 16 GPUs",
    "A100, HDR IB, 64 GPUs",
    "A100, HDR IB, 128 GPUs",
)
"""Networks of the rules' study."""
SLOWDOWN = 1.3
TIME_LIMIT_S = 60


@dataclass(frozen=True)
class Row:
    """What was found for one step; shares are of the optimum's step time."""

    case: str
    launches: int
    best: dict[str, tuple[float, float]]
    good: dict[str, tuple[float, float]]
    worst: dict[str, float]
    nominal_regret: float
    robust_regret: float
    robust_launches: int
    robust_status: str
    exposed_ns: int
    slowed_exposed_ns: int
    slowed_gain: float
    slowed_status: str


def scaled(network: Network, alpha: float, bandwidth: float) -> Network:
    """Return a network with another start-up and bandwidth."""
    return network._replace(alpha_s=network.alpha_s * alpha, beta_s=network.beta_s / bandwidth)


def row(case: tuple[Step, Network]) -> Row:
    """Return everything about one step."""
    step, network = case
    problem = problem_of(step, network)
    result = optimize(problem)
    best, good, worst = {}, {}, {}
    for knob in ("alpha", "bandwidth", "compute"):
        found = sensitivity(problem, knob, result.plan, low=0.5, high=2)
        assert found.optimal is not None
        assert found.good is not None
        assert found.worst_share is not None, f"{problem.name}: {knob} is not complete"
        best[knob] = float(found.optimal.low), float(found.optimal.high)
        good[knob] = float(found.good.low), float(found.good.high)
        worst[knob] = found.worst_share.share
    others = [scaled(network, *by) for by in ((2, 1), (0.5, 1), (1, 2), (1, 0.5))]
    cases = [problem, *(problem_of(step, other) for other in others)]
    safe = robust(cases, time_limit_s=TIME_LIMIT_S)
    slowed = optimize_slowed(problem, SLOWDOWN, nominal=result)
    return Row(
        problem.name,
        result.timeline.plan.launches,
        best,
        good,
        worst,
        max((c.nominal_regret_ns or 0) / c.best_ns for c in safe.cases),
        max(c.regret_ns / c.best_ns for c in safe.cases),
        safe.plan.launches,
        str(safe.status),
        result.exposed_ns,
        slowed.ignorant.exposed_ns,
        slowed.gain_ns / slowed.makespan_ns,
        str(slowed.status),
    )


def percent(values: Sequence[float]) -> str:
    """Return median and largest of some shares."""
    return f"{100 * statistics.median(values):.2f}% | {100 * max(values):.1f}%"


def page(rows: Sequence[Row], models: Sequence[str]) -> str:
    """Return the page for the documentation."""
    count = len(rows)

    def knob_line(title: str, knob: str) -> str:
        narrow = sum(low > 0.99 or high < 1.01 for low, high in (r.best[knob] for r in rows))
        wide = sum(r.best[knob] == (0.5, 2) for r in rows)
        good = sum(r.good[knob] == (0.5, 2) for r in rows)
        return (
            f"| {title} | {narrow} | {wide} | {good} | {percent([r.worst[knob] for r in rows])} |"
        )

    def proved(status: Callable[[Row], str]) -> str:
        return f"{sum(status(r) == 'optimal' for r in rows)} of {count}"

    robust_lines = [
        f"| nominal | {statistics.median(r.launches for r in rows):g} "
        f"| {percent([r.nominal_regret for r in rows])} |",
        f"| robust | {statistics.median(r.robust_launches for r in rows):g} "
        f"| {percent([r.robust_regret for r in rows])} |",
    ]
    slower = [r.slowed_exposed_ns / r.exposed_ns for r in rows if r.exposed_ns]
    return "\n".join(
        [
            "# How much a plan depends on its input",
            "",
            f"Written by `python benchmarks/sensitivity_study.py`: {', '.join(models)} on",
            f"{len(CHOSEN)} networks of [the rules' study](rules_study.md), {count} steps (`--all`",
            "takes all its models, and long). Shares are of the optimum's step time.",
            "",
            "## One number is wrong, by a factor of 2 at most",
            "",
            "| what changes | best plan changes within 1% | never changes | keeping it costs at most 1% "
            "| median worst cost | largest |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            knob_line("start-up latency", "alpha"),
            knob_line("bandwidth", "bandwidth"),
            knob_line("compute speed", "compute"),
            "",
            "## One plan for five networks",
            "",
            "The network as it is, with half and twice the start-up latency, and with half and twice",
            "the bandwidth. The robust plan is proved best in "
            f"{proved(lambda r: r.robust_status)} steps.",
            "",
            "| plan | median launches | median of the worst regret | largest |",
            "| --- | ---: | ---: | ---: |",
            *robust_lines,
            "",
            f"## Compute takes {SLOWDOWN:g} times as long beside launches",
            "",
            f"The best plan without the slowdown then exposes {statistics.median(slower):.1f} times as",
            f"much (median; up to {max(slower):.1f} times). Planning for it shortens the step by",
            f"{100 * statistics.median(r.slowed_gain for r in rows):.2f}% (median) and at most "
            f"{100 * max(r.slowed_gain for r in rows):.1f}%; proved best in "
            f"{proved(lambda r: r.slowed_status)} steps.",
            "",
        ]
    )


def main() -> None:
    """Print the page and write it."""
    parser = argparse.ArgumentParser(description="how much a plan depends on its input")
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write the page")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--all", action="store_true", help="all models; this takes long")
    options = parser.parse_args()
    steps = [step for step in STEPS if options.all or step.model in SMALLER]
    networks = [network for network in NETWORKS if network.name in CHOSEN]
    cases = [(step, network) for step in steps for network in networks]
    with ProcessPoolExecutor(options.workers) as pool:
        rows = list(pool.map(row, cases))
    text = page(rows, [step.model for step in steps])
    print(text)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
