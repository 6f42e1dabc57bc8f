"""The tables and lists further down in a report: all rules, how stable the plan is, what was read."""

from __future__ import annotations

from fractions import Fraction

from commsched.models import Limit
from commsched.models.timeline import play
from commsched.models.units import format_bytes, format_ns
from commsched.optimizer import Row
from commsched.optimizer.comparison import percent
from commsched.optimizer.parametric import Knob
from commsched.optimizer.sensitivity import Sensitivity, Span
from commsched.output import against_recording
from commsched.problems import problem_digest
from commsched.report.contents import Contents
from commsched.report.data import network_values
from commsched.report.stability import Stability
from commsched.report.texts import escaped, items, tag

COLUMNS = ("#", "rule", "setting", "step", "exposed", "over optimum", "launches", "in flight")
KNOBS = {
    Knob.ALPHA: "start-up latency",
    Knob.BANDWIDTH: "bandwidth",
    Knob.COMPUTE: "compute speed (ready times)",
}


def rules_section(contents: Contents) -> str:
    """Return the table of all rules with the bound, and what is not in it, in HTML."""
    comparison = contents.comparison
    if comparison is None:
        return ""
    head = "".join(
        tag("th", tag("button", escaped(name), type_="button"), scope="col", aria_sort="none")
        for name in COLUMNS
    )
    rows = [_rule_row(0, comparison.optimal, best=True)]
    rows += [_rule_row(k, row) for k, row in enumerate(comparison.rows, 1)]
    least = max(0, comparison.lower_bound_ns - comparison.result.timeline.compute_ns)
    figures = ("", "lower bound", "", format_ns(comparison.lower_bound_ns, 5), format_ns(least))
    foot = "".join(tag("td", escaped(text)) for text in (*figures, "", "", ""))
    table = tag(
        "table",
        tag("thead", tag("tr", head)) + tag("tbody", "".join(rows)) + tag("tfoot", tag("tr", foot)),
        class_="sortable rules",
    )
    html = [tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="All rules")]
    if any(row.plan.splits for row in comparison.rows):
        text = "* splits collectives into chunks; the optimum keeps each in one launch"
        html.append(tag("p", escaped(text), class_="soft"))
    left = [f"{name}: {reason}" for name, reason in comparison.skipped]
    left += contents.notes
    if left:
        summary = tag("summary", f"Left out ({len(left)})")
        html.append(tag("details", summary + items(left)))
    return "\n".join(html)


def _rule_row(number: int, row: Row, *, best: bool = False) -> str:
    timeline = row.timeline
    over = "-" if best else "none"
    if row.over_optimal_ns > row.launches or row.over_optimal_ns < 0:
        share = percent(row.over_optimal_ns, row.optimal_ns)
        over = f"{format_ns(row.over_optimal_ns)} ({share})"
    cells = [
        (str(number) if number else "", number),
        (f"{row.title}{' *' * row.plan.splits}", ""),
        (row.setting, ""),
        (format_ns(timeline.makespan_ns, 5), timeline.makespan_ns),
        (format_ns(timeline.exposed_ns), timeline.exposed_ns),
        (over, row.over_optimal_ns),
        (f"{row.launches:,}", row.launches),
        (format_bytes(timeline.peak_bytes), timeline.peak_bytes),
    ]
    inner = "".join(
        tag("td", escaped(text), data_sort=str(key)) if key != "" else tag("td", escaped(text))
        for text, key in cells
    )
    return tag("tr", inner, class_="best") if best else tag("tr", inner)


def what_if_section(contents: Contents) -> str:
    """Return what is not in the what-if panel, in HTML."""
    found = contents.what_if
    if found is None:
        return ""
    text = "Each setting of the sliders was computed by the evaluator when this page was made"
    text += ", and the optimum anew." if found.optimal else "."
    return tag("p", escaped(text), class_="soft small") + items(found.notes)


def stability_section(contents: Contents) -> str:
    """Return how wrong the network and the ready times may be, in HTML; empty if not known."""
    found = contents.stability
    if found is None:
        return ""
    if not found.knobs:
        return tag("p", escaped(f"Not known for this step: {found.why_not}."), class_="soft")
    head = "".join(
        tag("th", escaped(name), scope="col")
        for name in ("what is off", "the plan stays optimal", "costs at most 1%", "at worst")
    )
    rows = "".join(_stability_row(knob, each, contents) for knob, each in found.knobs.items())
    table = tag("table", tag("thead", tag("tr", head)) + tag("tbody", rows))
    html = [
        tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Stability"),
        tag("p", escaped(_hiding(found)), class_="lead"),
    ]
    if found.why_not:
        html.append(tag("p", escaped(f"{found.why_not[0].upper()}{found.why_not[1:]}.")))
    return "\n".join(html)


def _stability_row(knob: Knob, found: Sensitivity, contents: Contents) -> str:
    worst = "not computed"
    if found.worst_share is not None:
        share, factor = found.worst_share.share, found.worst_share.factor
        worst = f"{100 * share:.2g}% of the step, at {_times(factor)}" if share else "nothing"
    cells = (
        KNOBS[knob],
        _range(found.optimal, found, knob, contents),
        _range(found.good, found, knob, contents),
        worst,
    )
    return tag("tr", "".join(tag("td", escaped(cell)) for cell in cells))


def _range(span: Span | None, found: Sensitivity, knob: Knob, contents: Contents) -> str:
    if span is None:
        return "not even as given"
    open_low, open_high = span.low <= found.searched.low, span.high >= found.searched.high
    if open_low and open_high:
        return f"from {_times(span.low)} to {_times(span.high)} at least"
    text = f"from {_times(span.low)}{' or less' * open_low} to {_times(span.high)}"
    text += " or more" * open_high
    values = network_values(contents.loaded.problem)
    if values is not None and knob is not Knob.COMPUTE:
        name, unit = ("alpha_us", "us") if knob is Knob.ALPHA else ("bandwidth_gb_s", "GB/s")
        low, high = (values[name] * float(end) for end in (span.low, span.high))
        text += f" ({low:.4g} to {high:.4g} {unit})"
    return text


def _times(factor: Fraction) -> str:
    return f"{float(factor):.3g} x"


def _hiding(found: Stability) -> str:
    hiding = found.hiding
    if hiding is None:
        return ""
    least = f"{100 * float(hiding.share):g}% of the step"
    if hiding.factor is None:
        return (
            f"No bandwidth hides communication: {format_ns(round(hiding.least_exposed_ns))} stay "
            f"exposed with any (hidden means: less than {least} exposed)."
        )
    if not hiding.factor:
        return f"Communication is hidden at every bandwidth (less than {least} exposed)."
    value = ""
    if hiding.bandwidth_gb_s is not None:
        value = f", {float(hiding.bandwidth_gb_s):.4g} GB/s"
    return (
        f"Communication hides (less than {least} exposed) from {float(hiding.factor):.4g} times "
        f"the bandwidth on{value}."
    )


def reading_section(contents: Contents) -> str:
    """Return what was read, kept, dropped, checked and assumed, in HTML."""
    loaded = contents.loaded
    html = [_facts(contents)]
    recorded = loaded.recorded
    assumed = list(loaded.notes)
    if recorded is not None:
        report = recorded.report
        assumed = [*report.assumptions, *assumed]
        html.append(tag("h3", "Checks"))
        checks = "".join(
            tag(
                "li",
                tag("b", "ok" if check.passed else "doubt") + " " + escaped(check.text),
                class_="ok" if check.passed else "doubt",
            )
            for check in report.checks
        )
        html.append(tag("ul", checks, class_="checks") if checks else tag("p", "None."))
        for title, counts in (("Kept", report.kept), ("Not used", report.dropped)):
            rows = [f"{count:,} {what}" for what, count in counts.items()]
            html.append(tag("h3", title) + items(rows, fallback="Nothing."))
        if report.findings:
            html.append(tag("h3", "Found in the recording") + items(report.findings))
        if (plan := recorded.plan) is not None and contents.today is not None:
            sentence = ""
            if contents.today.name == "recorded":
                sentence = against_recording(recorded, play(loaded.problem, plan))
            if sentence:
                html.append(tag("p", escaped(f"{sentence[0].upper()}{sentence[1:]}.")))
    html.append(tag("h3", "Assumed"))
    html.append(items(assumed, fallback="Nothing beyond the model."))
    html.append(tag("h3", "The model") + items(MODEL))
    return "\n".join(html)


MODEL = (
    "a launch starts when all its gradients are ready and its channel is free, and is not interrupted",
    "a launch takes what the cost curve says for its bytes, whoever else uses the network",
    "compute takes as long as given, also while communication runs; there are no stragglers",
    "exposed time is the step's length less that of the same step with communication taking no time",
)


def _facts(contents: Contents) -> str:
    problem, recorded = contents.loaded.problem, contents.loaded.recorded
    rows = [("File", contents.file)]
    if recorded is not None:
        rows.append(("Source", recorded.report.source))
        if recorded.step_name:
            rows.append(("Step", recorded.step_name))
        rows.append(("Events read", f"{recorded.report.events_read:,}"))
    rows.append(("Problem's digest", problem_digest(problem)))
    if values := network_values(problem):
        text = f"{values['alpha_us']:.4g} us + bytes at {values['bandwidth_gb_s']:.5g} GB/s"
        rows.append(("A launch takes", text))
    rows += [("Limit", limit_text(limit)) for limit in problem.limits]
    inner = "".join(tag("div", tag("dt", escaped(k)) + tag("dd", escaped(v))) for k, v in rows)
    return tag("dl", inner, class_="proof")


def limit_text(limit: Limit) -> str:
    """Return a limit with its value.

    Examples
    --------
    >>> from commsched.models import MostBucketBytes, MostLaunches
    >>> limit_text(MostBucketBytes(2**20)), limit_text(MostLaunches(8))
    ('most-bucket-bytes: 1.00 MiB', 'most-launches: 8')
    """
    size, count = getattr(limit, "bytes", None), getattr(limit, "count", None)
    if size is not None:
        return f"{limit.label}: {format_bytes(size)}"
    return limit.label if count is None else f"{limit.label}: {count}"
