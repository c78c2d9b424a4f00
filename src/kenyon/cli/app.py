"""The program: its commands, in the order in which its help lists them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kenyon.cli.commands import data, looking, measuring, training
from kenyon.utils.text import printable
from kenyon.version import __version__


class Commands(TyperGroup):
    """The program's commands. Messages about what was typed have no control characters."""

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
        told: Any = error
        if hasattr(error, "format_message"):  # Click's, or that of the copy of it which Typer may have
            told.message = printable(str(told.message), lines=True)
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


app.command()(training.run)
app.command()(training.search)
app.command()(training.sweep)
app.command(name="list")(looking.list_)
app.command()(looking.show)
app.command()(looking.analyse)
app.command(name="reproduce")(measuring.reproduce_)
app.command()(looking.report)
app.command()(looking.verify)
app.command()(looking.watch)
app.command()(measuring.bench)

datasets = typer.Typer(help="Fetch public datasets and see what is there.", no_args_is_help=True)
datasets.command()(data.get)
datasets.command(name="list")(data.list_data)
app.add_typer(datasets, name="data")
