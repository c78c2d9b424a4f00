"""The command line. `kenyon --help` must answer at once: everything heavy is imported inside the commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. What the user can mend is told in one message, without a traceback."""
    from rich.console import Console

    from kenyon.cli.app import app
    from kenyon.errors import KenyonError

    try:
        app()
    except KenyonError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
