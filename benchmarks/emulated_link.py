"""Does a plan gain what was promised? Real models, real DDP, an emulated link, predicted and measured.

Run ``python benchmarks/emulated_link.py`` (it needs the extra ``torch``; about a quarter of an hour on a
quiet machine), with ``--write`` to put the tables and the picture into docs/run.md, or ``--quick`` for a
look. Every model is trained with DDP's defaults, with the best single cap, with the best plan and with
the plan that ``tune`` takes, one after the other in each round and in turns, so that a busy machine
slows all of them alike; what other programs took meanwhile is measured and stated.

What is predicted comes from steps that ran before, on a link that takes no time, and from overheads that
were measured by themselves; nothing is fitted to what is measured. Beside it stands the same prediction
with the ready times of the very steps that were measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import emulated_tables
import torch
import torch.distributed as dist
from emulated_models import MODELS, Made, Pace, training
from emulated_run import Others, Variant, joined, measured, spread_row, with_link
from emulated_tables import CAP, DEFAULT, FEWEST, PLAN
from torch.nn.parallel import DistributedDataParallel

import commsched
from commsched.models import AlphaBeta, CostCurve, GradientProblem, Plan, evaluate
from commsched.models.errors import CommschedError
from commsched.models.overheads import Overheads, play_overheads
from commsched.optimizer import rule
from commsched.optimizer.handy import handy_mib
from commsched.optimizer.overheads import WITHIN, optimize_overheads
from commsched.torch import EmulatedLink, check, ddp_kwargs, measure_costs, measure_overheads
from commsched.torch.capturing import captured
from commsched.torch.hooks import trainable_parameters
from commsched.torch.ranks import world_size
from commsched.torch.tuning import cases_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "run.md"
PICTURE = PAGE.parent / "measured.png"
MARKS = ("<!-- emulated_link: begin -->", "<!-- emulated_link: end -->")
LINKS = {
    "10 GbE, 16 ranks (908 us, 1.35 GB/s)": (908.1, 1.352),
    "slow start (5 ms, 1 GB/s)": (5000, 1.0),
    "narrow (0.5 ms, 0.3 GB/s)": (500, 0.3),
}
SLOW_LINKS = {
    "slow (10 ms, 0.1 GB/s)": (10_000, 0.1),
    "slower start (30 ms, 0.2 GB/s)": (30_000, 0.2),
}
"""For two ranks, whose gradients gloo averages meanwhile: it must be faster than the link."""
GLOO = "gloo over loopback"
SIZES = [4 << k for k in range(10, 24, 2)]
WARMUP = 3


def at_once(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a bucket as it is: a link that takes no time."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


at_once.__annotations__.clear()  # DDP would compare these texts with classes


def wrapped(
    made: Made, hook: Callable[..., Any] | None, **kwargs: object
) -> DistributedDataParallel:
    """Return a copy of a model in DDP, with a communication hook."""
    ddp = DistributedDataParallel(copy.deepcopy(made.model), **kwargs)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def settings(
    problem: GradientProblem, terms: Overheads, cases: tuple[GradientProblem, ...]
) -> dict[str, tuple[Plan, dict[str, Any]]]:
    """Return the plan and the arguments of each variant."""
    found = rule("ddp").knobs[0].best(problem)
    tuning = found.tuning
    assert tuning is not None
    cap = handy_mib(tuning.best.low, tuning.best.high)
    best = commsched.optimize(problem)
    assert best.plan is not None
    spare = optimize_overheads(problem, terms, slack=True, within=WITHIN, cases=cases)
    return {
        DEFAULT: (rule("ddp").make(problem), {}),
        CAP: (found.plan, {"bucket_cap_mb": cap}),
        FEWEST: (best.plan, ddp_kwargs(best)),
        PLAN: (spare.plan, ddp_kwargs(spare)),
    }


def run_case(
    title: str,
    made: Made,
    cost: CostCurve,
    link: EmulatedLink | None,
    link_name: str,
    rounds: int,
    views: bool = True,
    pace: Pace | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each variant of a model on a link; without a link on the process group."""

    def ready(
        hook: Callable[..., Any] | None, **kwargs: object
    ) -> tuple[DistributedDataParallel, Any]:
        ddp = wrapped(made, hook, gradient_as_bucket_view=views, **kwargs)
        if pace is not None:
            pace.apply(ddp)
        return ddp, training(ddp, made.batch, pace)

    terms = with_link(measure_overheads(made.model, views=views).overheads, link, pace is not None)
    silent, silent_step = ready(at_once)
    found = captured(
        silent,
        silent_step,
        steps=max(5, rounds // 2),
        warmup=WARMUP,
        restore=False,
        group=None,
        name="",
    )
    problem = found.recorded.problem(cost)
    hook = link.hook if link is not None else None
    variants = []
    for name, (plan, kwargs) in settings(problem, terms, cases_of(problem, found, cost)).items():
        ddp, step = ready(hook, **kwargs)
        for _ in range(WARMUP):
            step()
        variants.append(Variant(name, plan, ddp, step))
    default = rule("ddp").make(problem)
    variants.append(Variant("no link", default, silent, silent_step))
    if pace is not None:
        pace.missed()
    others = Others()
    steps = measured(variants, link, rounds)
    busy = others.share()
    missed = None if pace is None else pace.missed()
    names = list(trainable_parameters(silent))
    base = statistics.median(s.step_ns for s in joined(steps["no link"], names, problem))
    nothing = GradientProblem(
        problem.gradients or (), AlphaBeta(0, 1e6), backward_end_ns=problem.compute_ns
    )
    silent_ns = play_overheads(nothing, default, terms).makespan_ns
    for variant in variants[:-1]:
        own = joined(steps[variant.name], names, problem)
        try:
            buckets = "exact"
            check(variant.ddp, variant.plan, problem)
        except CommschedError as error:
            buckets = str(error)
        bare = evaluate(problem, variant.plan).exposed_ns
        full = play_overheads(problem, variant.plan, terms)
        again = [play_overheads(step.problem, variant.plan, terms) for step in own]
        errors = [step.exposed_ns - one.waited_ns for step, one in zip(own, again, strict=True)]
        before = [
            step.exposed_ns - one.nominal.exposed_ns for step, one in zip(own, again, strict=True)
        ]
        yield {
            "model": title,
            "gradients": len(problem.names),
            "link": link_name,
            "ranks": world_size(None) or 1,
            "views": views,
            "paced": pace is not None,
            "variant": variant.name,
            "launches": variant.plan.launches,
            "buckets": buckets,
            "terms": {name: float(value) for name, value in terms.as_row().items()},  # type: ignore[arg-type]
            "others": busy,
            "missed": missed,
            "bare_ms": bare / 1e6,
            "full_ms": full.waited_ns / 1e6,
            "replayed_ms": statistics.median(one.waited_ns for one in again) / 1e6,
            "error_before_ms": statistics.median(before) / 1e6,
            "error_ms": statistics.median(errors) / 1e6,
            "bare_step_ms": (base + bare) / 1e6,
            "full_step_ms": (base + full.makespan_ns - silent_ns) / 1e6,
            **spread_row("exposed", [step.exposed_ns / 1e6 for step in own]),
            **spread_row("step", [step.step_ns / 1e6 for step in own]),
            "each_exposed_ms": [step.exposed_ns / 1e6 for step in own],
            "each_step_ms": [step.step_ns / 1e6 for step in own],
        }


def work(folder: Path, rank: int, ranks: int, quick: bool, only: str) -> None:
    """Run all cases of one rank; the first rank writes the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks
    )
    rounds = 6 if quick else 20
    rows: list[dict[str, Any]] = []
    for number, (title, make) in enumerate(MODELS.items()):
        if number and ((quick and not only) or ranks > 1):
            break
        if only and only.lower() not in title.lower():
            continue
        made = make()
        pace = Pace(made)
        links = LINKS if ranks == 1 else SLOW_LINKS
        for name, (alpha, bandwidth) in links.items():
            # The first model also runs at the machine's own pace, and with DDP's copies.
            ways: list[dict[str, Any]] = [{"pace": pace}]
            if not number:
                ways.append({})
                if ranks == 1 and name == next(iter(LINKS)):
                    ways.append({"pace": pace, "views": False})
            for way in ways:
                with EmulatedLink(alpha, bandwidth) as link:
                    add(rows, run_case(title, made, link.cost, link, name, rounds, **way), rank)
        if ranks > 1:
            cost = measure_costs(SIZES).curve
            for way in ({"pace": pace}, {}):
                add(rows, run_case(title, made, cost, None, GLOO, rounds, **way), rank)
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows))
    dist.barrier()


def add(rows: list[dict[str, Any]], more: Iterator[dict[str, Any]], rank: int) -> None:
    """Add rows, and show them as they come."""
    for row in more:
        rows.append(row)
        if rank == 0:
            print(emulated_tables.line(row), flush=True)


def run_ranks(ranks: int, quick: bool, only: str) -> list[dict[str, Any]]:
    """Return the rows of a run with so many ranks, each a process."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--folder", name, "--ranks", str(ranks)]
        command += ["--only", only, *["--quick"] * quick]
        processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(ranks)]
        try:
            failed = any(process.wait(timeout=3600) for process in processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed:
            raise SystemExit("a rank failed")
        return json.loads((Path(name) / "rows.json").read_text())


def main() -> None:
    """Measure, print the tables, and write them into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/run.md")
    parser.add_argument("--quick", action="store_true", help="one model, few steps")
    parser.add_argument("--json", type=Path, help="write the rows there, or read them if it exists")
    parser.add_argument("--only", default="", help="only models whose name has this in it")
    for name in ("--rank", "--ranks"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        work(given.folder, given.rank, given.ranks, given.quick, given.only)
        sys.stdout.flush()
        os._exit(0)  # gloo's threads may still run
    if given.json is not None and given.json.exists():
        rows = json.loads(given.json.read_text())
    else:
        rows = [row for ranks in (1, 2) for row in run_ranks(ranks, given.quick, given.only)]
        if given.json is not None:
            given.json.write_text(json.dumps(rows))
    text = emulated_tables.tables(rows)
    print(text)
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        begin, end = (re.escape(mark) for mark in MARKS)
        new = f"{MARKS[0]}\n\n{text}\n\n{MARKS[1]}"
        page = re.sub(f"{begin}.*{end}", lambda _: new, page, flags=re.DOTALL)
        PAGE.write_text(page, encoding="utf-8")
        emulated_tables.picture(rows, PICTURE)


if __name__ == "__main__":
    main()
