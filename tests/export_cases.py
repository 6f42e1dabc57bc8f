"""Random steps and plans for the tests of the exports, and what all exports must keep."""

from __future__ import annotations

import random

from strategies import random_affine

from commsched.export import Export
from commsched.models import (
    AlphaBeta,
    Gradient,
    GradientProblem,
    Plan,
    Problem,
    evaluate,
)

FOUR = GradientProblem(
    [
        Gradient("head.weight", 3 * 2**20, 1_000_000),
        Gradient("body.1.weight", 2**20, 2_000_000),
        Gradient("body.0.bias", 2**10, 3_000_000),
        Gradient("body.0.weight", 2**19, 4_000_000),
    ],
    AlphaBeta(alpha_us=100, bandwidth_gb_s=1),
    name="four",
)
THREE_BUCKETS = Plan.of([["head.weight"], ["body.1.weight", "body.0.bias"], ["body.0.weight"]])


def random_step(rng: random.Random, most: int = 12, *, dtypes=("float32",), least: int = 1):
    """Return gradients with dotted names, ties in time, and sizes of whole elements."""
    late = rng.choice((0, 5, 40, 200))
    gradients = [
        Gradient(
            f"layer.{k}.weight",
            4 * rng.randint(least, 12),
            rng.randint(0, late),
            rng.choice(dtypes),
        )
        for k in range(rng.randint(1, most))
    ]
    return GradientProblem(gradients, random_affine(rng), backward_end_ns=late)


def random_in_order(rng: random.Random, problem: Problem) -> Plan:
    """Return a plan whose buckets are contiguous in ready order, launched in it (one key)."""
    names = [problem.names[k] for k in problem.ready_order]
    cuts = sorted(rng.sample(range(1, len(names)), rng.randint(0, len(names) - 1)))
    return Plan.of(names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)], strict=True))


def random_partition(rng: random.Random, problem: Problem) -> Plan:
    """Return any partition within fusion keys, launched as the buckets become complete."""
    place = {k: number for number, k in enumerate(problem.ready_order)}
    buckets = []
    for chain in problem.chains.values():
        own: list[list[int]] = []
        for k in chain:
            if own and rng.random() < 0.6:
                rng.choice(own).append(k)
            else:
                own.append([k])
        buckets += own
    buckets.sort(key=lambda bucket: max(place[k] for k in bucket))
    return Plan.of([problem.names[k] for k in bucket] for bucket in buckets)


def buckets_of(plan: Plan) -> list[set[str]]:
    """Return the buckets as sets, in launch order."""
    return [set(bucket.names) for bucket in plan.buckets]


def check_export(problem: Problem, plan: Plan, found: Export) -> None:
    """Check what holds for every simulated export."""
    assert found.projected is not None
    after = evaluate(problem, found.projected).makespan_ns
    assert found.lost_ns == after - evaluate(problem, plan).makespan_ns
    assert sorted(n for b in found.projected.buckets for n in b.names) == sorted(problem.names)
    if found.exact:
        # Channels do not wait for each other, so only their own order counts.
        assert sorted(map(sorted, buckets_of(plan))) == sorted(
            map(sorted, buckets_of(found.projected))
        )
    else:
        assert found.cannot
    assert found.text
    assert not found.text.endswith("\n")
