"""Names that a framework can look up: parameters and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from commsched.models.errors import NotApplicableError

_PATH = re.compile(r"\w+(\.\w+)*")


def is_path(name: str) -> bool:
    """Return whether a name can be the dotted path of a parameter or a module.

    Examples
    --------
    >>> is_path("layers.3.attn.q.weight"), is_path("grad000 [1024x320]"), is_path("a..b")
    (True, False, False)
    """
    return _PATH.fullmatch(name) is not None


def first_other(names: Iterable[str]) -> str | None:
    """Return the first name that is no dotted path, or None."""
    return next((name for name in names if not is_path(name)), None)


def paths_only(names: Iterable[str], who: str, what: str = "parameter") -> None:
    """Refuse names that a framework cannot look up.

    Raises
    ------
    NotApplicableError
        If a name is no dotted path.
    """
    other = first_other(names)
    if other is not None:
        raise NotApplicableError(f"{who} needs {what} names; {other!r:.100} is none")
