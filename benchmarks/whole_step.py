"""How good the search for whole steps is: a fixed list of steps, the best rule, plan, bound and time.

Run it with ``python benchmarks/whole_step.py``. The steps are backward, one all-reduce for each
gradient and the next forward pass, of real models with estimated times, on three networks each; and a
made-up step of 2,000 gradients. ``--write`` puts the table into docs/search.md between its markers;
``--without PART`` leaves a part of the search out, to see what it brings; ``--quick 0.1`` limits every
search to so many seconds and checks that no rule is better.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from commsched.models import AlphaBeta, Problem
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.result import SCOPES, Result, Scope, check_scope
from commsched.optimizer.search import PARTS, Options, Search
from commsched.optimizer.starting import start
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layer_models import estimated_profile
from commsched.problems.steps.layers import Layer, LayerProfile

NETWORKS = {
    "100 GB/s, 10 us": AlphaBeta(10, 100),
    "25 GB/s, 20 us": AlphaBeta(20, 25),
    "12.5 GB/s, 50 us": AlphaBeta(50, 12.5),
}
MODELS = (
    # model, by, layers merged into so many, samples, TFLOP/s, element type
    ("vgg16", "module", 8, 8, 50, "float32"),
    ("vgg16", "module", 0, 8, 50, "float32"),
    ("gpt2", "block", 0, 1024, 50, "float32"),
    ("resnet50", "block", 0, 8, 50, "float32"),
    ("bert-large", "block", 0, 2048, 80, "float32"),
    ("llama3-8b", "block", 0, 4096, 300, "bfloat16"),
    ("gnmt", "tensor", 0, 2048, 50, "float32"),
    ("gpt2", "tensor", 0, 1024, 50, "float32"),
    ("resnet50", "tensor", 0, 16, 50, "float32"),
    ("llama3-8b", "tensor", 0, 4096, 300, "bfloat16"),
    ("densenet121", "tensor", 0, 32, 50, "float32"),
    ("bert-large", "tensor", 0, 2048, 80, "float32"),
)
WORKERS = 2
SMALL, SMALL_S, LARGE_S, HUGE_S = 40, 10.0, 30.0, 60.0
DOCUMENT = Path(__file__).parent.parent / "docs" / "search.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEADER = (
    "| step | network | gradients | scope | best rule | plan | bound | gap | seconds | method |\n"
    "|---|---|---:|---|---:|---:|---:|---:|---:|---|"
)


def without_tensors(profile: LayerProfile) -> LayerProfile:
    """Return the layers with one gradient each."""
    layers = [
        Layer(y.name, y.forward_ns, y.backward_ns, y.parameter_bytes, y.dtype)
        for y in profile.layers
    ]
    return replace(profile, layers=tuple(layers))


def steps() -> Iterator[tuple[str, str, Problem]]:
    """Yield the list: name, network, step."""
    for model, by, merged, samples, tflops, dtype in MODELS:
        profile = estimated_profile(model, samples=samples, tflops=tflops, dtype=dtype, by=by)
        if by != "tensor":
            profile = without_tensors(profile)
        if merged:
            profile = profile.merged(-(-len(profile.layers) // merged))
        for network, cost in NETWORKS.items():
            yield f"{model}, {by}s", network, ddp_step(profile, cost)
    yield "made up", "25 GB/s, 20 us", ddp_step(made_up(2000), AlphaBeta(20, 25))


def made_up(count: int) -> LayerProfile:
    """Return many layers of random times and sizes."""
    rng = random.Random(0)
    return LayerProfile(
        tuple(
            Layer(
                f"layer{k}",
                rng.randint(20, 100) * 1000,
                rng.randint(50, 200) * 1000,
                rng.randint(1, 60) * 100_000,
            )
            for k in range(count)
        )
    )


def seconds_for(count: int) -> float:
    """Return the time limit for a number of gradients."""
    return SMALL_S if count <= SMALL else LARGE_S if count <= 1000 else HUGE_S


def best_rule(problem: Problem, scope: Scope) -> int:
    """Return the least makespan of all rules of a scope, with several settings each."""
    rules = Incumbent(problem, scope)
    start(rules, time.monotonic() + 10)
    assert rules.makespan_ns is not None
    return rules.makespan_ns


def search(problem: Problem, scope: Scope, limit_s: float, parts: frozenset[str]) -> Result:
    """Return what the search finds."""
    options = Options(limit_s, WORKERS, 0, parts=parts)
    return Search(problem, scope, "auto", "tasks wait for collectives", options).run()


def row(name: str, network: str, rule_ns: int, result: Result, took: float) -> str:
    """Return a line of the table; times in milliseconds."""
    cells = (
        name,
        network,
        f"{len(result.problem.names):,}",
        result.scope,
        f"{rule_ns / 1e6:.3f}",
        f"{result.makespan_ns / 1e6:.3f}",
        f"{result.lower_bound_ns / 1e6:.3f}",
        "proved" if result.status == "optimal" else f"{100 * result.gap:.2f}%",
        f"{took:.1f}",
        result.method,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="the search for whole steps, measured")
    parser.add_argument("--scope", action="append", choices=SCOPES)
    parser.add_argument("--only", default="", help="steps with this in their name")
    parser.add_argument("--without", action="append", choices=sorted(PARTS), default=[])
    parser.add_argument("--quick", type=float, help="seconds for every search")
    parser.add_argument("--skip-rules", action="store_true", help="do not time the rules")
    parser.add_argument("--write", action="store_true", help="into docs/search.md")
    options = parser.parse_args()
    parts = PARTS - set(options.without)
    lines = [HEADER]
    print(HEADER, flush=True)
    gaps: list[float] = []
    worse = proved = 0
    for name, network, problem in steps():
        if options.only not in name:
            continue
        for scope in map(check_scope, options.scope or SCOPES):
            limit_s = options.quick or seconds_for(len(problem.names))
            # A new problem: nothing that an earlier run left behind may help.
            fresh = Problem(problem.tasks, problem.costs, channels=problem.groups_of_channel)
            begun = time.perf_counter()
            result = search(fresh, scope, limit_s, parts)
            took = time.perf_counter() - begun
            rule_ns = result.makespan_ns if options.skip_rules else best_rule(problem, scope)
            worse += result.makespan_ns > rule_ns
            proved += result.status == "optimal"
            gaps.append(result.gap)
            lines.append(row(name, network, rule_ns, result, took))
            print(lines[-1], flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"\n{len(gaps)} searches, {proved} proved, largest gap {100 * max(gaps):.2f}%, "
        f"average gap {100 * sum(gaps) / len(gaps):.3f}%, worse than a rule: {worse}, "
        f"peak memory {peak} MiB"
    )
    if options.write:
        text = DOCUMENT.read_text()
        before, rest = text.split(BEGIN)
        _, after = rest.split(END)
        table = "\n".join(lines)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
