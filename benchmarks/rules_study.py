"""How far every rule is from the optimum: models times networks, as it comes and with its best setting.

Run ``make study`` (or ``python benchmarks/rules_study.py``); it prints the tables and writes them into
docs/rules_study.md. Everything is computed, nothing is timed, so the tables are the same on every
machine. Sizes of the models are exact; backward times are estimated from the work of each layer at the
sustained rate that STEPS states. The networks' constants are those that the projects published.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import commsched
from commsched.models import GradientProblem, Problem
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer import RULES, optimize
from commsched.optimizer.registry import KnobOf
from commsched.problems.estimates.architectures import estimated_gradients, parameters

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rules_study.md"


@dataclass(frozen=True)
class Step:
    """A model with its samples (images or tokens) a rank and step, and a sustained rate."""

    model: str
    samples: int
    tflop_s: float
    dtype: str = "float32"

    @property
    def backward_ms(self) -> float:
        """Backward does two multiply-adds for each of the forward pass, of two operations each."""
        work = sum(parameter.work for parameter in parameters(self.model))
        return 4 * work * self.samples / (self.tflop_s * 1e9)


STEPS = (
    Step("resnet50", 64, 30),
    Step("vgg16", 64, 40),
    Step("bert-large", 8 * 512, 60),
    Step("gpt2-xl", 4 * 1024, 80),
    Step("llama3-8b", 4096, 250, "bfloat16"),
)


class Network(NamedTuple):
    """An all-reduce's start-up in seconds and its time for a byte, with the source."""

    name: str
    alpha_s: float
    beta_s: float
    source: str


NETWORKS = (
    Network("10 GbE, 16 GPUs", 9.080981007148093e-4, 7.395651186836712e-10, "MG-WFBP, 10Gbps"),
    Network("10 GbE, 8 GPUs", 5.230272768511732e-4, 8.570746975492128e-10, "MG-WFBP, 10Gbps"),
    Network("56 Gb/s, 16 GPUs", 2.3583677659915685e-4, 4.0594787739537565e-10, "MG-WFBP, 56Gbps"),
    Network("56 Gb/s, 4 GPUs", 4.204298980348825e-5, 2.0589360830118177e-10, "MG-WFBP, 56Gbps"),
    Network("A100, NVLink, 8 GPUs", 71e-6, 7.83e-12, "fit of Echo's nccl-tests logs"),
    Network("A100, HDR IB, 16 GPUs", 86e-6, 15.0e-12, "fit of Echo's nccl-tests logs"),
    Network("A100, HDR IB, 64 GPUs", 159e-6, 16.4e-12, "fit of Echo's nccl-tests logs"),
    Network("A100, HDR IB, 128 GPUs", 183e-6, 17.4e-12, "fit of Echo's nccl-tests logs"),
)


class Distance(NamedTuple):
    """How far a rule is from the optimum on one step."""

    rule: str
    title: str
    case: str
    over_ns: int
    makespan_ns: int
    exposed_ns: int
    best_exposed_ns: int
    optimal: bool


def problem_of(step: Step, network: Network) -> GradientProblem:
    """Return the problem of a step on a network."""
    cost = commsched.AlphaBeta(round(network.alpha_s * 1e6, 3), round(1e-9 / network.beta_s, 4))
    gradients = estimated_gradients(step.model, step.backward_ms, dtype=step.dtype)
    return commsched.gradient_problem(gradients, cost, f"{step.model}, {network.name}")


def plans(problem: Problem) -> Iterator[tuple[str, str, commsched.Plan]]:
    """Yield every rule's plan, and the one of its best scalar setting."""
    for rule in RULES:
        try:
            yield rule.name, rule.title, rule.make(problem)
        except (NotApplicableError, DeadlockError):
            continue
        for knob in rule.knobs:
            if isinstance(knob, KnobOf) and not knob.cuts:  # pieces by the million: too slow here
                name = f"{rule.name}-{knob.suffix}"
                try:
                    yield name, f"{rule.title}, best setting", knob.best(problem).plan
                except NotApplicableError:
                    continue


def distances(case: tuple[Step, Network]) -> list[Distance]:
    """Return the distance of every rule on one step."""
    problem = problem_of(*case)
    best = optimize(problem)
    found = []
    for name, title, plan in plans(problem):
        timeline = play(problem, plan)
        over = timeline.makespan_ns - best.makespan_ns
        found.append(
            Distance(
                name,
                title,
                problem.name,
                max(0, over),
                timeline.makespan_ns,
                timeline.exposed_ns,
                best.exposed_ns,
                over <= plan.launches,
            )
        )
    return found


def table(found: list[Distance]) -> list[str]:
    """Return the rules' table, best mean first."""
    by_rule: dict[str, list[Distance]] = {}
    for distance in found:
        by_rule.setdefault(distance.rule, []).append(distance)

    def share(distance: Distance) -> float:
        return distance.over_ns / (distance.makespan_ns - distance.over_ns)

    def mean(rows: list[Distance]) -> float:
        return sum(map(share, rows)) / len(rows)

    lines = [
        "| rule | steps | optimal in | mean over optimum | worst | where | exposed / optimum's |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for rows in sorted(by_rule.values(), key=mean):
        worst = max(rows, key=share)
        exposed = statistics.median(row.exposed_ns / row.best_exposed_ns for row in rows)
        where = worst.case if share(worst) > 0.00005 else ""
        lines.append(
            f"| {rows[0].title} | {len(rows)} | {sum(row.optimal for row in rows)} "
            f"| {100 * mean(rows):.2f}% | {100 * share(worst):.1f}% | {where} | {exposed:.2f}x |"
        )
    return lines


def page(found: list[Distance]) -> str:
    """Return the page for the documentation."""
    steps = [
        f"| {s.model} | {len(parameters(s.model))} | {s.samples:,} | {s.tflop_s:g} "
        f"| {s.backward_ms:.0f} ms | {s.dtype} |"
        for s in STEPS
    ]
    networks = [
        f"| {n.name} | {n.alpha_s * 1e6:.1f} us | {1e-9 / n.beta_s:.2f} GB/s | {n.source} |"
        for n in NETWORKS
    ]
    return "\n".join(
        [
            "# How far every rule is from the optimum",
            "",
            "Written by `make study` (benchmarks/rules_study.py): every rule, as it comes and with the",
            f"best value of its knob over all values, on {len(STEPS)} models times {len(NETWORKS)}",
            "networks. Over optimum is in step time (backward and what is exposed after it); the last",
            "column is the median over the steps of exposed time divided by that of the optimal plan.",
            "",
            *table(found),
            "",
            "Backward times are *estimated* from each layer's multiply-adds at this sustained rate;",
            "sizes are exact.",
            "",
            "| model | gradients | samples a rank | TFLOP/s | backward | dtype |",
            "| --- | ---: | ---: | ---: | ---: | --- |",
            *steps,
            "",
            "| network | alpha | bandwidth | constants of |",
            "| --- | ---: | ---: | --- |",
            *networks,
            "",
        ]
    )


def main() -> None:
    """Print the page and write it."""
    parser = argparse.ArgumentParser(description="rules against the optimum")
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write the page")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    cases = [(step, network) for step in STEPS for network in NETWORKS]
    with ProcessPoolExecutor(options.workers) as pool:
        found = [distance for rows in pool.map(distances, cases) for distance in rows]
    text = page(found)
    print(text)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
