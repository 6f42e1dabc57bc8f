"""The tables and the picture of benchmarks/emulated_link.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]
DEFAULT, CAP, PLAN = "DDP default", "best single cap", "best plan"
WITHIN_MS, WITHIN, GAIN_WITHIN = 1.0, 0.05, 0.1


def line(row: dict[str, Any]) -> str:
    """Return a row as a line for the terminal."""
    return (
        f"{row['ranks']} {row['model']}, {row['link']}, {'paced' if row['paced'] else 'free'}, "
        f"{row['variant']}: {row['launches']} launches, "
        f"exposed {row['predicted_ms']:.2f} -> {row['exposed_ms']:.2f} ms (own times "
        f"{row['replayed_ms']:.2f}, error {row['error_ms']:+.2f}), step {row['predicted_step_ms']:.1f} "
        f"-> {row['step_ms']:.1f} ms; {row['buckets']}; {row['hook']:.0f} {row['wake']:.0f} "
        f"{row['finish']:.0f} us"
    )


def within(row: dict[str, Any]) -> bool:
    """Return whether the measured exposed time is within the target of that of its own times."""
    return abs(row["error_ms"]) <= max(WITHIN_MS, WITHIN * row["replayed_ms"])


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
            parts += [f"### {title}", _exposed(some), _summary(some), _gains(some), _met(some)]
    return "\n\n".join(parts)


def _exposed(rows: Rows) -> str:
    lines = [
        "| model, gradients | link | setting | launches | exposed: predicted | measured | with the "
        "steps' own ready times | error | step: predicted | measured |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']}, {row['gradients']} | {row['link']} | {row['variant']} | "
            f"{row['launches']} | {row['predicted_ms']:.2f} ms | {row['exposed_ms']:.2f} ms | "
            f"{row['replayed_ms']:.2f} ms | {row['error_ms']:+.2f} ms | "
            f"{row['predicted_step_ms']:.1f} ms | {row['step_ms']:.1f} ms |"
        )
    return "\n".join(lines)


def _summary(rows: Rows) -> str:
    exact = sum(row["buckets"] == "exact" for row in rows)
    good = sum(within(row) for row in rows)
    ahead = [abs(row["exposed_ms"] - row["predicted_ms"]) for row in rows]
    met = sum(
        error <= max(WITHIN_MS, WITHIN * row["predicted_ms"])
        for error, row in zip(ahead, rows, strict=True)
    )
    before = [abs(row["error_ms"]) for row in rows]
    if not rows[0]["views"]:
        copied = [abs(row["copied_error_ms"]) for row in rows]
        return (
            f"Buckets to the byte in {exact} of {len(rows)} cases. The model does not know that each "
            "bucket is copied out to its gradients: the error's median is "
            f"{statistics.median(before):.2f} ms, its largest {max(before):.2f} ms. With the copies "
            "counted (in order, each after its launch and after backward, at "
            f"{rows[0]['copy_gb_s']:.1f} GB/s, which was measured by itself) it is "
            f"{statistics.median(copied):.2f} ms, at most {max(copied):.2f} ms."
        )
    terms = {
        name: statistics.median(row[name] for row in rows) for name in ("hook", "wake", "finish")
    }
    total = sum(terms.values()) / 1000
    after = [abs(row["error_ms"] - total) for row in rows]
    text = (
        f"Buckets to the byte in {exact} of {len(rows)} cases. Exposed time as predicted before, within "
        f"5% or 1 ms: {met} of {len(rows)} cases; the error's median is "
        f"{statistics.median(ahead):.2f} ms, its largest {max(ahead):.2f} ms. Given the ready times of "
        f"the same steps: {good} of {len(rows)} cases; median {statistics.median(before):.2f} ms, "
        f"largest {max(before):.2f} ms."
    )
    if rows[0]["ranks"] == 1:
        text += (
            f" What the model does not know, measured on the way (medians): {terms['hook']:.0f} us "
            f"from the last gradient to DDP's call of the hook, {terms['wake']:.0f} us from a launch's "
            f"end to its signal, {terms['finish']:.0f} us from the last signal to the return of "
            f"backward. With these {total:.2f} ms added the error's median is "
            f"{statistics.median(after):.2f} ms, its largest {max(after):.2f} ms."
        )
    return text


def _gains(rows: Rows) -> str:
    lines = [
        "| model | link | best plan over | promised | gained in exposed time | in step time |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for group in _cases(rows):
        plan = group[PLAN]
        for name in (DEFAULT, CAP):
            other = group[name]
            cells = [f"{other['predicted_ms'] - plan['predicted_ms']:.2f} ms"]
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
    large = kept = cases = lost = 0
    for group in _cases(rows):
        plan = group[PLAN]
        for name in (DEFAULT, CAP):
            promised = group[name]["predicted_ms"] - plan["predicted_ms"]
            gained, sure = _paired(group[name]["each_exposed_ms"], plan["each_exposed_ms"])
            if promised >= WITHIN_MS:
                large += 1
                kept += abs(gained - promised) <= GAIN_WITHIN * promised
            if name == CAP:
                cases += 1
                lost += gained + sure < 0
    return (
        f"Of {large} promised gains of 1 ms or more, {kept} came out within 10% in exposed time. The "
        f"best plan lost to the best single cap, beyond the interval, in {lost} of {cases} cases."
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
    both = [row[name] for row in rows for name in ("predicted_ms", "exposed_ms")]
    least, most = max(0.1, 0.7 * min(both)), 1.4 * max(both)
    axes.plot([least, most], [least, most], color="0.6", linewidth=1, zorder=0)
    for variant, colour in ((DEFAULT, "#c44e52"), (CAP, "#dd8452"), (PLAN, "#4c72b0")):
        for ranks, marker in ((1, "o"), (2, "^")):
            some = [row for row in rows if row["variant"] == variant and row["ranks"] == ranks]
            label = variant if ranks == 1 else f"{variant}, two ranks"
            axes.scatter(
                [row["predicted_ms"] for row in some],
                [row["exposed_ms"] for row in some],
                color=colour,
                marker=marker,
                label=label if some else None,
                s=34,
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(least, most),
        ylim=(least, most),
        xlabel="predicted exposed time, ms",
        ylabel="measured exposed time, ms",
        title="Real DDP on an emulated link, at an even pace",
    )
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
