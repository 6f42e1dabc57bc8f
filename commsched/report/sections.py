"""The texts at the top of a report: what was proved, how much there is to gain, what to paste."""

from __future__ import annotations

from commsched.models.units import format_bytes, format_ns
from commsched.optimizer import Result, Status
from commsched.optimizer.comparison import percent
from commsched.report.contents import Contents
from commsched.report.texts import escaped, items, line, tag

MOST_PASTED = 500_000
"""Longer settings are not put into the page."""
STATUS = {
    Status.OPTIMAL: "Proved optimal",
    Status.FEASIBLE: "Best known, not proved optimal",
    Status.INFEASIBLE: "Proved impossible",
    Status.UNKNOWN: "No plan found",
}


def source_line(contents: Contents) -> str:
    """Return what was read, in HTML."""
    problem, recorded = contents.loaded.problem, contents.loaded.recorded
    count, total = len(problem.names), format_bytes(sum(problem.bytes))
    noun = "gradient" if problem.gradients is not None else "collective"
    what = "backward" if problem.gradients is not None else "compute"
    parts = [f"{count:,} {noun}{'s' * (count != 1)}", total]
    if problem.gradients is None:
        parts.append(f"{len(problem.tasks):,} tasks")
    parts.append(f"{what} ends at {format_ns(problem.compute_ns)}")
    if recorded is not None and recorded.step_name:
        parts.append(recorded.step_name)
    parts.append(f"read from {'standard input' if contents.file == '-' else contents.file}")
    return escaped(" · ".join(parts))


def verdict_section(contents: Contents) -> str:
    """Return the verdict with everything that was proved, and what is doubtful, in HTML."""
    result = contents.result
    badge = tag("span", STATUS[result.status], class_=f"badge {result.status}")
    sentence = contents.verdict[:1].upper() + contents.verdict[1:]
    html = [
        tag("p", badge, class_="status"),
        tag("p", f"{escaped(sentence)}.", class_="sentence"),
        _tiles(contents),
        tag("dl", "".join(_proof(result)), class_="proof"),
    ]
    warned = warnings(contents)
    if warned:
        heading = tag("h3", f"Doubts ({len(warned)})", id="doubts")
        html.append(tag("aside", heading + items(warned), class_="doubts", aria_label="Doubts"))
    return "\n".join(html)


def _tiles(contents: Contents) -> str:
    """Return the step today, at best and at least."""
    result = contents.result
    found: list[tuple[str, str, str]] = []
    now = contents.today
    if now is not None:
        times = f"{format_ns(now.timeline.exposed_ns)} exposed, {_launches(now.launches)}"
        name = "today" if now.name == "recorded" else "by default"
        found.append((f"Step {name}", format_ns(now.timeline.makespan_ns, 4), times))
    if result.plan is not None:
        times = f"{format_ns(result.exposed_ns)} exposed, {_launches(result.plan.launches)}"
        name = "Optimum" if result.status is Status.OPTIMAL else "Best known plan"
        found.append((name, format_ns(result.makespan_ns, 4), times))
    compute_ns = contents.loaded.problem.compute_ns
    least = max(0, result.lower_bound_ns - compute_ns)
    proved = f"no plan is shorter: {format_ns(least)} stay exposed"
    if result.status is Status.INFEASIBLE:
        proved = "of the step without its limits"
    found.append(("Lower bound", format_ns(result.lower_bound_ns, 4), proved))
    if now is not None and result.plan is not None and not now.timeline.broken:
        gain = now.timeline.makespan_ns - result.makespan_ns
        if gain > now.launches:
            share = percent(gain, max(1, now.timeline.makespan_ns))
            found.append(("Gain", format_ns(gain), f"{share} of the step"))
        else:
            found.append(("Gain", "none", "nothing to tune"))
    if contents.slowed is not None and contents.slowed.stated:
        for row in contents.slowed.rows:
            kept, factor = row.kept, float(row.slowdown.factors[0])
            times = f"{format_ns(kept.exposed_ns)} exposed, {format_ns(kept.nominal.exposed_ns)} without"
            found.append((f"Slowed {factor:g}x", format_ns(kept.makespan_ns, 4), times))
    if contents.overheads is not None and contents.overheads.kept is not None:
        with_them = contents.overheads.kept
        times = (
            f"{format_ns(with_them.exposed_ns)} exposed, "
            f"{format_ns(with_them.nominal.exposed_ns)} without"
        )
        found.append(("With overheads", format_ns(with_them.makespan_ns, 4), times))
    tiles = [
        tag("div", tag("dt", escaped(name)) + tag("dd", tag("b", escaped(value)) + escaped(note)))
        for name, value, note in found
    ]
    return tag("dl", "".join(tiles), class_="tiles")


def _launches(count: int) -> str:
    return f"{count:,} launch{'es' * (count != 1)}"


def _proof(result: Result) -> list[str]:
    """Return status, bound, gap and method as terms and their meaning."""
    rows = [("Status", str(result.status)), ("Plans searched", f"scope {result.scope}")]
    if result.plan is not None:
        rows.append(("Found by", f"{result.method}: {result.reason}"))
    elif result.reason:
        rows.append(("Reason", result.reason))
    rows.append(("Bound", f"{format_ns(result.lower_bound_ns, 5)} by {result.bound.proof}"))
    if result.plan is not None:
        gap = f"{100 * result.gap:.2f}% of the step"
        if result.status is Status.OPTIMAL:
            slack = f"{result.slack_ns} ns, which is rounding" if result.slack_ns else "none"
            gap = f"none beyond rounding ({slack})" if result.slack_ns else "none"
        rows.append(("Gap", gap))
    return [tag("div", tag("dt", escaped(k)) + tag("dd", escaped(v))) for k, v in rows]


def warnings(contents: Contents) -> list[str]:
    """Return what a reader must not overlook."""
    found: list[str] = []
    recorded, now = contents.loaded.recorded, contents.today
    if recorded is not None:
        found += [check.text for check in recorded.report.checks if not check.passed]
    if now is not None and now.timeline.broken:
        found.append(f"what runs today breaks a limit: {now.timeline.broken[0]}")
    if contents.result.plan is not None:
        launch = contents.result.timeline.extrapolated
        if launch is not None:
            limit = contents.loaded.problem.cost(launch.key).measured_to
            found.append(
                f"a launch of {format_bytes(launch.bytes)} is priced by the line through the last "
                f"points: {launch.key.kind} in group {launch.key.group!r} was measured up to "
                f"{format_bytes(limit or 0)}"
            )
    if contents.result.status is Status.FEASIBLE:
        found.append("the search ended before plan and bound met: a better plan may exist")
        found += _better_caps(contents)
    return found


def _better_caps(contents: Contents) -> list[str]:
    """Return what was found by the way that is better than the best plan that the search knew."""
    curves = [curve for curve in (contents.curve, *contents.other_curves) if curve is not None]
    best = min(curves, key=lambda curve: curve.best.makespan_ns, default=None)
    result = contents.result
    if best is None or best.best.makespan_ns >= result.makespan_ns - best.best.launches:
        return []
    less = format_ns(result.makespan_ns - best.best.makespan_ns)
    return [
        f"{best.title} with {best.setting} makes the step {less} shorter than the best plan that the "
        "search found; a longer --time-limit may find it, too"
    ]


def settings_section(contents: Contents) -> str:
    """Return the settings to paste, what they lose and what they need, in HTML."""
    used, comparison = contents.framework, contents.comparison
    if used is None or comparison is None:
        return ""
    html: list[str] = []
    if used.export is None:
        html.append(tag("p", f"{escaped(used.title)} cannot run the best plan: ", class_="lead"))
        html.append(tag("p", escaped(used.why_not)))
    else:
        found = used.export
        if used.why_not:
            html.append(tag("p", escaped(f"{used.why_not}."), class_="soft"))
        html.append(tag("p", escaped(_what_runs(contents)), class_="lead"))
        if len(found.text) > MOST_PASTED:
            how = "too long for this page: commsched export writes them"
            html.append(tag("p", escaped(f"The settings are {how}.")))
        else:
            html.append(pasted(found.text, found.title))
        if found.cannot:
            html.append(tag("h3", "Cannot be expressed") + items(found.cannot))
        if found.needs:
            html.append(tag("h3", "Holds only with") + items(found.needs))
    own = [
        (name, best)
        for name, best in comparison.best_settings.items()
        if name in (f"{used.name}-best", f"{used.name}-best-pair")
    ]
    if own:
        html.append(tag("h3", "With fewer settings"))
    for name, best in own:
        row = comparison.row(name)
        over = row.over_optimal_ns
        price = f"costs {format_ns(over)} more than the best plan" if over > 0 else "costs no more"
        values = f"{best.range_text[0].upper()}{best.range_text[1:]}"
        html.append(pasted(best.setting, f"{used.title} with fewer settings"))
        text = f"It {price}, with {_launches(row.launches)}. {values}."
        html.append(tag("p", escaped(text), class_="soft"))
    how = f"commsched plan {contents.file} -o plan.json, then commsched export plan.json"
    html.append(tag("p", escaped(f"Other frameworks: {how}."), class_="soft"))
    return "\n".join(html)


def _what_runs(contents: Contents) -> str:
    """Return what a framework runs with its settings."""
    used = contents.framework
    assert used is not None
    found = used.export
    assert found is not None
    if found.projected is None or found.lost_ns is None:
        return (
            f"{found.title}: not simulated; what it makes of these settings, and what that loses, "
            "is not known."
        )
    what = "exactly the best plan" if found.exact else _launches(found.projected.launches)
    if found.lost_ns == 0:
        return f"{found.title} runs {what}; nothing is lost."
    word = "longer" if found.lost_ns > 0 else "shorter"
    return (
        f"{found.title} runs {what}; the step is {format_ns(abs(found.lost_ns))} {word} "
        "than with the best plan."
    )


def pasted(text: str, what: str) -> str:
    """Return lines to paste with a button that copies them."""
    lines = "\n".join(line(one, MOST_PASTED) for one in text.split("\n"))
    code = tag("code", escaped_lines(lines))
    button = tag("button", "Copy", type_="button", class_="copy", aria_label=f"Copy: {what}")
    return tag("div", tag("pre", code, tabindex="0") + button, class_="paste")


def escaped_lines(text: str) -> str:
    """Return lines that stand for themselves in HTML."""
    return "\n".join(escaped(one, MOST_PASTED) for one in text.split("\n"))
