"""A problem's digest: what a plan file names its problem by."""

from __future__ import annotations

import hashlib
import json
from math import gcd
from typing import Any

import msgspec

from commsched.models import Collective, Compute, CostCurve, Gradient, GradientProblem, Problem
from commsched.problems.limit_rows import row_of_limit


def problem_digest(problem: Problem) -> str:
    """Return a SHA-256 over everything that decides what a plan does to the problem.

    It does not depend on formatting, on the order of keys, on how a number or a cost is written
    (``2000``, ``2000.0``, ``2e3``), or on the problem's title. It does depend on the order in which
    tasks are listed, for that breaks ties.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 4, 2000)], AlphaBeta(1, 1))
    >>> problem_digest(problem)[:23]
    'sha256:1eb297eee6d68b96'
    """
    used = sorted({(key.group, key.kind) for key in problem.chains})
    content: dict[str, Any] = {
        "costs": [[group, kind, _cost(problem.costs[group, kind])] for group, kind in used],
        "channels": sorted(problem.channels.items()),
    }
    if isinstance(problem, GradientProblem):
        content["gradients"] = [
            [g.name, g.bytes, g.ready_ns, g.dtype, *_special(g)] for g in problem.gradients or ()
        ]
        content["backward_end_ns"] = problem.backward_end_ns
    else:
        content["tasks"] = [
            [task.name, sorted(set(task.after)), task.duration_ns, task.stream, *_movable(task)]
            if isinstance(task, Compute)
            else [task.name, sorted(set(task.after)), *task.key[:3], task.bytes, *_special(task)]
            for task in problem.tasks
        ]
    if problem.limits:
        content["limits"] = sorted(
            msgspec.json.encode(row_of_limit(limit)).decode() for limit in problem.limits
        )
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _movable(task: Compute) -> list[str]:
    return ["movable"] if task.movable else []


def _special(item: Gradient | Collective) -> list[object]:
    special: list[object] = [item.device, item.sparse] if item.device or item.sparse else []
    if isinstance(item, Collective) and item.hold is not None:
        special.append([item.hold.pool, item.hold.since, sorted(set(item.hold.until))])
    return special


def _cost(curve: CostCurve) -> list[list[str]]:
    rows: list[list[str]] = []
    for piece in curve.pieces:
        common = gcd(piece.intercept, piece.slope, piece.scale)
        values = [str(value // common) for value in (piece.intercept, piece.slope, piece.scale)]
        if not rows or rows[-1][1:] != values:  # a point in the middle of a line adds nothing
            rows.append([str(piece.first_bytes), *values])
    return rows
