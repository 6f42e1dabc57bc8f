"""Checking a plan file against its problem, without a solver."""

from __future__ import annotations

from msgspec import UNSET

from commsched.models import Problem, Timeline, evaluate
from commsched.models.errors import PlanError
from commsched.models.units import format_ns, us_from_ns
from commsched.optimizer.bounds import closed_form_bound
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.result import Bound, Status, check_scope, proved_status
from commsched.problems import plan_of, problem_digest
from commsched.problems.schema import PlanFile

UNSTATED = ("", -1, UNSET)
"""Defaults of a plan file's optional fields, none of which is a possible value."""


def verify(problem: Problem, file: PlanFile, path: str) -> list[str]:
    """Check that a plan is for this problem, runs, and does what its file claims.

    Every number of the file is computed anew. A claimed bound is proved anew where that needs no
    solver; where it does, the answer says that it was not.

    Parameters
    ----------
    problem
        The problem.
    file
        The plan file.
    path
        Its name, for messages.

    Returns
    -------
    list of str
        What was checked, a sentence each.

    Raises
    ------
    PlanError
        At the first thing that does not hold.
    """
    digest = problem_digest(problem)
    if file.problem_digest != digest:
        raise PlanError(
            f"{path}: is for another problem: its digest is {file.problem_digest[:19]}..., "
            f"the problem's is {digest[:19]}..."
        )
    done = ["the digest is that of the problem"]
    timeline = evaluate(problem, plan_of(file))
    done.append(
        f"every collective is launched exactly once: {len(timeline.launches)} launches, "
        f"exposed {format_ns(timeline.exposed_ns)}, step {format_ns(timeline.makespan_ns)}"
    )
    claims = _check_claims(file, timeline, path)
    if claims:
        done.append(f"all {claims} numbers that the file states come out the same")
    done.append(_check_bound(problem, file, timeline, path))
    return done


def _check_claims(file: PlanFile, timeline: Timeline, path: str) -> int:
    claims: list[tuple[str, object, object]] = [
        ("makespan_us", file.makespan_us, us_from_ns(timeline.makespan_ns)),
        ("exposed_us", file.exposed_us, us_from_ns(timeline.exposed_ns)),
        ("compute_us", file.compute_us, us_from_ns(timeline.compute_ns)),
        ("launches", file.launches, len(timeline.launches)),
        ("peak_bytes", file.peak_bytes, timeline.peak_bytes),
    ]
    by_names = {launch.names: launch for launch in timeline.launches}
    for number, row in enumerate(file.buckets):
        launch = by_names[tuple(row.names)]
        found = {
            "kind": launch.key.kind,
            "group": launch.key.group,
            "dtype": launch.key.dtype,
            "channel": launch.channel,
            "bytes": launch.bytes,
            "ready_us": us_from_ns(launch.ready_ns),
            "start_us": us_from_ns(launch.start_ns),
            "end_us": us_from_ns(launch.end_ns),
        }
        claims += [
            (f"buckets[{number}].{name}", getattr(row, name), value)
            for name, value in found.items()
        ]
    stated = [claim for claim in claims if claim[1] not in UNSTATED]
    for name, claimed, value in stated:
        if claimed != value:
            raise PlanError(f"{path}: {name} is {claimed!r}, the evaluator gives {value!r}")
    return len(stated)


def _check_bound(problem: Problem, file: PlanFile, timeline: Timeline, path: str) -> str:
    scope = check_scope(file.scope)
    if not isinstance(file.lower_bound_us, int | float):
        return "the file states no lower bound"
    claimed_ns = round(file.lower_bound_us * 1000)
    if claimed_ns > timeline.makespan_ns:
        raise PlanError(
            f"{path}: lower_bound_us is {file.lower_bound_us!r}, above the makespan "
            f"{us_from_ns(timeline.makespan_ns)!r}"
        )
    claimed = Bound(claimed_ns, file.bound_proof)
    launches = len(timeline.launches)
    status = proved_status(timeline, claimed)
    if file.status == Status.OPTIMAL and status is not Status.OPTIMAL:
        raise PlanError(f"{path}: status is 'optimal', but the stated bound is not met")
    exact = why_not_exact(problem, scope) is None
    bound = exact_plan(problem, scope).bound if exact else closed_form_bound(problem)
    if exact and claimed_ns > bound.ns + launches:
        raise PlanError(
            f"{path}: lower_bound_us is {file.lower_bound_us!r}, but a plan with a makespan of "
            f"{us_from_ns(bound.ns)!r} us exists"
        )
    if claimed_ns <= bound.ns + (launches if exact else 0):
        proof = f"the lower bound is proved anew ({bound.proof})"
        return f"{proof}: the plan is optimal" if status is Status.OPTIMAL else proof
    return (
        f"the lower bound was proved by {file.bound_proof or 'the solver'} and is not proved anew "
        f"here; without a solver {format_ns(bound.ns)} is proved ({bound.proof})"
    )
