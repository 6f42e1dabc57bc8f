"""The section of a report about what the framework itself adds, in HTML."""

from __future__ import annotations

from commsched.models.overheads import OverheadTimeline
from commsched.models.units import format_ns
from commsched.report.contents import Contents
from commsched.report.overheads import WithOverheads, terms_text
from commsched.report.sections import pasted
from commsched.report.texts import escaped, items, table, table_row, tag

WITHOUT = (
    "What a framework itself adds to a step (hooks, copies into and out of buckets, waking up) is not "
    "in the times on this page. Where it was measured, --overheads FILE shows the plans with it, and "
    "a plan made for it."
)
NOTE = (
    "The step without communication has none of it, so exposed time counts what it adds. Everywhere "
    "else on this page it is left out."
)


def overheads_section(contents: Contents) -> str:
    """Return figures with and without overheads and the plan that is made for them, in HTML."""
    if contents.result.plan is None:
        return ""
    found = contents.overheads
    if found is None:
        return tag("p", escaped(WITHOUT), class_="soft")
    html = [tag("p", escaped(_lead(found)))]
    if found.rows:
        head = ("plan", "exposes without", "exposes with", "step with", "launches")
        body = [_row(title, timeline) for title, timeline in found.rows]
        html.append(table(head, body, "Exposed time with and without overheads"))
    if found.found is not None:
        words = found.found.words
        html.append(tag("p", escaped(f"{words[0].upper()}{words[1:]}."), class_="soft"))
    if found.settings is not None:
        runs = "exactly this plan" if found.settings.exact else "about this plan"
        text = f"Settings for the plan made for them ({found.settings.title}, which runs {runs}):"
        html.append(tag("p", escaped(text)))
        html.append(pasted(found.settings.text, "the plan made for overheads"))
        html.append(items(found.settings.cannot))
    html.append(tag("p", escaped(NOTE), class_="soft small"))
    return "\n".join(html)


def _lead(found: WithOverheads) -> str:
    source = f"{terms_text(found.known.overheads)}; from {found.known.source}"
    if found.kept is None:
        return f"With what the framework adds ({source}) nothing can be said: {found.why_not}."
    kept = found.kept
    return (
        f"With what the framework adds ({source}), the best plan exposes {format_ns(kept.exposed_ns)} "
        f"instead of {format_ns(kept.nominal.exposed_ns)}, and the step takes "
        f"{format_ns(kept.makespan_ns, 4)}."
    )


def _row(title: str, timeline: OverheadTimeline) -> str:
    return table_row(
        (
            title,
            format_ns(timeline.nominal.exposed_ns),
            format_ns(timeline.exposed_ns),
            format_ns(timeline.makespan_ns, 4),
            f"{len(timeline.launches):,}",
        )
    )
