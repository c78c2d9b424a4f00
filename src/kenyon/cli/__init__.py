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
    from rich.text import Text

    from kenyon.cli.app import app
    from kenyon.cli.consoles import indented, speaking, stderr
    from kenyon.data.reports import reporting_to
    from kenyon.errors import KenyonError
    from kenyon.user_files import place_in_own_file

    try:
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
        where = "" if os.environ.get(WHOLE) else place_in_own_file(error)
        if not where:
            raise
        told = f" {where}: {type(error).__name__}: {error}. What was finished is saved: mend it and run again."
        stderr().print(
            Text.assemble(("Error:", "bold red"), f"{told} {WHOLE}=1 shows the way there."), soft_wrap=True
        )
        sys.exit(1)


def _tell_of_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody expected, as Python shows it: what it names may come from files."""
    import traceback

    from kenyon.words import printable

    if sys.stderr is not None:
        sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace)), lines=True))


class _Notices:
    """What the library has to say beside results goes to standard error, where nothing else draws."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        from kenyon.cli.consoles import stderr

        stderr().print(text, style="yellow", soft_wrap=True)
