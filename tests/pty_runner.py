"""Running the command line as people do: as a process whose output is a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import selectors
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
SETTINGS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE",
            "TTY_INTERACTIVE", "PYTHONIOENCODING", "PYTHONUTF8", "LANG", "LC_ALL", "CI")  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, and what it wrote where.

    ``out`` and ``err`` are as written; ``screen`` is the former without colours.
    """

    code: int
    out: str
    err: str

    @property
    def screen(self) -> str:
        return ESCAPE.sub("", self.out).replace("\r\n", "\n")


def run_in_terminal(
    *arguments,
    columns=80,
    lines=24,
    out="terminal",
    err="terminal",
    after=None,
    env=None,
    code=None,
):
    """Run the command line with its outputs on terminals, or on pipes where they say ``pipe``.

    ``after`` is a text on standard error after which an interrupt is sent. ``code`` is Python code
    to run instead of the command line.
    """
    environ = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environ |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "commsched"]
    ends, given = {}, {}
    for name, kind in (("stdout", out), ("stderr", err)):
        ours, theirs = pty.openpty() if kind == "terminal" else os.pipe()
        if kind == "terminal":
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        ends[name], given[name] = ours, theirs
    read = dict.fromkeys(ends, b"")
    with subprocess.Popen(
        [*command, *map(str, arguments)], env=environ, stdin=subprocess.DEVNULL, **given
    ) as process:
        for theirs in given.values():
            os.close(theirs)
        with selectors.DefaultSelector() as selector:
            for name, ours in ends.items():
                selector.register(ours, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    data = b""
                    with contextlib.suppress(OSError):  # a terminal that the other side has left
                        data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    read[key.data] += data
                    if after and key.data == "stderr" and after.encode() in read["stderr"]:
                        process.send_signal(2)
                        after = None
        ended = process.wait(60)
    for ours in ends.values():
        os.close(ours)
    return Ended(ended, *(read[name].decode("utf-8", "surrogateescape") for name in ends))
