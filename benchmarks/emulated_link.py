"""Does a plan gain what was promised? Real models, real DDP, an emulated link, predicted and measured.

Run ``python benchmarks/emulated_link.py`` (it needs the extra ``torch``; about five minutes), with
``--write`` to put the tables and the picture into docs/run.md, or ``--quick`` for a look. Every model is
trained with DDP's defaults, with the best single cap and with the list of the best plan, one after the
other in each round and in turns, so that a busy machine slows all of them alike.

What is predicted comes from steps that ran before, on a link that takes no time; nothing is fitted to
what is measured. Beside it stands the same prediction with the ready times of the very steps that were
measured: what is left there is what the model itself does not know.
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
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import emulated_tables
import torch
import torch.distributed as dist
from emulated_models import MODELS, Made, Pace, training
from torch.nn.parallel import DistributedDataParallel

import commsched
from commsched.models import CostCurve, Gradient, GradientProblem, Plan, evaluate
from commsched.models.errors import CommschedError
from commsched.optimizer import rule
from commsched.optimizer.handy import handy_mib
from commsched.torch import EmulatedLink, capture, check, ddp_kwargs, measure_costs
from commsched.torch.hooks import GradientHooks, StepTimes, trainable_parameters
from commsched.torch.ranks import gathered, world_size

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


class Variant(NamedTuple):
    """A way of setting DDP: its arguments, the plan that it should run, and a model in it."""

    name: str
    plan: Plan
    ddp: DistributedDataParallel
    step: Callable[[], int]


class Timed(NamedTuple):
    """A measured step of a rank, in nanoseconds of ``time.perf_counter_ns()``."""

    start: int
    times: StepTimes
    returned: int
    end: int


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


def settings(problem: GradientProblem) -> dict[str, tuple[Plan, dict[str, Any]]]:
    """Return the plan and the arguments of each variant."""
    found = rule("ddp").knobs[0].best(problem)
    tuning = found.tuning
    assert tuning is not None
    cap = handy_mib(tuning.best.low, tuning.best.high)
    best = commsched.optimize(problem)
    assert best.plan is not None
    return {
        "DDP default": (rule("ddp").make(problem), {}),
        "best single cap": (found.plan, {"bucket_cap_mb": cap}),
        "best plan": (best.plan, ddp_kwargs(best)),
    }


def measured(
    variants: list[Variant], link: EmulatedLink | None, rounds: int
) -> tuple[dict[str, list[Timed]], dict[str, list[tuple[Any, ...]]]]:
    """Return the steps of each variant and what went over the link, in rounds that take turns."""
    starts: dict[str, list[tuple[int, int, int]]] = {variant.name: [] for variant in variants}
    carried: dict[str, list[tuple[Any, ...]]] = {variant.name: [] for variant in variants}
    with ExitStack() as stack:
        hooks = {
            variant.name: stack.enter_context(GradientHooks(trainable_parameters(variant.ddp)))
            for variant in variants
        }
        for number in range(rounds):
            turn = number % len(variants)
            for variant in variants[turn:] + variants[:turn]:
                if link is not None:
                    link.clear()
                if (world_size(None) or 1) > 1:
                    dist.barrier()
                start = time.perf_counter_ns()
                hooks[variant.name].start_step()
                returned = variant.step()
                hooks[variant.name].end_step()
                end = time.perf_counter_ns()
                starts[variant.name].append((start, returned, end))
                carried[variant.name].append(link.launches if link is not None else ())
        found = {
            name: [
                Timed(start, times, returned, end)
                for (start, returned, end), times in zip(starts[name], each.times(), strict=True)
            ]
            for name, each in hooks.items()
        }
    return found, carried


class Step(NamedTuple):
    """A measured step of all ranks: its problem, and what it took after backward and in all."""

    problem: GradientProblem
    exposed_ns: int
    step_ns: int


def joined(steps: list[Timed], names: list[str], known: GradientProblem) -> list[Step]:
    """Return each step over all ranks, which share a clock: the latest of everything counts."""
    found = []
    size = dict(zip(known.names, known.bytes, strict=True))
    cost = known.cost(known.keys[0])
    for ranks in zip(*gathered(steps, None), strict=True):
        zero = min(one.start for one in ranks)
        ready = {
            names[k]: max(one.start - zero + one.times.ready[k] for one in ranks)
            for k in ranks[0].times.ready
        }
        backward = max(one.start - zero + one.times.backward_end for one in ranks)
        gradients = [Gradient(name, size[name], ready[name]) for name in known.names]
        gradients.sort(key=lambda gradient: gradient.ready_ns)
        problem = GradientProblem(gradients, cost, backward_end_ns=backward)
        returned = max(one.returned for one in ranks) - zero
        found.append(Step(problem, returned - backward, max(one.end for one in ranks) - zero))
    return found


def copy_ns_per_byte() -> float:
    """Return what a copy takes here: of a mebibyte at a time, from a bucket to where gradients lie."""
    bucket = torch.ones(2**24)
    gradients = [torch.ones(2**18) for _ in range(64)]
    times = []
    for _ in range(7):
        start = time.perf_counter_ns()
        for number, gradient in enumerate(gradients):
            gradient.copy_(bucket[number * 2**18 : (number + 1) * 2**18])
        times.append((time.perf_counter_ns() - start) / 2**26)
    return statistics.median(times)


def exposed_with_copies(problem: GradientProblem, plan: Plan, ns_per_byte: float) -> float:
    """Return the exposed time if each bucket is copied after its launch and backward, in order.

    That is what DDP does without ``gradient_as_bucket_view``, in the thread that runs backward.
    """
    timeline = evaluate(problem, plan)
    now = float(problem.backward_end_ns or 0)
    for launch in timeline.launches:
        now = max(now, launch.end_ns) + ns_per_byte * launch.bytes
    return now - (problem.backward_end_ns or 0)


def overhead_us(steps: list[Timed], carried: list[tuple[Any, ...]]) -> dict[str, float]:
    """Return what the model does not know, in medians: each launch's hook, its end, DDP's end."""
    late = [launch.end_ns - launch.due_ns for some in carried for launch in some]
    after = [
        one.returned - some[-1].end_ns for one, some in zip(steps, carried, strict=True) if some
    ]
    hook = [
        some[-1].issued_ns - one.start - max(one.times.ready.values())
        for one, some in zip(steps, carried, strict=True)
        if some
    ]
    return {
        name: statistics.median(values) / 1000 if values else 0.0
        for name, values in (("hook", hook), ("wake", late), ("finish", after))
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

    silent, silent_step = ready(at_once)
    recorded = capture(silent, silent_step, steps=max(5, rounds // 2), warmup=3)
    problem = recorded.problem(cost)
    hook = link.hook if link is not None else None
    variants = []
    for name, (plan, kwargs) in settings(problem).items():
        ddp, step = ready(hook, **kwargs)
        for _ in range(WARMUP):
            step()
        variants.append(Variant(name, plan, ddp, step))
    variants.append(Variant("no link", rule("ddp").make(problem), silent, silent_step))
    steps, carried = measured(variants, link, rounds)
    names = list(trainable_parameters(silent))
    rate = 0.0 if views else copy_ns_per_byte()
    base = statistics.median(s.step_ns for s in joined(steps["no link"], names, problem))
    for variant in variants[:-1]:
        own = joined(steps[variant.name], names, problem)
        try:
            buckets = "exact"
            check(variant.ddp, variant.plan, problem)
        except CommschedError as error:
            buckets = str(error)
        exposed = evaluate(problem, variant.plan).exposed_ns
        replayed = [evaluate(step.problem, variant.plan).exposed_ns for step in own]
        yield {
            "model": title,
            "gradients": len(problem.names),
            "mib": sum(problem.bytes) / 2**20,
            "link": link_name,
            "ranks": world_size(None) or 1,
            "views": views,
            "paced": pace is not None,
            "backward_ms": recorded.backward_end_ns / 1e6,
            "variant": variant.name,
            "launches": variant.plan.launches,
            "buckets": buckets,
            "predicted_ms": exposed / 1e6,
            "exposed_ms": statistics.median(step.exposed_ns for step in own) / 1e6,
            "replayed_ms": statistics.median(replayed) / 1e6,
            "error_ms": statistics.median(
                (step.exposed_ns - again) / 1e6 for step, again in zip(own, replayed, strict=True)
            ),
            "copy_gb_s": 1 / rate if rate else None,
            "copied_error_ms": statistics.median(
                (step.exposed_ns - exposed_with_copies(step.problem, variant.plan, rate)) / 1e6
                for step in own
            ),
            "predicted_step_ms": (base + exposed) / 1e6,
            "step_ms": statistics.median(step.step_ns for step in own) / 1e6,
            "each_exposed_ms": [step.exposed_ns / 1e6 for step in own],
            "each_step_ms": [step.step_ns / 1e6 for step in own],
            **overhead_us(steps[variant.name], carried[variant.name]),
        }


def work(folder: Path, rank: int, ranks: int, quick: bool) -> None:
    """Run all cases of one rank; the first rank writes the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks
    )
    rounds = 6 if quick else 20
    rows: list[dict[str, Any]] = []
    for number, (title, make) in enumerate(MODELS.items()):
        if number and (quick or ranks > 1):
            break
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


def run_ranks(ranks: int, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of a run with so many ranks, each a process."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--folder", name, "--ranks", str(ranks)]
        command += ["--quick"] * quick
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
    for name in ("--rank", "--ranks"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        work(given.folder, given.rank, given.ranks, given.quick)
        sys.stdout.flush()
        os._exit(0)  # gloo's threads may still run
    if given.json is not None and given.json.exists():
        rows = json.loads(given.json.read_text())
    else:
        rows = [row for ranks in (1, 2) for row in run_ranks(ranks, given.quick)]
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
