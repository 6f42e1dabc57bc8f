"""What ``--json`` prints: plain data with fixed keys that scripts rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from commsched.export import ddp_settings
from commsched.export.ddp import MIN_TORCH
from commsched.models import Plan, Problem, Timeline, launch_exposures
from commsched.models.errors import NotApplicableError
from commsched.models.units import us_from_ns
from commsched.optimizer import BestSetting, Comparison, LimitPrice, Result, Row
from commsched.problems import RecordedStep, Recording, problem_digest
from commsched.problems.schema import PLAN_FORMAT, VERSION


def timeline_document(problem: Problem, timeline: Timeline) -> dict[str, Any]:
    """Return a timeline: times in microseconds, buckets in order of start."""
    buckets = []
    for launch, exposure in zip(timeline.launches, launch_exposures(timeline), strict=True):
        row: dict[str, Any] = {
            "names": list(launch.names),
            "kind": launch.key.kind,
            "group": launch.key.group,
            "dtype": launch.key.dtype,
            "bytes": launch.bytes,
            "ready_us": us_from_ns(launch.ready_ns),
            "start_us": us_from_ns(launch.start_ns),
            "end_us": us_from_ns(launch.end_ns),
            "channel": launch.channel,
            "exposed_us": us_from_ns(exposure.exposed_ns),
            "reason": str(exposure.reason),
        }
        if launch.chunks:
            row["chunks"] = [None if chunk is None else list(chunk) for chunk in launch.chunks]
        if launch.not_before_ns:
            row["not_before_us"] = us_from_ns(launch.not_before_ns)
        buckets.append(row)
    orders = {stream: list(names) for stream, names in timeline.plan.orders.items()}
    return {
        "problem": problem.name,
        "problem_digest": problem_digest(problem),
        "exposed_us": us_from_ns(timeline.exposed_ns),
        "makespan_us": us_from_ns(timeline.makespan_ns),
        "compute_us": us_from_ns(timeline.compute_ns),
        "communication_us": us_from_ns(timeline.communication_ns),
        "peak_bytes": timeline.peak_bytes,
        "launches": len(timeline.launches),
        "buckets": buckets,
        **({"orders": orders} if orders else {}),
    }


def plan_document(result: Result, prices: Sequence[LimitPrice] = ()) -> dict[str, Any]:
    """Return a result and its limits' prices; with a plan in it this is a valid plan file."""
    document: dict[str, Any] = {
        "format": PLAN_FORMAT,
        "version": VERSION,
        "status": str(result.status),
        "method": result.method,
        "reason": result.reason,
        "scope": result.scope,
        "lower_bound_us": us_from_ns(result.lower_bound_ns),
        "bound_proof": result.bound.proof,
        "gap": result.gap,
    }
    if result.plan is not None:
        document["slack_us"] = us_from_ns(result.slack_ns)
        document.update(timeline_document(result.problem, result.timeline))
        document.update(settings_document(result.problem, result.plan))
    if prices:
        document["limit_prices"] = [
            {
                "limit": price.label,
                "least_us": us_from_ns(price.least_ns),
                "most_us": us_from_ns(price.most_ns),
            }
            for price in prices
        ]
    return document


def settings_document(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the settings with which frameworks run a plan; empty where none can."""
    try:
        ddp = ddp_settings(problem, plan)
    except NotApplicableError:
        return {}
    caps = list(ddp.bucket_cap_mb_list)
    return {"settings": {"ddp": {"bucket_cap_mb_list": caps, "min_torch": MIN_TORCH}}}


def best_setting_document(found: BestSetting) -> dict[str, Any]:
    """Return the best setting of a rule; ranges are in the knob's unit, null is no end."""
    document: dict[str, Any] = {"setting": found.setting, "text": found.range_text}
    if found.tuning is not None:
        best = found.tuning.best
        document |= {
            "best": [best.low, best.high],
            "best_elsewhere": [list(span) for span in found.tuning.equal_elsewhere],
            "within_1_percent": list(found.tuning.flat),
            "within_1_percent_elsewhere": [list(span) for span in found.tuning.flat_elsewhere],
            "plans_visited": len(found.tuning.ranges),
        }
    return document


def comparison_document(
    comparison: Comparison, verdict: str, today: Row | None = None
) -> dict[str, Any]:
    """Return a comparison: the rules best first, the optimum, the bound, and what runs today."""
    return compared_document(comparison.result) | {
        "optimal": comparison.optimal.record(),
        "today": None if today is None else today.record(),
        "rows": [row.record() for row in comparison.rows],
        "skipped": [{"name": name, "reason": reason} for name, reason in comparison.skipped],
        "best_settings": {
            name: best_setting_document(found) for name, found in comparison.best_settings.items()
        },
        "verdict": verdict,
    }


def compared_document(result: Result) -> dict[str, Any]:
    """Return a comparison with nothing in it: all that there is where the search found no plan."""
    return {
        "problem": result.problem.name,
        "problem_digest": problem_digest(result.problem),
        "scope": result.scope,
        "status": str(result.status),
        "method": result.method,
        "lower_bound_us": us_from_ns(result.lower_bound_ns),
        "compute_us": us_from_ns(result.problem.compute_ns),
        "optimal": None,
        "today": None,
        "rows": [],
        "skipped": [],
        "best_settings": {},
        "verdict": None,
    }


def import_document(recorded: Recording) -> dict[str, Any]:
    """Return what was read from a recording: kept, dropped, assumed, checked, and its launches."""
    report = recorded.report
    document: dict[str, Any] = {
        "source": report.source,
        "step": recorded.step_name,
        "events_read": report.events_read,
        "kept": dict(report.kept),
        "dropped": dict(report.dropped),
        "assumptions": list(report.assumptions),
        "findings": list(report.findings),
        "checks": [{"text": check.text, "passed": check.passed} for check in report.checks],
        "launches": [
            {
                "names": list(launch.names),
                "kind": launch.kind,
                "group": launch.group,
                "dtype": launch.dtype,
                "bytes": launch.bytes,
                "issued_us": us_from_ns(launch.issued_ns),
                "start_us": None if launch.start_ns is None else us_from_ns(launch.start_ns),
                "end_us": None if launch.end_ns is None else us_from_ns(launch.end_ns),
                "exact": launch.exact,
            }
            for launch in recorded.launches
        ],
    }
    if isinstance(recorded, RecordedStep):
        document["gradients"] = len(recorded.gradients)
        document["backward_end_us"] = us_from_ns(recorded.backward_end_ns)
        return document
    document["tasks"] = len(recorded.tasks)
    document["ranks"] = dict(recorded.ranks)
    document["end_us"] = None if recorded.end_ns is None else us_from_ns(recorded.end_ns)
    return document


def json_bytes(document: dict[str, Any]) -> bytes:
    r"""Return a document as readable JSON that ends in a line break.

    Names of files need not be UTF-8; what JSON cannot hold of them is written as in messages.

    Examples
    --------
    >>> print(json_bytes({"file": "caf\udce9.json"}).decode(), end="")
    {
     "file": "caf\\udce9.json"
    }
    """
    try:
        encoded = msgspec.json.encode(document)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(document)))
    return msgspec.json.format(encoded, indent=1) + b"\n"


def _encodable(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return plain data in which every text can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(one) for one in value]
    return value
