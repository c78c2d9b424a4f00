"""The program: its commands, in the order of its help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kenyon.cli.analyse import analyse
from kenyon.cli.bench import bench
from kenyon.cli.data import get, list_data
from kenyon.cli.list import list_
from kenyon.cli.report import report
from kenyon.cli.reproduce import reproduce_
from kenyon.cli.run import run
from kenyon.cli.search import search
from kenyon.cli.show import show
from kenyon.cli.sweep import sweep
from kenyon.cli.verify import verify
from kenyon.cli.watch import watch
from kenyon.utils.text import printable
from kenyon.version import __version__


class Commands(TyperGroup):
    """The program's commands. Messages about arguments have no control characters."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _plain_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _plain_messages():
            return super().invoke(ctx)


@contextmanager
def _plain_messages() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        shown: Any = error
        if hasattr(error, "format_message"):  # Click's, or that of the copy of it which Typer may have
            shown.message = printable(str(shown.message), lines=True)
        raise


app = typer.Typer(
    name="kenyon",
    cls=Commands,
    help="Continual learning with collaborating learners and active forgetting.",
    no_args_is_help=True,
    rich_markup_mode="rich",  # the default of Typer, but not of its older versions
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kenyon {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command()(run)
app.command()(search)
app.command()(sweep)
app.command(name="list")(list_)
app.command()(show)
app.command()(analyse)
app.command(name="reproduce")(reproduce_)
app.command()(report)
app.command()(verify)
app.command()(watch)
app.command()(bench)

datasets = typer.Typer(help="Fetch public datasets and see what is there.", no_args_is_help=True)
datasets.command()(get)
datasets.command(name="list")(list_data)
app.add_typer(datasets, name="data")
