"""The command line's entry point: an interrupt is heard from the first moment, then the rest is loaded.

Nothing is imported at the top, so that hardly any time passes before :func:`main` is reached.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Parameters
    ----------
    arguments
        What the user wrote; by default this process's own arguments. Then Ctrl-C is the command
        line's at any time; otherwise it remains the business of the program that calls.
    """
    if arguments is not None:
        _run(arguments)
    import signal

    try:
        heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if heard:  # and not ignored, as with nohup
            signal.signal(signal.SIGINT, _exit_at_once)
        from commsched import app  # noqa: F401 - loads all that takes long

        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(None)
    except KeyboardInterrupt:
        _exit_at_once(signal.SIGINT, None)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is printed: no traceback at the end


def _run(arguments: list[str] | None) -> NoReturn:
    from commsched.app import app
    from commsched.process import run

    run(app, arguments)


def _exit_at_once(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Exit as for Ctrl-C; while modules are loaded an exception might be caught by one of them."""
    import os

    os.write(2, b"commsched: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
