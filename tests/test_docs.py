"""The pages: what is made is current, links lead somewhere, and both languages say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from shared_files import golden

import commsched
from commsched import models, optimizer, problems

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CHINESE = sorted((DOCS / "zh-CN").rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
STEPS = ["1-message.md", "2-merging.md", "3-collectives.md", "4-overlap.md"]


def name_of(page):
    """Return a page's name as a test's id."""
    return str(page.relative_to(DOCS))


def text_of(page):
    """Return a page's text."""
    return page.read_text(encoding="utf-8")


def without_code(text):
    """Return a page without its code, in which brackets mean other things."""
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def anchors(page):
    """Return the anchors of a page's headings, as the site and as GitHub make them."""
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", BLOCK.sub("", text_of(page)), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip()
        found |= {plain.replace(" ", "-"), re.sub(r"[\s-]+", "-", plain)}
    return found


@pytest.mark.parametrize("script", ["cli_page.py", "tutorial_pictures.py"])
def test_what_is_made_is_current(script):
    """Running the script would change nothing."""
    done = subprocess.run(
        [sys.executable, DOCS / "make" / script, "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_page_has_every_command():
    """Every command that is registered has its section, nested ones, too."""
    commands = re.findall(r"^## (commsched .+)$", text_of(DOCS / "cli.md"), re.MULTILINE)
    assert {"commsched plan", "commsched compare", "commsched export"} <= set(commands)
    assert len(commands) == len(set(commands))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """Files are there, and headings that are linked to."""
    for target in LINK.findall(without_code(text_of(page))):
        if re.match(r"[a-z]+://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        assert file.is_relative_to(DOCS), f"{target}: the site has only docs/"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


def test_every_page_is_in_the_contents():
    """The front page links to all others, and the site's list has them."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    front = text_of(DOCS / "index.md") + text_of(DOCS / "zh-CN" / "index.md")
    for page in PAGES:
        assert f": {page.relative_to(DOCS)}\n" in listed
        if page.name != "index.md":
            assert f"({page.relative_to(DOCS)})".replace("(zh-CN/", "(") in front


@pytest.mark.parametrize("page", CHINESE, ids=name_of)
def test_both_languages_run_the_same(page):
    """The Chinese page has the code, the pictures and the headings of the English one."""
    english = DOCS / page.relative_to(DOCS / "zh-CN")
    if page.name == "index.md":
        return
    assert BLOCK.findall(text_of(page)) == BLOCK.findall(text_of(english))
    for pattern in (r"!\[[^]]*\]\(([^)]+)\)", r"^(#+) ", r"^(\| --- )", r"<details"):
        counts = [
            len(re.findall(pattern, BLOCK.sub("", text_of(one)), re.MULTILINE))
            for one in (page, english)
        ]
        assert counts[0] == counts[1], pattern


@pytest.mark.parametrize("page", CHINESE, ids=name_of)
def test_both_languages_have_the_same_numbers(page):
    """Every number with a unit of the one page stands in the other, too."""
    english = DOCS / page.relative_to(DOCS / "zh-CN")
    if page.name == "index.md":
        return
    unit = re.compile(r"\d[\d,.]*(?: (?:ms|us|MiB|KiB|GiB/s|GB/s|GiB|Gb/s)|%)")
    found = [
        {one.rstrip(".,") for one in unit.findall(BLOCK.sub("", text_of(file)))}
        for file in (page, english)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("page", [*STEPS, *(f"../zh-CN/tutorial/{step}" for step in STEPS)])
def test_a_step_of_the_tutorial_is_complete(page):
    """A picture, an exercise with its answer, and code that computes."""
    text = text_of(DOCS / "tutorial" / page)
    assert re.search(r"!\[[^]]+\]\([\w-]+\.svg\)", text)
    assert text.count("<details") == text.count("</details>") == 1
    assert len(BLOCK.findall(text)) >= 3


def test_the_tutorial_has_the_golden_numbers():
    """The golden file's results stand in the page of their function."""
    cases = golden("seed_functions.json")
    pages = [text_of(DOCS / "tutorial" / step) for step in STEPS]
    for case in cases["communication_time_ms"]:
        assert str(case["out"]["communication_ms"]) in pages[0]
    shown = re.findall(r"\d+\.\d+", pages[1])
    for case in cases["schedule_gradient_buckets"]:
        if case["kw"].get("bandwidth_gib_s") != 50:
            assert str(case["out"]["exposed_after_backward_ms"]) in shown
    for case in cases["ring_allreduce_payload_mib"]:
        assert case["args"][0] == 0 or str(case["out"]) in pages[2]
    for case in cases["alltoall_route_ledger"]:
        assert str(case["out"]["received_tokens"]) in pages[2]
        assert str(case["out"]["max_to_mean_receive_ratio"]) in pages[2]
    for case in cases["communication_exposure"]:
        if case["out"]["merged_overlap_intervals"] not in ([], [[0, 12]]):
            assert f"{case['out']['hidden_ms']}" in pages[3]
            assert str(case["out"]["merged_overlap_intervals"]) in pages[3]


def test_the_api_page_has_the_names_of_everyday_use():
    """Each public name is linked to where it is defined."""
    text = text_of(DOCS / "api.md")
    listed = dict(re.findall(r"\[`(\w+)`\]\[([\w.]+)\]", text))
    assert list(listed) == commsched.__all__
    for name, target in listed.items():
        found = [one for one in (models, problems, optimizer) if name in one.__all__]
        assert any(target.startswith(one.__name__) for one in found)


def test_files_that_the_guide_for_extending_names_are_there():
    """Every path in it exists, but for the example's own."""
    named = re.findall(r"`((?:[\w]+/)+[\w.]+\.(?:py|md))`", text_of(DOCS / "extending.md"))
    assert len(named) > 20
    for path in set(named) - {"optimizer/rules/mine.py"}:
        assert (ROOT / path).is_file(), path


def test_the_proofs_name_files_that_are_there():
    """Proofs and tests that the table names exist."""
    for path in set(re.findall(r"`((?:\w+/)+\w+\.py)`", text_of(DOCS / "proofs.md"))):
        assert (ROOT / path).is_file(), path
