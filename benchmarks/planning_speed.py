"""How long planning takes: the exact O(n) recurrence beside an O(n^2) merge heuristic.

Run it with ``make bench`` or ``python benchmarks/planning_speed.py``. For each size the two are timed in
turns in one process, so that a slow machine slows both alike; the table shows the median of several
runs and the peak of the memory that Python allocated. The merge heuristic is MG-WFBP's greedy rule as
its code does it (a full recomputation of all start times after every merge), transcribed from
github.com/HKBU-HPML/MG-WFBP, distributed_optimizer.py; beyond 3,000 gradients it would take minutes.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import commsched
from commsched.models import GradientProblem
from commsched.models.timeline import play

SIZES = (161, 1_000, 10_000, 100_000)
MERGE_LIMIT = 3_000
ALPHA_US, BANDWIDTH_GB_S = 80, 25


def gradients(count: int, seed: int = 0) -> list[commsched.Gradient]:
    """Return gradients as a model lists them: the last layer is ready first, 100 us apart on average."""
    rng = random.Random(seed)
    ready = sorted((rng.randint(0, count * 100_000) for _ in range(count)), reverse=True)
    return [
        commsched.Gradient(f"layer{k}.weight", rng.randint(1, 1_000_000) * 4, ready_ns)
        for k, ready_ns in enumerate(ready)
    ]


def merge_heuristic(problem: GradientProblem) -> commsched.Plan:
    """Return MG-WFBP's buckets; see the module's docstring."""
    order = problem.ready_order
    alpha = ALPHA_US * 1000.0
    beta = 1 / BANDWIDTH_GB_S
    ready = [float(problem.ready_ns[k]) for k in order]
    size = [float(problem.bytes[k]) for k in order]
    count = len(order)

    def lengths_and_starts() -> tuple[list[float], list[float]]:
        length = [alpha + beta * s if s else 0.0 for s in size]
        start = [ready[0]]
        for k in range(1, count):
            start.append(max(start[-1] + length[k - 1], ready[k]))
        return length, start

    length, start = lengths_and_starts()
    ends = []
    for k in range(count - 1):
        closes = True
        if ready[k + 1] < start[k] + length[k]:
            closes = not (start[k] > ready[k + 1] or ready[k + 1] - start[k] < alpha)
        if closes:
            ends.append(k + 1)
        else:
            size[k + 1] += size[k]
            size[k] = 0.0
            length, start = lengths_and_starts()
    ends.append(count)
    names = [problem.names[k] for k in order]
    return commsched.Plan.of(names[i:j] for i, j in zip([0, *ends], ends, strict=False))


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    gc.collect()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def peak_mib(call: Callable[[], object]) -> float:
    """Return the most memory that Python allocated during a call, in MiB."""
    gc.collect()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="time planning by the library call")
    parser.add_argument("--runs", type=int, default=15, help="runs a size (fewer for the largest)")
    runs = parser.parse_args().runs
    curve = commsched.AlphaBeta(ALPHA_US, BANDWIDTH_GB_S)
    print(
        f"{'gradients':>9}  {'build':>9}  {'optimize':>9}  {'per gradient':>12}  {'memory':>8}"
        f"  {'merge':>9}  {'merge/optimize':>14}  {'merge over optimum':>18}"
    )
    for count in SIZES:
        listed = gradients(count)
        build: list[float] = []
        solve: list[float] = []
        merge: list[float] = []
        for _ in range(runs if count < 100_000 else max(5, runs // 3)):
            build.append(seconds(lambda g=listed: commsched.gradient_problem(g, curve)))
            # A new problem each time: nothing that an earlier run left behind may help.
            fresh = commsched.gradient_problem(listed, curve)
            solve.append(seconds(lambda p=fresh: commsched.optimize(p)))
            if count <= MERGE_LIMIT and len(merge) < 5:
                fresh = commsched.gradient_problem(listed, curve)
                merge.append(seconds(lambda p=fresh: merge_heuristic(p)))
        problem = commsched.gradient_problem(listed, curve)
        memory = peak_mib(lambda p=problem: commsched.optimize(p))
        took = statistics.median(solve)
        text = (
            f"{count:>9,}  {1e3 * statistics.median(build):>6.2f} ms  {1e3 * took:>6.2f} ms"
            f"  {1e9 * took / count:>9.0f} ns  {memory:>4.1f} MiB"
        )
        if merge:
            slow = statistics.median(merge)
            best = commsched.optimize(problem).makespan_ns
            over = play(problem, merge_heuristic(problem)).makespan_ns / best - 1
            text += f"  {1e3 * slow:>6.1f} ms  {slow / took:>13.0f}x  {100 * over:>17.3f}%"
        print(text, flush=True)


if __name__ == "__main__":
    main()
