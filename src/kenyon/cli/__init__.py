"""The command line. `kenyon --help` must answer at once: everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from kenyon.cli.signals import INTERRUPTED, TERMINATED, Terminated, leave_on_signals

WHOLE = "KENYON_TRACEBACK"  # environment variable: show tracebacks of errors in the user's own code


def program() -> None:
    """The process that `kenyon` and `python -m kenyon` start."""
    leave_on_signals()
    sys.excepthook = _print_bug
    main()


def main() -> None:
    """Run a command. Errors that the user can correct are printed as one message, without a traceback."""
    from kenyon.errors import KenyonError

    try:
        from rich.text import Text

        from kenyon.cli.app import app
        from kenyon.cli.consoles import indented, speaking, stderr
        from kenyon.utils.progress import reporting_to

        with reporting_to(_Notices()), speaking():
            app()
    except BrokenPipeError:
        sys.exit(1)
    except KenyonError as error:
        stderr().print(Text.assemble(("Error:", "bold red"), f" {indented(error)}"), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
    except Exception as error:
        if (short := _short_of_memory(error)) and not os.environ.get(WHOLE):
            text = f" There is too little memory here ({short}). Results that were complete are saved. "
            text += "Close other programs, or allow this one more (ulimit -v, or the memory of its job or container)."
            _write_plain(f"Error:{text}")
            sys.exit(1)
        from kenyon.utils.user_code import location_in_user_file

        where = "" if os.environ.get(WHOLE) else location_in_user_file(error)
        if not where:
            raise
        text = f" {where}: {type(error).__name__}: {error}. Finished runs are saved: correct it and run again."
        stderr().print(
            Text.assemble(("Error:", "bold red"), f"{text} {WHOLE}=1 shows the traceback."), soft_wrap=True
        )
        sys.exit(1)


# Messages of Python, the system's loader, NumPy and PyTorch about too little memory.
FULL = (
    "failed to map segment",
    "annot allocate memory",
    "nable to allocate",
    "an't allocate memory",
    "not enough memory",
    "an't start new thread",
    "bad_alloc",
    "returned NULL without setting an exception",
)


def _short_of_memory(error: BaseException | None) -> str:
    """Return the message of an error that comes from too little memory, or an empty text."""
    while error is not None:
        line = next((line for line in str(error).splitlines() if any(full in line for full in FULL)), "")
        if line or isinstance(error, MemoryError):
            return (line or str(error)).strip().rstrip(".") or "out of memory"
        error = error.__cause__ or error.__context__
    return ""


def _write_plain(text: str) -> None:
    """Write to standard error without a console, whose parts may not be importable."""
    from kenyon.utils.text import printable

    if sys.stderr is not None:
        sys.stderr.write(f"{printable(text, lines=True)}\n")


def _print_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error as Python does, without control characters: names may come from files."""
    import traceback

    _write_plain("".join(traceback.format_exception(kind, error, trace)).rstrip())


class _Notices:
    """A reporter that prints notices of the library to standard error."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        from kenyon.cli.consoles import stderr

        stderr().print(text, style="yellow", soft_wrap=True)
