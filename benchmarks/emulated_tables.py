"""The tables and the picture of benchmarks/emulated_link.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]
DEFAULT, CAP = "DDP default", "best single cap"
FEWEST, PLAN = "fewest launches", "our list"
WITHIN_MS, WITHIN, GAIN_WITHIN = 1.0, 0.05, 0.1
QUIET = 0.1
"""The machine was quiet if other programs took less than this of a processor."""


def line(row: dict[str, Any]) -> str:
    """Return a row as a line for the terminal."""
    return (
        f"{row['ranks']} {row['model']}, {row['link']}, {'paced' if row['paced'] else 'free'}, "
        f"{row['variant']}: {row['launches']} launches, exposed {row['bare_ms']:.2f}, with terms "
        f"{row['full_ms']:.2f} -> {row['exposed_ms']:.2f} ms (own times {row['replayed_ms']:.2f}, error "
        f"{row['error_before_ms']:+.2f} {row['error_ms']:+.2f}), step {row['full_step_ms']:.1f} -> "
        f"{row['step_ms']:.1f} ms; {row['buckets']}; others {row['others'] or 0:.2f}"
    )


def close(predicted: float, measured: float) -> bool:
    """Return whether a measured exposed time is within the target."""
    return abs(measured - predicted) <= max(WITHIN_MS, WITHIN * predicted)


def tables(rows: Rows) -> str:
    """Return all tables with their summaries."""
    gloo = [row for row in rows if "gloo" in row["link"]]
    emulated = [row for row in rows if "gloo" not in row["link"]]
    parts: list[str] = []
    alone = [row for row in emulated if row["ranks"] == 1]
    together = [row for row in emulated if row["ranks"] > 1]
    for title, some in (
        ("One rank, at an even pace", [r for r in alone if r["views"] and r["paced"]]),
        ("One rank, at the machine's own pace", [r for r in alone if not r["paced"]]),
        ("One rank without `gradient_as_bucket_view`", [r for r in alone if not r["views"]]),
        ("Two ranks, at an even pace", [r for r in together if r["paced"]]),
        ("Two ranks, at the machine's own pace", [r for r in together if not r["paced"]]),
        ("Two ranks and gloo over loopback, at an even pace", [r for r in gloo if r["paced"]]),
        ("Two ranks and gloo over loopback", [r for r in gloo if not r["paced"]]),
    ):
        if some:
            parts += [f"### {title}", _quiet(some), _exposed(some), _summary(some), _terms(some)]
            parts += [_gains(some), _met(some)]
    return "\n\n".join(parts)


def _quiet(rows: Rows) -> str:
    """Return what other programs took meanwhile."""
    known = [row["others"] for row in rows if row["others"] is not None]
    if not known:
        return "What other programs took meanwhile is not known on this system."
    loud = sum(share > QUIET for share in known)
    late = [row["missed"] for row in rows if row["missed"] is not None]
    paced = (
        f" Gradients that came a millisecond late or more: {max(late):.0%} at most." if late else ""
    )
    text = (
        f"Other programs took {max(known):.2f} of a processor at most, "
        f"{statistics.median(known):.2f} typically"
    )
    if not loud:
        return f"{text}: the machine was quiet.{paced}"
    words = f"The machine was not quiet for {loud} of {len(known)} rows."
    return f"{text}. **{words}**{paced}"


def _exposed(rows: Rows) -> str:
    lines = [
        "| model, gradients | link | setting | launches | exposed: without terms | with terms | "
        "measured | half of the steps | error on own times, before | after | step: without | with | "
        "measured |",
        "| --- | --- | --- | " + " | ".join(["---:"] * 10) + " |",
    ]
    for row in rows:
        low, high = row["exposed_quartiles"]
        lines.append(
            f"| {row['model']}, {row['gradients']} | {row['link']} | {row['variant']} | "
            f"{row['launches']} | {row['bare_ms']:.2f} ms | {row['full_ms']:.2f} ms | "
            f"{row['exposed_ms']:.2f} ms | {low:.2f} to {high:.2f} | "
            f"{row['error_before_ms']:+.2f} ms | {row['error_ms']:+.2f} ms | "
            f"{row['bare_step_ms']:.1f} ms | {row['full_step_ms']:.1f} ms | {row['step_ms']:.1f} ms |"
        )
    return "\n".join(lines)


def _summary(rows: Rows) -> str:
    exact = sum(row["buckets"] == "exact" for row in rows)
    count = len(rows)
    found = []
    for what, bare, full in (
        (
            "As predicted before",
            [(row["bare_ms"], row["exposed_ms"]) for row in rows],
            [(row["full_ms"], row["exposed_ms"]) for row in rows],
        ),
        (
            "Given the ready times of the same steps",
            [(row["replayed_ms"], row["replayed_ms"] + row["error_before_ms"]) for row in rows],
            [(row["replayed_ms"], row["replayed_ms"] + row["error_ms"]) for row in rows],
        ),
    ):
        texts = []
        for pairs in (bare, full):
            errors = [abs(measured - predicted) for predicted, measured in pairs]
            texts.append(
                f"{sum(close(*pair) for pair in pairs)} of {count} cases (median error "
                f"{statistics.median(errors):.2f} ms, largest {max(errors):.2f} ms)"
            )
        found.append(f"{what}: {texts[0]} without the terms, {texts[1]} with them.")
    missed = [
        f"{row['model']}, {row['link']}, {row['variant']}"
        for row in rows
        if not close(row["full_ms"], row["exposed_ms"])
    ]
    text = (
        f"Buckets to the byte in {exact} of {count} cases. Measured exposed time within 5% or 1 ms: "
        + " ".join(found)
    )
    return text + (f" Missed with the terms: {'; '.join(missed)}." if missed else "")


def _terms(rows: Rows) -> str:
    """Return the terms, as they were measured by themselves before each case."""
    lines = [
        "| model | link | issue | hook | into buckets | waking up | out of buckets | a gradient | end |",
        "| --- | --- | " + " | ".join(["---:"] * 7) + " |",
    ]
    for group in _cases(rows):
        row = group[PLAN]
        terms = row["terms"]
        cells = [f"{row['model']} | {row['link']}"]
        for name in (
            "issue_us", "hook_us", "fill_gb_s", "wake_us", "copy_gb_s", "gradient_us", "finish_us"
        ):  # fmt: skip
            unit = "GB/s" if name.endswith("gb_s") else "us"
            cells.append(f"{terms[name]:.1f} {unit}" if name in terms else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _gains(rows: Rows) -> str:
    lines = [
        "| model | link | our list over | promised: without terms | with terms | gained in exposed time "
        "| in step time |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for group in _cases(rows):
        plan = group[PLAN]
        for name in (DEFAULT, CAP, FEWEST):
            other = group[name]
            cells = [f"{other[field] - plan[field]:.2f} ms" for field in ("bare_ms", "full_ms")]
            for field in ("each_exposed_ms", "each_step_ms"):
                gained, sure = _paired(other[field], plan[field])
                cells.append(f"{gained:.2f} ± {sure:.2f} ms")
            lines.append(f"| {plan['model']} | {plan['link']} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _paired(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the median of the gains of the rounds, and how sure it is (its 95% interval, about)."""
    gains = [one - other for one, other in zip(before, after, strict=True)]
    low, middle, high = statistics.quantiles(gains)
    return middle, 1.57 * (high - low) / len(gains) ** 0.5


def _met(rows: Rows) -> str:
    """Return in how many cases the gain is what was promised, and none is a loss."""
    large = {"bare_ms": 0, "full_ms": 0}
    kept = dict(large)
    lost = {CAP: 0, FEWEST: 0}
    cases = 0
    fewest_lost = 0
    for group in _cases(rows):
        plan = group[PLAN]
        cases += 1
        for name in (DEFAULT, CAP):
            gained, _ = _paired(group[name]["each_exposed_ms"], plan["each_exposed_ms"])
            for field in large:
                promised = group[name][field] - plan[field]
                if promised >= WITHIN_MS:
                    large[field] += 1
                    kept[field] += abs(gained - promised) <= GAIN_WITHIN * promised
        for name in lost:
            gained, sure = _paired(group[name]["each_exposed_ms"], plan["each_exposed_ms"])
            lost[name] += gained + sure < 0
        gained, sure = _paired(group[CAP]["each_exposed_ms"], group[FEWEST]["each_exposed_ms"])
        fewest_lost += gained + sure < 0
    return (
        "Promised gains of 1 ms or more that came out within 10% in exposed time: "
        f"{kept['bare_ms']} of {large['bare_ms']} without the terms, {kept['full_ms']} of "
        f"{large['full_ms']} with them. Beyond the interval, our list lost to the best single cap in "
        f"{lost[CAP]} of {cases} cases (the plan with the fewest launches in {fewest_lost}), and to "
        f"the plan with the fewest launches in {lost[FEWEST]}."
    )


def _cases(rows: Rows) -> Iterator[dict[str, dict[str, Any]]]:
    for key in dict.fromkeys((row["ranks"], row["model"], row["link"]) for row in rows):
        yield {
            row["variant"]: row for row in rows if (row["ranks"], row["model"], row["link"]) == key
        }


def picture(rows: Rows, path: Path) -> None:
    """Draw predicted and measured exposed time of the cases on the emulated link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if "gloo" not in row["link"] and row["views"] and row["paced"]]
    figure, axes = pyplot.subplots(figsize=(6.4, 5.2), dpi=110)
    both = [row[name] for row in rows for name in ("full_ms", "exposed_ms")]
    least, most = max(0.1, 0.7 * min(both)), 1.4 * max(both)
    axes.plot([least, most], [least, most], color="0.6", linewidth=1, zorder=0)
    colours = ((DEFAULT, "#c44e52"), (CAP, "#dd8452"), (FEWEST, "#8c8c8c"), (PLAN, "#4c72b0"))
    for variant, colour in colours:
        for ranks, marker in ((1, "o"), (2, "^")):
            some = [row for row in rows if row["variant"] == variant and row["ranks"] == ranks]
            label = variant if ranks == 1 else f"{variant}, two ranks"
            middle = [row["exposed_ms"] for row in some]
            axes.errorbar(
                [row["full_ms"] for row in some],
                middle,
                yerr=[
                    [m - row["exposed_quartiles"][0] for m, row in zip(middle, some, strict=True)],
                    [row["exposed_quartiles"][1] - m for m, row in zip(middle, some, strict=True)],
                ],
                color=colour,
                linestyle="none",
                linewidth=1,
                marker=marker,
                label=label if some else None,
                markersize=5,
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(least, most),
        ylim=(least, most),
        xlabel="predicted exposed time, with what DDP adds, ms",
        ylabel="measured exposed time, median and quartiles, ms",
        title="Real DDP on an emulated link, at an even pace",
    )
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
