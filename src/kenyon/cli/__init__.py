"""The command line. `kenyon --help` must answer at once: everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from kenyon.cli.signals import INTERRUPTED, TERMINATED, Terminated, leave_on_signals

WHOLE = "KENYON_TRACEBACK"  # in the environment: errors in a user's own code are shown whole


def program() -> None:
    """The process that `kenyon` and `python -m kenyon` start."""
    leave_on_signals()
    sys.excepthook = _tell_of_bug
    main()


def main() -> None:
    """Run a command of the program. What the user can mend is told in one message, without a traceback."""
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
            told = f" There is too little memory here ({short}). Results that were complete are saved. "
            told += "Close other programs, or allow this one more (ulimit -v, or the memory of its job or container)."
            _write_plain(f"Error:{told}")
            sys.exit(1)
        from kenyon.utils.user_code import location_in_user_file

        where = "" if os.environ.get(WHOLE) else location_in_user_file(error)
        if not where:
            raise
        told = f" {where}: {type(error).__name__}: {error}. What was finished is saved: mend it and run again."
        stderr().print(
            Text.assemble(("Error:", "bold red"), f"{told} {WHOLE}=1 shows the way there."), soft_wrap=True
        )
        sys.exit(1)


# What Python, the system's loader, NumPy and PyTorch say where there is no memory for something.
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
    """Of an error that comes from too little memory: what was too much, in the words of whoever found out."""
    while error is not None:
        line = next((line for line in str(error).splitlines() if any(full in line for full in FULL)), "")
        if line or isinstance(error, MemoryError):
            return (line or str(error)).strip().rstrip(".") or "out of memory"
        error = error.__cause__ or error.__context__
    return ""


def _write_plain(text: str) -> None:
    """Without the consoles, whose parts may have to be imported first."""
    from kenyon.utils.text import printable

    if sys.stderr is not None:
        sys.stderr.write(f"{printable(text, lines=True)}\n")


def _tell_of_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody expected, as Python shows it: what it names may come from files."""
    import traceback

    _write_plain("".join(traceback.format_exception(kind, error, trace)).rstrip())


class _Notices:
    """What the library has to say beside results goes to standard error, where nothing else draws."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        from kenyon.cli.consoles import stderr

        stderr().print(text, style="yellow", soft_wrap=True)
