"""The fonts of pictures: matplotlib's own, and for letters that it lacks one that is installed.

Without one the letters are boxes, as they always are in matplotlib; that is never an error.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

OWN = "sans-serif"
"""Matplotlib's own DejaVu Sans, which has no Chinese, Japanese and Korean letters. In an SVG file any
other one takes its place."""
FILES = (
    *("notosanscjk", "notosanssc", "sourcehansans", "wqy-microhei", "wqy-zenhei", "msyh", "simhei"),
    *("pingfang", "hiragino sans gb", "stheiti", "arial unicode", "droidsansfallback"),
    *("notosansjp", "notosanskr", "yugoth", "msgothic", "malgun"),
)
"""How the file names begin of fonts that have many of them, the first choice first."""


def families(text: str) -> list[str]:
    """Return the families that a text is set in: the own one alone where it has all letters."""
    lacking = {ord(letter) for letter in text} - _letters(OWN)
    if not lacking:
        return [OWN]
    return [OWN, *(name for name in others() if lacking & _letters(name))]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Do not say on standard error that a font has no bold face, say."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.cache
def _letters(family: str) -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())


@functools.cache
def others() -> tuple[str, ...]:
    """Return the families of the fonts in :data:`FILES` that are installed."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    # Matplotlib's list of fonts may be older than the font, so the files are asked.
    installed = {path: Path(path).name.lower() for path in sorted(findSystemFonts())}
    found: dict[str, None] = {}
    for begin in FILES:
        files = [path for path, name in installed.items() if name.startswith(begin)]
        plain = [path for path in files if not _WEIGHTS.search(installed[path])]
        for path in set(plain) - {one.fname for one in fontManager.ttflist}:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # no font after all
                fontManager.addfont(path)
        faces = {one.name for one in fontManager.ttflist if one.fname in plain}
        # One file may hold a face for each country; widths as in the own font.
        found.update(
            dict.fromkeys(
                sorted(faces, key=lambda face: ("Mono" in face, "SC" not in face, face))[:1]
            )
        )
    return tuple(found)


_WEIGHTS = re.compile("black|light|medium|thin|heavy")
