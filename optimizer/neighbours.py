"""Plans that are one step away from a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commsched.models import Bucket, FusionKey, Plan, Problem


def neighbours(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Yield the plans of scope in-order that are one step away from one.

    Buckets that follow each other within a fusion key are merged or exchange members, buckets are
    split, and launches of different keys swap places.

    Parameters
    ----------
    problem
        The step.
    plan
        A plan of scope in-order for it, without chunks.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.003, 1))
    >>> [[b.names for b in p.buckets] for p in neighbours(problem, Plan.of([["b"], ["a"]]))]
    [[('b', 'a')], [('b', 'a')]]
    """
    rank = {problem.names[k]: place for place, k in enumerate(problem.ready_order)}
    buckets = plan.buckets
    key_of = dict(zip(problem.names, problem.keys, strict=True))
    following: dict[FusionKey, int] = {}
    for number in reversed(range(len(buckets))):
        key = key_of[buckets[number].names[0]]
        names = sorted(buckets[number].names, key=rank.__getitem__)
        if key in following:
            other = following[key]
            more = sorted(buckets[other].names, key=rank.__getitem__)
            joined = [*names, *more]
            yield _replaced(plan, {number: joined, other: []})
            yield _replaced(plan, {number: [], other: joined})
            for width in {1, max(1, len(names) // 2)} if len(names) > 1 else ():
                cut = len(names) - width
                yield _replaced(plan, {number: names[:cut], other: joined[cut:]})
            for width in {1, max(1, len(more) // 2)} if len(more) > 1 else ():
                cut = len(names) + width
                yield _replaced(plan, {number: joined[:cut], other: joined[cut:]})
        for cut in sorted({1, len(names) // 2, len(names) - 1} - {0, len(names)}):
            yield _replaced(plan, {number: names[:cut]}, (number, names[cut:]))
        if number and key_of[buckets[number - 1].names[0]] != key:
            swapped = list(buckets)
            swapped[number - 1 : number + 1] = swapped[number - 1 : number + 1][::-1]
            yield Plan(tuple(swapped), plan.orders)
        following[key] = number


def _replaced(
    plan: Plan,
    changes: dict[int, list[str]],
    extra: tuple[int, Sequence[str]] | None = None,
) -> Plan:
    """Return a plan with other members in some buckets, and one more bucket after another."""
    buckets: list[Bucket] = []
    for number, bucket in enumerate(plan.buckets):
        names = changes.get(number)
        if names is None:
            buckets.append(bucket)
        elif names:
            buckets.append(Bucket(tuple(names), bucket.not_before_ns))
        if extra is not None and extra[0] == number:
            buckets.append(Bucket(tuple(extra[1]), bucket.not_before_ns))
    return Plan(tuple(buckets), plan.orders)
