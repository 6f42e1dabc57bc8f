"""The page: texts, data, style and scripts in one file that loads nothing.

The content security policy allows the one style sheet and the one script by their digests and nothing
else, so that no name in the data can become code even if it slipped through the escaping.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template

from commsched import __version__
from commsched.report import texts
from commsched.report.added import overheads_section
from commsched.report.beyond import safety_section, slowed_section
from commsched.report.contents import Contents
from commsched.report.data import report_data
from commsched.report.sections import settings_section, source_line, verdict_section
from commsched.report.tables import (
    reading_section,
    rules_section,
    stability_section,
    what_if_section,
)

SCRIPTS = (
    "base.js",
    "timeline.js",
    "view.js",
    "chart.js",
    "curves.js",
    "what_if.js",
    "launches.js",
    "start.js",
)
"""The page's scripts, which are one script in the page."""


def page_bytes(contents: Contents) -> bytes:
    """Return a report as one HTML file.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> from commsched.optimizer import optimize
    >>> from commsched.problems import Loaded
    >>> from commsched.report.contents import gather
    >>> problem = GradientProblem([Gradient("a", 5000, ready_ns=10)], AlphaBeta(3, 1), name="tiny")
    >>> contents = gather(
    ...     "tiny.json", Loaded(problem), optimize(problem), time_limit_s=1, workers=1)
    >>> page_bytes(contents)[:15], b"<h1>tiny</h1>" in page_bytes(contents)
    (b'<!doctype html>', True)
    """
    style, script = _file("style.css"), _script()
    title = contents.loaded.problem.name or "unnamed problem"
    page = Template(_file("page.html")).substitute(
        title=texts.escaped(title, texts.MOST_NAME),
        policy=texts.escaped(_policy(style, script)),
        style=style,
        script=script,
        source=source_line(contents),
        verdict=verdict_section(contents),
        settings=settings_section(contents),
        rules=rules_section(contents),
        what_if=what_if_section(contents),
        stability=stability_section(contents),
        slowed=slowed_section(contents),
        overheads=overheads_section(contents),
        safety=safety_section(contents),
        reading=reading_section(contents),
        version=texts.escaped(__version__),
        data=texts.script_json(report_data(contents)),
    )
    return page.encode()


def _file(name: str) -> str:
    return files("commsched.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(_file(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
