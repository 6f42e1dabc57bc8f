"""Numbers in the running text of the pages: each is computed here, and stands in both languages.

``docs_examples.py`` runs the code of the pages. What the text around it says is not run, so this is
where a figure in a sentence is held to the engine: a page's figures must be exactly those that its
function computes, from the inputs that the page states.
"""

from __future__ import annotations

import code
import re
from itertools import pairwise

import pytest
from shared_files import golden
from test_docs import BLOCK, DOCS, STEPS, name_of, text_of
from test_library import LOGS

from commsched import evaluate, optimize, read, rule
from commsched.models import (
    alltoall_route_ledger,
    communication_exposure,
    communication_time_ms,
    ring_allreduce_payload_mib,
    schedule_gradient_buckets,
)
from commsched.models.units import MIB
from commsched.optimizer.rules.ddp import CAP_BYTES, FIRST_CAP_BYTES
from commsched.problems.estimates.hardware import ACCELERATORS, FABRICS, network_cost
from commsched.problems.estimates.library import make

FIGURE = re.compile(r"\d[\d,.]*(?: (?:ms|us|[KMG]i?B(?:/s)?|Gb/s)\b|%)|\d+\.\d+")
FIRST_PAGES = ["start.md", *(f"tutorial/{step}" for step in STEPS)]
BOTH = [page for name in FIRST_PAGES for page in (DOCS / name, DOCS / "zh-CN" / name)]
PAST_FIGURES = {"3.11"}  # versions of Python


def figures_of(page):
    """Return the numbers with a unit and the decimal numbers in a page's sentences."""
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)|<[^>]+>", "", BLOCK.sub("", text_of(page)))
    return {found.group().rstrip(".,") for found in FIGURE.finditer(text)} - PAST_FIGURES


def start():
    """ResNet-50 of the library, and the recorded step; the table says the rest."""
    problem = make("resnet50/a100/200g/dp128").problem
    today, best = evaluate(problem, rule("ddp").make(problem)), optimize(problem)
    printed = " ".join(block for _, block in BLOCK.findall(text_of(DOCS / "start.md")))
    recorded = [figure for figure in ("5.75 ms", "5.10 ms") if figure in printed]
    return {
        f"{today.exposed_ns / 1e3:.0f} us",
        f"{best.exposed_ns / 1e3:.0f} us",
        f"{best.lower_bound_ns / 1e6:.3f} ms",
        f"{100 * (1 - best.lower_bound_ns / today.makespan_ns):.2f}%",
        f"{FABRICS['200g'].rate.value:.0f} Gb/s",
        *recorded,
    }


def message():
    """The first step: 256 MiB in some launches, a tiny message, half of the bandwidth, the exercise."""
    times = {n: communication_time_ms(256, 50, 8, n) for n in (1, 64, 512)}
    tiny = communication_time_ms(0.001, 12.5, 3)
    assert 0.4 < times[512]["launch_ms"] / times[512]["communication_ms"] < 0.5  # almost half
    assert tiny["launch_ms"] / tiny["communication_ms"] > 0.95  # nearly all latency
    many, few = (communication_time_ms(102400, 400, 25, n) for n in (1000, 100))
    saved = many["communication_ms"] - few["communication_ms"]
    return {
        "256 MiB at 50 GiB/s, 8 us; 1 KiB at 12.5 GiB/s and 3 us; 100 GiB at 400 GiB/s, 25 us",
        "1 MiB, 1 GiB are 1,024 MiB, 1 us",
        "20% on a real network and 10 Gb/s",  # what costs.md shows, and a name of the library
        f"{times[1]['transfer_ms']:g} ms",
        f"{100 * times[64]['launch_ms'] / times[64]['transfer_ms']:.0f}%",
        f"{8e-6 * 50 * 1024:.4f} MiB",
        *(f"{many[part]:g} ms" for part in ("transfer_ms", "launch_ms", "communication_ms")),
        f"{few['launch_ms']:g} ms",
        f"{saved:g} ms",
        f"{100 * saved / many['communication_ms']:.0f}%",
    }


FOUR = [
    {"name": name, "ready_ms": ready, "size_mib": 32}
    for name, ready in (("L4", 2), ("L3", 5), ("L2", 9), ("L1", 14))
]


def merging():
    """The second step: what a cap costs on an idle network, and the exercise."""
    idle = {
        cap: schedule_gradient_buckets(FOUR, cap)["exposed_after_backward_ms"]
        for cap in (32, 64, 128)
    }
    layer = communication_time_ms(32, 5, 0)["transfer_ms"]
    gaps = [b["ready_ms"] - a["ready_ms"] for a, b in pairwise(FOUR)]
    assert layer > max(gaps)  # so the network is busy from the first layer on
    slow = {
        us: {
            cap: schedule_gradient_buckets(FOUR, cap, bandwidth_gib_s=5, latency_us=us)
            for cap in (32, 64, 128)
        }
        for us in (500, 3000)
    }
    ends = {
        us: {cap: one["exposed_after_backward_ms"] for cap, one in found.items()}
        for us, found in slow.items()
    }
    assert min(ends[500], key=ends[500].get) == 32
    assert min(ends[3000], key=ends[3000].get) == 64
    first = {cap: one["timeline"][0]["start_ms"] for cap, one in slow[3000].items()}
    fewer = {cap: 4 - one["bucket_count"] for cap, one in slow[3000].items()}
    assert round((idle[128] - idle[64]) / 2, 6) == round(idle[64] - idle[32], 6)
    return {
        "32 MiB, 50 GiB/s, 8 us; 2.5 GiB/s, 120 us; 10.5 MiB, 11 MiB, 36 MiB, 48 MiB",
        "64 MiB, 128 MiB; 5 GiB/s; 500 us, 0.5 ms; 3 ms",
        f"{FIRST_CAP_BYTES // MIB} MiB and {CAP_BYTES // MIB} MiB",
        f"{FOUR[-1]['ready_ms']} ms",
        f"{FOUR[0]['ready_ms']} ms",
        f"{idle[64] - idle[32]:.3f} ms",
        f"{layer:g} ms",
        f"{fewer[128] * 0.5:g} ms",
        *(f"{fewer[cap] * 3:g} ms" for cap in (64, 128)),
        *(f"{first[cap] - first[32]:g} ms" for cap in (64, 128)),
    }


def collectives():
    """The third step: what a rank sends and receives."""
    ratio = ring_allreduce_payload_mib(256, 1024) / ring_allreduce_payload_mib(256, 8)
    even, hot = (
        alltoall_route_ledger([row] * 4, 4096) for row in ([16, 16, 16, 16], [4, 4, 52, 4])
    )
    assert even["remote_payload_mib"] == hot["remote_payload_mib"]
    odd = alltoall_route_ledger([[0, 5, 1], [2, 9, 3], [7, 0, 4]], 2)
    return {
        f"{100 * (ratio - 1):.0f}%",
        f"{hot['remote_payload_mib']} MiB",
        f"{hot['max_to_mean_receive_ratio']}",
        f"{odd['max_to_mean_receive_ratio']}",
    }


def overlap():
    """The fourth step: two exposures, and the four layers as a file."""
    one = communication_exposure([0, 12], [[1, 4], [3, 8]])
    other = communication_exposure([0, 10], [[1, 2], [2, 3], [5, 5], [4, 6], [4.5, 5.5]])
    best = optimize(read(DOCS.parent / "examples" / "four_layers.json"))
    assert one["merged_overlap_intervals"] == [[1, 8]]
    return {
        "0 to 12 ms, and 0 to 10 ms; 1 ms",
        f"{(4 - 1) + (8 - 3)} ms",
        f"{one['hidden_ms']} ms",
        f"{one['exposed_ms']} ms",
        f"{other['hidden_ms']} ms",
        f"{other['exposed_ms']} ms",
        f"{best.problem.compute_ns // 1000:,} us",
        f"{best.lower_bound_ns // 1000:,} us",
        f"{best.exposed_ns // 1000} us",
    }


COMPUTED = dict(zip(FIRST_PAGES, (start, message, merging, collectives, overlap), strict=True))


@pytest.mark.parametrize("page", BOTH, ids=name_of)
def test_every_figure_of_a_first_page_is_computed(page):
    """Nothing stands in a sentence that is not computed here, and nothing computed is missing."""
    computed = COMPUTED[str(page.relative_to(DOCS)).removeprefix("zh-CN/")]()
    expected = {found.group().rstrip(".,") for found in FIGURE.finditer(" ; ".join(computed))}
    assert figures_of(page) == expected


def test_the_pages_have_every_size_of_the_golden_exposures():
    """Hidden and exposed times of the golden file that have a unit stand in the fourth step."""
    shown = figures_of(DOCS / "tutorial" / STEPS[3])
    outs = [case["out"] for case in golden("seed_functions.json")["communication_exposure"]]
    outs = [out for out in outs if out["merged_overlap_intervals"] not in ([], [[0, 12]])]
    assert outs
    for out in outs:
        assert {f"{out['hidden_ms']:g} ms", f"{out['exposed_ms']:g} ms"} <= shown


@pytest.mark.parametrize("page", BOTH, ids=name_of)
def test_blocks_can_be_typed_line_by_line(page):
    """Pasted into the interactive interpreter, which ends a loop at an empty line only."""
    console = code.InteractiveConsole()
    errors = []
    console.showsyntaxerror = lambda *_, **__: errors.append("syntax")
    console.showtraceback = lambda: errors.append("raised")
    for language, block in BLOCK.findall(text_of(page)):
        if language == "python":
            for line in [*block.splitlines(), ""]:
                console.push(line)
                assert errors == [], line


def terms_of(page):
    """Return the words that a page defines: those in bold, without its line of links."""
    text = "\n".join(line for line in text_of(page).splitlines() if " · " not in line)
    return re.findall(r"\*\*([^*]+)\*\*", BLOCK.sub("", text))


def glossary():
    """Return the glossary: words of a row, and its Chinese."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| .+ \|$", text_of(DOCS / "glossary.md"), re.M)
    found = {
        word.strip("` ").lower(): chinese for words, chinese in rows for word in words.split(", ")
    }
    assert len(found) > 40
    return found


@pytest.mark.parametrize("step", STEPS)
def test_words_are_those_of_the_glossary_in_both_languages(step):
    """What a step defines stands in the glossary, and the Chinese page uses the glossary's word."""
    words = glossary()
    english = terms_of(DOCS / "tutorial" / step)
    chinese = terms_of(DOCS / "zh-CN" / "tutorial" / step)
    assert len(english) == len(chinese)
    for word, translated in zip(english, chinese, strict=True):
        if " is always " in word:  # a sentence, not a word
            continue
        word = word.lower()
        row = words.get(word) or words[word.removesuffix("s")]
        assert translated in row or re.split(r"\W", row)[0] in translated, (word, translated, row)


def test_the_glossary_is_in_the_order_of_the_alphabet():
    """So that a word is found; each word once."""
    first = [
        row.lower()
        for row in re.findall(r"^\| ([a-z][^|,`]+)", text_of(DOCS / "glossary.md"), re.M)
    ]
    first = [word.strip() for word in first if word.strip() != "word"]
    assert first == sorted(first)
    assert len(first) == len(set(first))


def test_the_library_page_has_the_latencies_and_bandwidths_of_its_formula():
    """What stands beside the measured figures is what the library computes today."""
    text = text_of(DOCS / "library.md")
    rows = re.findall(r"^\| [^|]+ \| \d+ us, (\d+) us \| \d+ GB/s, (\d+) GB/s \|$", text, re.M)
    costs = [network_cost(ACCELERATORS[row[1]], row[2], "allreduce", row[3]) for row in LOGS]
    assert rows == [
        (f"{cost.alpha_us:.0f}", f"{cost.pieces[0].scale / cost.pieces[0].slope:.0f}")
        for cost in costs
    ]


def test_the_library_page_has_the_peaks_and_links_of_its_tables():
    """Data sheets, in the order of the accelerators."""
    text = text_of(DOCS / "library.md")
    for chip, accelerator in ACCELERATORS.items():
        for figure in (accelerator.peak, accelerator.link):
            assert f"{chip.upper()} {figure.value:g}" in text
