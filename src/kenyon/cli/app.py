"""The program: its commands, in the order in which its help lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from kenyon.cli.commands import data, looking, measuring, training
from kenyon.version import __version__

app = typer.Typer(
    name="kenyon",
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
app.command()(looking.watch)
app.command()(measuring.bench)

datasets = typer.Typer(help="Fetch public datasets and see what is there.", no_args_is_help=True)
datasets.command()(data.get)
datasets.command(name="list")(data.list_data)
app.add_typer(datasets, name="data")
