"""Telling how long work goes, on standard error, so that nobody waits in the dark.

On a terminal these are bars, which vanish when the work is done; elsewhere nothing, or lines of text
if the user asks for them. Lower layers know nothing of this: they call what they are given.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commsched.models.errors import printable
from commsched.models.units import format_bytes, format_ns
from commsched.optimizer.result import gap

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_AFTER_S = 1.0
"""Searches that end sooner say nothing, unless they are asked to."""
SHOWN_AFTER_S = 0.4
"""Work that ends sooner gets no bar: it would only flicker. With 0 bars are there at once."""
LINE_EVERY_S = 1.0
"""Between two lines about bytes that were read lies at least so much time."""

DONE, BEHIND = "color(68)", "color(240)"
"""A bar's colours, which differ in lightness, too, on black and on white."""

TellSearch = Callable[[float, int | None, int], None]
"""Takes the seconds since the start, the best makespan (None: no plan yet) and the bound, in ns."""
TellBytes = Callable[[int, int], None]
"""Takes how many bytes were read, and of how many (0: not known)."""
TellSteps = Callable[[int, int, str], None]
"""Takes how many steps are done, of how many, and what is being done now."""


class Watch:
    """What a command says on the way.

    Parameters
    ----------
    quiet
        Whether nothing is to be said, not even warnings.
    asked
        Whether everything is to be said as lines, also where standard error is no terminal.

    Examples
    --------
    >>> with Watch(quiet=True).steps("making bread") as tell:
    ...     tell(0, 2, "knead")
    ...     tell(1, 2, "bake")
    """

    def __init__(self, *, quiet: bool = False, asked: bool = False) -> None:
        terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.quiet = quiet
        self.bars = terminal and os.environ.get("TERM", "") not in ("dumb", "unknown")
        self.lines = not quiet and (asked or (terminal and not self.bars))
        self._first_after_s = 0.0 if asked else FIRST_AFTER_S

    def warn(self, text: str) -> None:
        """Say that something may be wrong."""
        if not self.quiet:
            _say(f"warning: {text}")

    @contextmanager
    def steps(self, what: str) -> Iterator[TellSteps]:
        """Show how many steps of some work are done.

        Parameters
        ----------
        what
            What is being done, such as ``comparing``.

        Yields
        ------
        TellSteps
            To be called before each step with how many are done, of how many, and what comes now.
        """
        start = time.monotonic()
        with self._bar(what) as bar:
            last = -1

            def tell(done: int, total: int, now: str = "") -> None:
                nonlocal last
                if bar is not None:
                    bar.show(done, total, f"{done} of {total}", now)
                if self.lines and done != last and time.monotonic() - start >= self._first_after_s:
                    _say(f"{what}: {done} of {total}{': ' * bool(now)}{now}")
                last = done

            yield tell

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show that something is being done of which nobody knows how long it takes."""
        with self._bar(what):
            yield

    @contextmanager
    def reading(self, name: str) -> Iterator[TellBytes | None]:
        """Show how much of a file was read; None if nobody looks.

        Parameters
        ----------
        name
            What is being read.
        """
        if not (self.bars or self.lines):
            yield None
            return
        with self._bar(f"reading {os.path.basename(os.path.normpath(name))}") as bar:
            start, said_at, last = time.monotonic(), -LINE_EVERY_S, ""

            def tell(done: int, total: int) -> None:
                nonlocal said_at, last
                of = format_bytes(done) + (f" of {format_bytes(total)}" if total else "")
                whole = done >= total > 0
                if bar is not None:  # what was read is yet to be understood
                    bar.show(done, 0 if whole else total, of)
                elapsed_s = time.monotonic() - start
                due = elapsed_s >= self._first_after_s and elapsed_s - said_at >= LINE_EVERY_S
                if self.lines and of != last and (due or (whole and self._first_after_s == 0)):
                    _say(f"reading {name}: {of}")
                    said_at, last = elapsed_s, of

            yield tell

    @contextmanager
    def search(self, what: str, time_limit_s: float) -> Iterator[TellSearch | None]:
        """Show how a search goes; None if nobody looks.

        Parameters
        ----------
        what
            What is being done, such as ``searching``.
        time_limit_s
            When the search ends at the latest.
        """
        if not (self.bars or self.lines):
            yield None
            return
        with self._bar(what, time_limit_s) as bar:

            def tell(elapsed_s: float, makespan_ns: int | None, bound_ns: int) -> None:
                share = f"gap {100 * gap(makespan_ns, bound_ns):.2f}%" if makespan_ns else ""
                plan = "no plan yet"
                if makespan_ns is not None:
                    plan = f"plan {format_ns(makespan_ns, 5)}"
                both = f"{plan}, bound {format_ns(bound_ns, 5)}"
                if bar is not None:
                    bar.say(f"{share}: {both}" if share else both)
                if self.lines and elapsed_s >= self._first_after_s:
                    _say(f"{elapsed_s:6.1f} s: {both}{', ' * bool(share)}{share}")

            yield tell

    @contextmanager
    def _bar(self, what: str, time_limit_s: float | None = None) -> Iterator[_Bar | None]:
        if not self.bars:
            yield None
            return
        bar = _Bar(what, time_limit_s)
        try:
            yield bar
        finally:
            bar.end()


def _say(text: str) -> None:
    sys.stderr.write(f"commsched: {printable(text)}\n")
    sys.stderr.flush()


class _Bar:
    """One bar on standard error that appears after a while and leaves nothing behind."""

    def __init__(self, what: str, time_limit_s: float | None) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._progress = _make_progress(time_limit_s)
        self._task = self._progress.add_task(printable(what), total=time_limit_s, count="", now="")
        # A thread, for whatever works may not come by for a long time.
        self._timer = threading.Timer(SHOWN_AFTER_S, self._start)
        self._timer.daemon = True
        if SHOWN_AFTER_S > 0:
            self._timer.start()
        else:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._over:
                self._progress.start()

    def show(self, done: int, total: int, count: str, now: str = "") -> None:
        """Show how much is done; without a total only that something goes on."""
        self._progress.update(
            self._task,
            completed=done if total else 0,
            total=total or None,
            count=count,
            now=printable(now),
        )

    def say(self, now: str) -> None:
        """Show what was found last."""
        self._progress.update(self._task, now=now)

    def end(self) -> None:
        """Take the bar away."""
        self._timer.cancel()
        with self._lock:
            self._over = True
            self._progress.stop()


def _make_progress(time_limit_s: float | None) -> Progress:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class _Console(Console):
        """Leaves the cursor alone, so nothing needs mending if the process is killed."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    console = _Console(stderr=True, highlight=False)

    class _Now(TextColumn):
        """What is cut off where the line is too long for the terminal."""

        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "crop"
            return text

    def column(field: str) -> TextColumn:
        return TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(no_wrap=True))

    class _Progress(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks if time_limit_s is not None else ():
                elapsed_s = min(task.elapsed or 0.0, time_limit_s or 0.0)
                task.completed = elapsed_s
                task.fields["count"] = f"{elapsed_s:.0f} of {time_limit_s:g} s"
            yield from super().get_renderables()

    bar_width = max(4, min(24, console.width // 5 - 4))
    return _Progress(
        column("description"),
        BarColumn(
            bar_width=bar_width,
            style=BEHIND,
            complete_style=DONE,
            pulse_style=DONE,
            table_column=Column(no_wrap=True, min_width=bar_width),
        ),
        column("fields[count]"),
        _Now("{task.fields[now]}", style="dim", markup=False, table_column=Column()),
        console=console,
        transient=True,
        redirect_stdout=False,
    )
