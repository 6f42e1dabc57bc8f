"""Two sections of a report in HTML: communication that slows compute, and one plan for several cases."""

from __future__ import annotations

from collections.abc import Sequence

from commsched.models.slowdown import SlowedTimeline
from commsched.models.units import format_ns
from commsched.optimizer import Result
from commsched.optimizer.comparison import percent
from commsched.report.contents import Contents
from commsched.report.safety import Safety, SafetyRow
from commsched.report.sections import pasted
from commsched.report.slowed import Slowed, SlowedRow, factor_text
from commsched.report.texts import escaped, items, table, table_row, tag


def slowed_section(contents: Contents) -> str:
    """Return exposed time with and without a slowdown, in HTML."""
    found, result = contents.slowed, contents.result
    if found is None:
        return ""
    if found.stated:
        lead = _stated_lead(found)
    else:
        lead = (
            "How much communication slows compute is not known for this step: one recording alone does "
            "not say it. It can be stated (--slowdown FACTOR), or fitted to this recording and one "
            "without communication (--slowdown-alone TRACE). Everywhere else on this page compute "
            "takes as long as given. These factors are examples, not measured."
        )
    html = [tag("p", escaped(lead), class_="" if found.stated else "soft")]
    if found.rows:
        html.append(_slowed_table(contents, found.rows))
    if found.why_not:
        html.append(tag("p", escaped(f"{found.why_not[0].upper()}{found.why_not[1:]}.")))
    for row in found.rows if found.stated else ():
        if row.best is not None:
            html.append(_slowed_proof(row, result))
    text = (
        "While at least one launch runs, each compute task takes so many times as long. The "
        "step without communication is the same, so exposed time counts what is waited for and "
        "what compute loses."
    )
    html.append(tag("p", escaped(text), class_="soft small"))
    return "\n".join(html)


def _stated_lead(found: Slowed) -> str:
    if not found.rows:
        return "Exposed time under the slowdown is not known."
    (row,) = found.rows
    kept = row.kept
    factor, source = factor_text(row.slowdown), found.source
    return (
        f"With {factor} ({source}), the best plan exposes {format_ns(kept.exposed_ns)} "
        f"instead of {format_ns(kept.nominal.exposed_ns)}, and the step takes "
        f"{format_ns(kept.makespan_ns, 4)}."
    )


def _slowed_table(contents: Contents, rows: Sequence[SlowedRow]) -> str:
    now, found = contents.today, contents.slowed
    assert found is not None
    planned = any(row.best is not None for row in rows)
    name = "" if now is None else now.title
    head = ["slowdown"]
    if any(row.today is not None for row in rows):
        head.append(f"{name} exposes")
    head.append("the best plan exposes")
    if planned:
        head += ["a plan for it exposes", "so the plan"]
    body = [_without(rows[0], len(head), planned, any(row.today is not None for row in rows))]
    for row in rows:
        label = factor_text(row.slowdown)
        cells = [f"{label}{'' if found.stated else ' (what if)'}"]
        if any(each.today is not None for each in rows):
            cells.append(_exposed(row.today))
        cells.append(_exposed(row.kept))
        if planned and row.best is not None:
            cells += [_exposed(row.best.timeline), _change(row)]
        body.append(table_row(cells))
    return table(head, body, "Exposed time with and without a slowdown")


def _without(row: SlowedRow, width: int, planned: bool, has_today: bool) -> str:
    cells = ["no slowdown"]
    if has_today:
        cells.append("-" if row.today is None else _exposed_nominal(row.today))
    cells.append(_exposed_nominal(row.kept))
    if planned:
        cells += ["the same", "is the best plan above"]
    return table_row(cells[:width])


def _exposed(timeline: SlowedTimeline | None) -> str:
    if timeline is None:
        return "-"
    return f"{format_ns(timeline.exposed_ns)} (step {format_ns(timeline.makespan_ns, 4)})"


def _exposed_nominal(timeline: SlowedTimeline) -> str:
    nominal = timeline.nominal
    return f"{format_ns(nominal.exposed_ns)} (step {format_ns(nominal.makespan_ns, 4)})"


def _change(row: SlowedRow) -> str:
    best = row.best
    assert best is not None
    if row.changes is False:
        return "stays"
    if row.changes is None:
        return "stays, as far as was searched"
    gain = f"{format_ns(best.gain_ns)}, {percent(best.gain_ns, max(1, row.kept.makespan_ns))}"
    count = f"{best.plan.launches:,} launch{'es' * (best.plan.launches != 1)}"
    return f"changes: {count}, which gains {gain} of the step"


def _slowed_proof(row: SlowedRow, result: Result) -> str:
    best = row.best
    assert best is not None
    bound = f"no step is shorter than {format_ns(best.bound.ns, 4)} ({best.bound.proof})"
    return tag(
        "p", escaped(f"Planned for it: {best.status}; {bound}; {best.reason}."), class_="soft"
    )


def safety_section(contents: Contents) -> str:
    """Return the regret of the best plan and of a robust one in several cases, in HTML."""
    found = contents.safety
    if found is None:
        return ""
    html = [tag("p", escaped(safety_lead(found)), class_="lead" if found.rows else "")]
    if found.rows:
        html.append(_safety_table(found))
    if found.found is not None:
        html.append(_safety_proof(found))
        if found.settings is not None and found.helps:
            runs = "exactly this plan" if found.settings.exact else "about this plan"
            text = f"Settings for the robust plan ({found.settings.title}, which runs {runs}):"
            html.append(tag("p", escaped(text)))
            html.append(pasted(found.settings.text, "the robust plan"))
            html.append(items(found.settings.cannot))
    if found.why_not:
        html.append(
            tag("p", escaped(f"{found.why_not[0].upper()}{found.why_not[1:]}."), class_="soft")
        )
    if not found.named:
        how = (
            "A plan for other steps, ranks or networks, too: --robust FILE, --robust ::step=N, "
            "--robust-costs FILE."
        )
        html.append(tag("p", escaped(how), class_="soft"))
    return "\n".join(html)


def safety_lead(found: Safety) -> str:
    """Return in a sentence what the best plan and a robust one cost in the cases."""
    if found.named and not found.rows:
        return "No robust plan is known."
    if not found.named and found.error is None:
        return (
            "The costs state no error of their fit, so nothing is varied here (commsched fit writes "
            "errors into cost files)."
        )
    if not found.rows:
        return f"The costs are up to {100 * (found.error or 0):.3g}% off what was measured."
    worst = max(found.rows, key=lambda row: -1 if row.nominal_ns is None else row.nominal_ns)
    broken = next((row for row in found.rows if row.nominal_ns is None), None)
    by = f"costs at most {format_ns(worst.nominal_ns or 0)} more than what is best in a case"
    if broken is not None:
        by = f"cannot run in {broken.title}"
    source = (
        ""
        if found.named
        else f" if the costs are as wrong as their fit ({100 * (found.error or 0):.3g}%)"
    )
    if found.found is None:
        return f"The best plan {by}{source}."
    if not found.helps:
        safer = "no plan is safer"
        if found.found.status != "optimal":
            safer = "no plan is known that is safer"
        return f"The best plan {by}{source}, and {safer}."
    robust = format_ns(found.found.worst.regret_ns)
    return f"The best plan {by}{source}; the robust plan at most {robust}."


def _safety_table(found: Safety) -> str:
    head = ["case", "step at best", "the best plan over it"]
    if found.found is not None:
        head.append("the robust plan over it")
    worst = [
        max((getattr(row, name) or 0 for row in found.rows), default=0)
        for name in ("nominal_ns", "robust_ns")
    ]
    body = [_safety_row(row, worst, robust=found.found is not None) for row in found.rows]
    return table(head, body, "Regret in each case")


def _safety_row(row: SafetyRow, worst: Sequence[int], *, robust: bool) -> str:
    cells = [tag("td", escaped(row.title)), tag("td", escaped(format_ns(row.best_ns, 4)))]
    for regret, most in zip(
        (row.nominal_ns, *((row.robust_ns,) if robust else ())), worst, strict=False
    ):
        text = "cannot run"
        if regret is not None:
            share = f" ({percent(regret, row.best_ns)})" if regret and row.best_ns else ""
            text = f"{format_ns(regret)}{share}" if regret else "nothing"
        inner = escaped(text)
        cells.append(tag("td", tag("b", inner) if regret and regret == most else inner))
    return tag("tr", "".join(cells))


def _safety_proof(found: Safety) -> str:
    assert found.found is not None
    one = found.found
    launches = one.plan.launches, one.nominal.launches
    counts = f"the robust plan has {launches[0]:,} launches, the best plan {launches[1]:,}"
    bound = ""
    if one.status != "optimal":
        bound = f"; every plan costs at least {format_ns(one.bound_ns)} in some case"
    text = f"{one.status}: {one.reason}{bound}; {counts}."
    return tag("p", escaped(f"{text[0].upper()}{text[1:]}"), class_="soft")
