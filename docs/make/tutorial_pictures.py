"""Draws the tutorial's pictures, in English and Chinese, with the numbers of the five small functions.

Run ``python docs/make/tutorial_pictures.py``; with ``--check`` nothing is written and the exit code says
whether the files are what this script draws. SVG is written by hand here: the files stay small, need
no plotting library, and use the reader's own fonts.
"""

# ruff: noqa: RUF001 - Chinese has its own commas and brackets

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from commsched.models import (
    alltoall_route_ledger,
    communication_exposure,
    communication_time_ms,
    ring_allreduce_payload_mib,
    schedule_gradient_buckets,
)

DOCS = Path(__file__).resolve().parents[1]
WIDTH = 760
INK, SOFT, RULE = "#1f2933", "#5b6770", "#d5dae0"
COMPUTE, HIDDEN, EXPOSED, LATENCY = "#9fb3c8", "#1f857a", "#cf5230", "#e9a23b"
FONT = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
Words = Mapping[str, str]

FOUR: Sequence[Mapping[str, Any]] = [
    {"name": name, "ready_ms": ready, "size_mib": 32}
    for name, ready in (("L4", 2), ("L3", 5), ("L2", 9), ("L1", 14))
]
MIXED: Sequence[Mapping[str, Any]] = [
    {"name": "b", "ready_ms": 0.25, "size_mib": 0.125},
    {"name": "a", "ready_ms": 3.5, "size_mib": 10.5},
    {"name": "c", "ready_ms": 3.5, "size_mib": 25},
    {"name": "d", "ready_ms": 7.75, "size_mib": 1},
]


class Sheet:
    """An SVG under construction; places are pixels from the top left corner."""

    def __init__(self, height: float, title: str) -> None:
        self.height = height
        self.title = title
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled box."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height:.1f}" '
            f'fill="{colour}" stroke="#ffffff" stroke-width="0.8"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, dashes: str = "") -> None:
        """Draw a thin line."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        colour = INK if dashes else RULE
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{colour}" stroke-width="1"{dashed}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        """Write a line of text with its baseline at y."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{colour}"{weight}>{escape(words)}</text>'
        )

    def axis(self, left: float, right: float, y: float, most: float, step: float) -> None:
        """Draw a time axis from 0 to ``most`` ms with a mark every ``step`` ms."""
        self.line(left, y, right, y)
        marks = int(most / step + 1e-9)
        for number in range(marks + 1):
            x = left + (right - left) * number * step / most
            self.line(x, y, x, y + 4)
            unit = " ms" if number == marks else ""
            self.text(x, y + 17, f"{number * step:g}{unit}", size=11, anchor="middle", colour=SOFT)

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
        """Draw coloured squares with what they mean, in a row."""
        for colour, words in entries:
            self.box(x, y - 10, 12, 12, colour)
            self.text(x + 17, y, words, size=12, colour=SOFT)
            # Chinese characters are as wide as the font is high, Latin ones about half of that.
            x += 38 + sum(12.5 if ord(c) > 0x2E80 else 6.6 for c in words)

    def svg(self) -> str:
        """Return the file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" '
            f'width="{WIDTH}" height="{self.height:.0f}" role="img" font-family="{FONT}">'
        )
        ground = f'<rect width="{WIDTH}" height="{self.height:.0f}" fill="#ffffff"/>'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", ground, *self.parts, "</svg>", ""]
        )


def message(words: Words) -> str:
    """Draw what 256 MiB cost in 1, 8, 64 and 512 launches."""
    sheet = Sheet(236, words["message"])
    sheet.text(16, 26, words["message"], size=15, bold=True)
    counts = (1, 8, 64, 512)
    left, right, most = 110.0, 640.0, 10.0
    scale = (right - left) / most
    for row, launches in enumerate(counts):
        cost = communication_time_ms(256, 50, 8, launches)
        y = 44 + row * 34
        sheet.text(left - 10, y + 18, f"{words['launches']} {launches}", anchor="end")
        sheet.box(left, y, cost["transfer_ms"] * scale, 26, HIDDEN)
        start = left + cost["transfer_ms"] * scale
        sheet.box(start, y, cost["launch_ms"] * scale, 26, LATENCY)
        end = start + cost["launch_ms"] * scale
        sheet.text(end + 8, y + 18, f"{cost['communication_ms']:g} ms")
    sheet.axis(left, right, 184, most, 2)
    sheet.legend(left, 225, [(HIDDEN, words["transfer"]), (LATENCY, words["latency"])])
    return sheet.svg()


def _panels(
    title: str,
    layers: Sequence[Mapping[str, Any]],
    caps: Sequence[float],
    network: Mapping[str, float],
    axis: tuple[float, float],
    words: Words,
) -> str:
    """Draw the timeline of each cap below the other."""
    sheet = Sheet(84 + 78 * len(caps), title)
    sheet.text(16, 26, title, size=15, bold=True)
    left, right = 150.0, 735.0
    scale = (right - left) / axis[0]
    for number, cap in enumerate(caps):
        done = schedule_gradient_buckets(layers, cap, **network)
        top = 42 + number * 78
        sheet.text(16, top + 14, f"{words['cap']} {cap:g} MiB", bold=True)
        exposed = done["exposed_after_backward_ms"]
        sheet.text(16, top + 32, f"{words['exposed']}", size=12, colour=SOFT)
        sheet.text(16, top + 48, f"{exposed:g} ms", size=12, colour=EXPOSED, bold=True)
        start = 0.0
        for layer in sorted(layers, key=lambda one: one["ready_ms"]):
            width = (layer["ready_ms"] - start) * scale
            if width > 0:
                sheet.box(left + start * scale, top, width, 24, COMPUTE)
            start = max(start, layer["ready_ms"])
        names: dict[float, list[str]] = {}
        for layer in layers:
            names.setdefault(layer["ready_ms"], []).append(layer["name"])
        for ready, ended in names.items():
            sheet.text(left + ready * scale - 3, top + 17, ",".join(ended), size=11, anchor="end")
        end = done["backward_end_ms"]
        for bucket in done["timeline"]:
            first, last = bucket["start_ms"], bucket["end_ms"]
            for low, high, colour in (
                (first, min(last, end), HIDDEN),
                (max(first, end), last, EXPOSED),
            ):
                if high > low:
                    sheet.box(left + low * scale, top + 28, (high - low) * scale, 24, colour)
            middle = left + (first + last) / 2 * scale
            label = "+".join(bucket["layers"])
            if (last - first) * scale > 7.5 * len(label):
                sheet.text(middle, top + 45, label, size=11, anchor="middle", colour="#ffffff")
            else:
                sheet.text(middle, top + 65, label, size=11, anchor="middle", colour=SOFT)
        sheet.line(left + end * scale, top - 3, left + end * scale, top + 56, "3 3")
    bottom = 42 + 78 * len(caps)
    sheet.axis(left, right, bottom - 8, *axis)
    entries = [(COMPUTE, "compute"), (HIDDEN, "hidden"), (EXPOSED, "exposed part")]
    sheet.legend(left, bottom + 32, [(colour, words[key]) for colour, key in entries])
    return sheet.svg()


def merging(words: Words) -> str:
    """Draw the four layers on a fast network with three caps."""
    network = {"bandwidth_gib_s": 50, "latency_us": 8}
    return _panels(words["merging"], FOUR, (32, 64, 128), network, (17, 2), words)


def merging_slow(words: Words) -> str:
    """Draw four unequal gradients on a slow network with four caps."""
    network = {"bandwidth_gib_s": 2.5, "latency_us": 120}
    return _panels(words["slow"], MIXED, (0.1, 10.5, 11, 36), network, (23, 2), words)


def collectives(words: Words) -> str:
    """Draw what a rank sends for an all-reduce, and who receives what in an all-to-all."""
    sheet = Sheet(300, words["collectives"])
    sheet.text(16, 26, words["ring"], bold=True)
    base, high = 238.0, 170.0
    for number, ranks in enumerate((2, 4, 8, 64, 1024)):
        sent = ring_allreduce_payload_mib(256, ranks)
        x = 28.0 + number * 62
        sheet.box(x, base - high * sent / 512, 44, high * sent / 512, HIDDEN)
        sheet.text(x + 22, base - high * sent / 512 - 5, f"{sent:g}", size=11, anchor="middle")
        sheet.text(x + 22, base + 16, f"{ranks}", size=12, anchor="middle")
    sheet.line(20, base - high, 340, base - high, "4 3")
    sheet.text(20, base - high - 6, "2 x 256 MiB", size=11, colour=SOFT)
    sheet.line(20, base, 340, base)
    sheet.text(180, base + 36, words["ranks"], size=12, anchor="middle", colour=SOFT)
    sheet.text(394, 26, words["received"], bold=True)
    for group, row in enumerate(([16] * 4, [4, 4, 52, 4])):
        ledger = alltoall_route_ledger([row] * 4, 4096)
        left = 400.0 + group * 180
        for rank, tokens in enumerate(ledger["received_tokens"]):
            height = high * tokens / 220
            colour = EXPOSED if tokens > 64 else HIDDEN
            sheet.box(left + rank * 38, base - height, 32, height, colour)
            x = left + rank * 38 + 16
            sheet.text(x, base - height - 5, f"{tokens}", size=11, anchor="middle")
            sheet.text(x, base + 16, f"{rank}", size=12, anchor="middle")
        mean = base - high * 64 / 220
        sheet.line(left - 6, mean, left + 154, mean, "4 3")
        ratio = ledger["max_to_mean_receive_ratio"]
        sheet.line(left - 6, base, left + 154, base)
        sheet.text(
            left + 73,
            base + 36,
            f"{words['ratio']} {ratio:g}",
            size=12,
            anchor="middle",
            colour=SOFT,
        )
    sheet.text(562, base + 54, words["mean"], size=12, anchor="middle", colour=SOFT)
    return sheet.svg()


def overlap(words: Words) -> str:
    """Draw a communication interval, two compute intervals, and what is hidden."""
    compute = [(1, 4), (3, 8)]
    found = communication_exposure([0, 12], compute)
    sheet = Sheet(226, words["overlap"])
    sheet.text(16, 26, words["overlap"], size=15, bold=True)
    left, right, most = 150.0, 735.0, 12.0
    scale = (right - left) / most
    sheet.text(16, 58, words["communication"])
    sheet.box(left, 42, 12 * scale, 24, "#6c8ebf")
    sheet.text(16, 92, words["compute"])
    for row, (start, end) in enumerate(compute):
        sheet.box(left + start * scale, 74 + 16 * row, (end - start) * scale, 14, COMPUTE)
    sheet.text(16, 134, words["result"])
    sheet.box(left, 118, 12 * scale, 24, EXPOSED)
    for start, end in found["merged_overlap_intervals"]:
        sheet.box(left + start * scale, 118, (end - start) * scale, 24, HIDDEN)
        sheet.text(
            left + (start + end) / 2 * scale,
            135,
            f"{words['hidden']} {found['hidden_ms']:g} ms",
            anchor="middle",
            colour="#ffffff",
        )
        sheet.text(
            left + (end + 12) / 2 * scale,
            135,
            f"{words['exposed']} {start} + {12 - end} = {found['exposed_ms']:g} ms",
            anchor="middle",
            colour="#ffffff",
        )
    sheet.axis(left, right, 154, most, 1)
    sheet.legend(left, 208, [(HIDDEN, words["hidden"]), (EXPOSED, words["exposed part"])])
    return sheet.svg()


ENGLISH: Words = {
    "message": "256 MiB at 50 GiB/s, 8 us a launch",
    "launches": "launches:",
    "transfer": "bytes over bandwidth",
    "latency": "launches x latency",
    "merging": "Four layers of 32 MiB at 50 GiB/s, 8 us a launch",
    "slow": "Four unequal gradients at 2.5 GiB/s, 120 us a launch",
    "cap": "cap",
    "compute": "backward",
    "hidden": "hidden",
    "exposed": "exposed",
    "exposed part": "exposed: after backward",
    "collectives": "What a rank sends for an all-reduce; who receives what in an all-to-all",
    "ring": "MiB that each rank sends: all-reduce of 256 MiB",
    "ranks": "ranks",
    "received": "Tokens that each rank receives: all-to-all",
    "ratio": "most over mean:",
    "mean": "dashed: the mean, 64 tokens",
    "overlap": "One communication of 12 ms, two overlapping computations",
    "communication": "communication",
    "result": "seen from the step",
}
CHINESE: Words = {
    "message": "256 MiB，带宽 50 GiB/s，每次启动 8 us",
    "launches": "启动次数",
    "transfer": "字节数 ÷ 带宽",
    "latency": "启动次数 × 延迟",
    "merging": "四层，每层 32 MiB，50 GiB/s，每次启动 8 us",
    "slow": "四个大小不等的梯度，2.5 GiB/s，每次启动 120 us",
    "cap": "上限",
    "compute": "反向传播",
    "hidden": "被隐藏",
    "exposed": "暴露",
    "exposed part": "暴露（计算结束之后）",
    "collectives": "all-reduce 中每个 rank 的发送量；all-to-all 中各 rank 的接收量",
    "ring": "256 MiB all-reduce：每个 rank 发送的 MiB",
    "ranks": "rank 数",
    "received": "all-to-all：各 rank 收到的 token 数",
    "ratio": "最大值 ÷ 平均值 =",
    "mean": "虚线：平均值，64 个 token",
    "overlap": "一次 12 ms 的通信，两段互相重叠的计算",
    "communication": "通信",
    "result": "从一步来看",
}
PICTURES: Mapping[str, Callable[[Words], str]] = {
    "message.svg": message,
    "merging.svg": merging,
    "merging-slow.svg": merging_slow,
    "collectives.svg": collectives,
    "overlap.svg": overlap,
}


def drawn() -> dict[Path, str]:
    """Return every picture's file and text."""
    # On the overlap page what stands out of compute may lie before it, too.
    plain = {**ENGLISH, "exposed part": "exposed", "compute": "compute"}
    chinese = {**CHINESE, "exposed part": "暴露", "compute": "计算"}
    files = {}
    for name, draw in PICTURES.items():
        last = name == "overlap.svg"
        files[DOCS / "tutorial" / name] = draw(plain if last else ENGLISH)
        files[DOCS / "zh-CN" / "tutorial" / name] = draw(chinese if last else CHINESE)
    return files


def main() -> int:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description="draw the tutorial's pictures")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one differs")
    check = parser.parse_args().check
    differ = 0
    for path, text in drawn().items():
        if check:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                sys.stderr.write(f"{path.relative_to(DOCS.parent)} is not what is drawn now\n")
                differ = 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return differ


if __name__ == "__main__":
    sys.exit(main())
