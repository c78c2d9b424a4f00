"""The command line. `kenyon --help` must answer at once: everything heavy is imported inside the commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. What the user can mend is told in one message, without a traceback."""
    from rich.text import Text

    from kenyon.cli.app import app
    from kenyon.cli.consoles import speaking, stderr
    from kenyon.data.reports import reporting_to
    from kenyon.errors import KenyonError

    try:
        with reporting_to(_Notices()), speaking():
            app()
    except BrokenPipeError:
        sys.exit(1)
    except KenyonError as error:
        stderr().print(Text.assemble(("Error:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


class _Notices:
    """What the library has to say beside results goes to standard error, where nothing else draws."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        from kenyon.cli.consoles import stderr

        stderr().print(text, style="yellow", soft_wrap=True)
