"""The command line. `kenyon --help` must answer at once: everything heavy is imported inside the commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. What the user can mend is told in one message, without a traceback."""
    from rich.console import Console

    from kenyon.cli.app import app
    from kenyon.data.reports import reporting_to
    from kenyon.errors import KenyonError

    try:
        with reporting_to(_Notices()):
            app()
    except KenyonError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


class _Notices:
    """What the library has to say beside results goes to standard error, where nothing else draws."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        from rich.console import Console

        Console(stderr=True).print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
