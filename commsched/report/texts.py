"""Texts that are safe in a page: whatever a name holds, it is one visible line of bounded length."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from commsched.models.errors import printable

MOST_NAME = 160
"""Longer names are cut in the middle."""
MOST_TEXT = 2_000
"""Longer sentences are."""

_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def line(text: str, most: int = MOST_TEXT) -> str:
    r"""Return a text as one line without control characters, cut in the middle if it is long.

    Examples
    --------
    >>> print(line("a\nb\u2028\u202ec"))
    a\nb\u2028\u202ec
    >>> line("0123456789abcdef", 9)
    '0123…cdef'
    """
    if len(text) > most:  # first, for a text of megabytes need not be looked through
        half = (most - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return printable(text)


def name(text: str) -> str:
    """Return a name as one line."""
    return line(text, MOST_NAME)


def escaped(text: str, most: int = MOST_TEXT) -> str:
    """Return a text that stands for itself in HTML, in an attribute too.

    Examples
    --------
    >>> escaped("<b onclick='x'>")
    '&lt;b onclick=&#x27;x&#x27;&gt;'
    """
    return html.escape(line(text, most))


def tag(element: str, inner: str, **attributes: str) -> str:
    """Return an element around HTML; attributes are escaped, and ``class_`` stands for ``class``.

    Examples
    --------
    >>> tag("td", escaped("a < b"), class_="n", data_sort="1")
    '<td class="n" data-sort="1">a &lt; b</td>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
    )
    return f"<{element}{written}>{inner}</{element}>"


def items(texts: Iterable[str], *, fallback: str = "") -> str:
    """Return texts as a list in HTML, or a sentence where there are none."""
    found = [tag("li", escaped(text)) for text in texts]
    if not found:
        return tag("p", escaped(fallback), class_="soft") if fallback else ""
    return tag("ul", "".join(found))


def table(head: Sequence[str], body: Sequence[str], label: str) -> str:
    """Return a table of rows in HTML, which scrolls within the page where it is too wide."""
    heads = "".join(tag("th", escaped(name), scope="col") for name in head)
    rows = tag("table", tag("thead", tag("tr", heads)) + tag("tbody", "".join(body)))
    return tag("div", rows, class_="scroll", tabindex="0", role="region", aria_label=label)


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a table from texts."""
    return tag("tr", "".join(tag("td", escaped(cell)) for cell in cells))


def script_json(document: dict[str, Any]) -> str:
    r"""Return a document as JSON that cannot end the script element it stands in.

    Examples
    --------
    >>> script_json({"name": "</script><!--"})
    '{"name":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = msgspec.json.encode(document).decode()
    for character, escape in _IN_SCRIPT.items():
        text = text.replace(character, escape)
    return text
