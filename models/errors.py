"""The tree of exceptions and warnings: catch the grain that you need.

Everything that the package raises on purpose derives from :class:`CommschedError`. Whatever the
caller can mend (a file, a value, a plan) is an :class:`InputError`, which is a ``ValueError`` too.
"""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    r"""Return a text as one line: line breaks and other control characters become escapes.

    Examples
    --------
    >>> print(printable("a\nb"))
    a\nb
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


MAX_MESSAGE = 900
"""Longer messages (a name of a megabyte) are cut in the middle."""


class CommschedError(Exception):
    """Base of every exception that this package raises on purpose.

    The message is one line, whatever names it quotes.
    """

    def __init__(self, message: str = "") -> None:
        line = printable(str(message))
        if len(line) > MAX_MESSAGE:
            line = f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"
        super().__init__(line)


class InputError(CommschedError, ValueError):
    """The input is at fault; the message is one line that names the item, the value and the rule."""


class CycleError(InputError):
    """Tasks that wait for each other in a circle.

    Attributes
    ----------
    path
        Names along the circle; the first is repeated at the end.
    """

    def __init__(self, message: str, path: Sequence[str]) -> None:
        super().__init__(message)
        self.path = tuple(path)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make it anew, for it must reach another process as every error does."""
        return type(self), (str(self), self.path)


class PlanError(InputError):
    """The plan does not fit the problem: a collective missing, twice, unknown or wrongly fused."""


class DeadlockError(PlanError):
    """Launch order or fusion makes launches wait for each other for ever.

    Attributes
    ----------
    path
        What waits for what, around the circle; the first is repeated at the end.
    """

    def __init__(self, message: str, path: Sequence[str]) -> None:
        super().__init__(message)
        self.path = tuple(path)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make it anew, for it must reach another process as every error does."""
        return type(self), (str(self), self.path)


class NotApplicableError(CommschedError):
    """A rule or a method cannot say anything about this problem; the message says why."""


class MissingExtraError(CommschedError):
    """An optional dependency is not installed; the message says how to get it."""


class SolverError(CommschedError):
    """A solver contradicted the evaluator or refused its model: a bug of ours, never bad input."""


class CommschedWarning(UserWarning):
    """Base of the package's warnings."""


class ExtrapolationWarning(CommschedWarning):
    """A cost was asked for far beyond the largest size that was measured."""
