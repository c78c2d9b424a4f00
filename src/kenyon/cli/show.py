"""`kenyon show`: the contents of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kenyon.cli.options import Json, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console
    from rich.table import Table

    from kenyon.experiments.results import GameResult, Result, ResultBase
    from kenyon.metrics import Array

    Played = Mapping[str, Mapping[str, GameResult]]  # suite -> label -> result
    Accuracies = Mapping[str, Mapping[str, Result]]  # benchmark -> label -> result


def show(
    path: Results = Path("results"),
    json: Json = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, markdown, latex, csv (all accuracies or scores, one in a row) or json.",
        ),
    ] = "table",
    best: Annotated[bool, typer.Option("--best", help="Print the best of a LaTeX table in bold.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The same as --format markdown.")] = False,
) -> None:
    """Show saved results: the table, and for a single method its runs and settings."""
    from kenyon.cli.consoles import stderr
    from kenyon.errors import ConfigError, unknown
    from kenyon.experiments.compare import has_images, load_results, load_scores
    from kenyon.experiments.store import unfinished

    if format_ not in PRINT:
        raise unknown("format", format_, PRINT)
    asked = {format_, "json" if json else format_, "markdown" if markdown else format_} - {"table"}
    if len(asked) > 1:
        raise ConfigError("--format, --json and --markdown are forms of one answer. Choose one.")
    form = asked.pop() if asked else "table"
    if best and form != "latex":
        raise ConfigError("--best is for LaTeX tables. Give --format latex with it, or leave it out.")
    played = load_scores(path)
    results = {} if played and not has_images(path) else load_results(path)
    if note := unfinished(path):
        stderr().print(note, soft_wrap=True)
    PRINT[form](played, results, best)


def _print_markdown(played: Played, results: Accuracies, best: bool) -> None:
    from kenyon.cli.consoles import stderr, tell
    from kenyon.errors import ConfigError
    from kenyon.report.formats import results_markdown

    if played and results:
        stderr().print("Scores of games are left out: --markdown is for accuracies.", soft_wrap=True)
    if not results:
        raise ConfigError(
            "--markdown is for accuracies; these are scores of games. Use --json, or --format latex or csv."
        )
    tell(results_markdown(results))


def _print_latex(played: Played, results: Accuracies, best: bool) -> None:
    from kenyon.cli.consoles import tell
    from kenyon.report.formats import results_latex, scores_latex

    tables = [scores_latex(title, scores, best=best) for title, scores in played.items()]
    tables += [results_latex(methods, best=best) for methods in results.values()]
    tell("\n\n".join(tables))


def _print_csv(played: Played, results: Accuracies, best: bool) -> None:
    from kenyon.cli.consoles import stderr, tell
    from kenyon.report.formats import results_csv
    from kenyon.report.tables import diverged

    groups: list[Mapping[str, ResultBase]] = [*played.values(), *results.values()]
    for note in (note for some in groups for note in diverged(some)):
        stderr().print(f"{note} Left out.", soft_wrap=True)
    tell(results_csv(r for some in groups for r in some.values()).rstrip("\n"))


def _print_json(played: Played, results: Accuracies, best: bool) -> None:
    from kenyon.cli.consoles import tell_json
    from kenyon.cli.results import bodies_of

    body = bodies_of(played, 0.0)
    for name, methods in results.items():
        body |= bodies_of({name: methods}, sum(r.seconds for r in methods.values()))
    tell_json(body)


def _print_tables(played: Played, results: Accuracies, best: bool) -> None:
    from kenyon.cli.consoles import stdout
    from kenyon.cli.results import scores_table
    from kenyon.experiments.runner import REFERENCE
    from kenyon.report.tables import results_tables

    console = stdout()
    for title, scores in played.items():
        console.print(scores_table(scores, title))
    for methods in results.values():
        # The reference for FWT is shown only if there is nothing else.
        shown = {name: r for name, r in methods.items() if r.method != REFERENCE} or methods
        for table in results_tables(shown):
            console.print(table)
            console.print()
    if len(results) == 1 and len(methods := next(iter(results.values()))) == 1:
        _details(console, next(iter(methods.values())))
    if not results and len(played) == 1 and len(scores := next(iter(played.values()))) == 1:
        _details_of_games(console, next(iter(scores.values())))


PRINT: dict[str, Callable[[Played, Accuracies, bool], None]] = {
    "table": _print_tables,
    "markdown": _print_markdown,
    "latex": _print_latex,
    "csv": _print_csv,
    "json": _print_json,
}


def _made(console: Console, result: ResultBase) -> None:
    """Print settings, device, date and versions."""
    from kenyon.report.tables import duration
    from kenyon.utils.text import counted, printable

    settings = {k: v for part in ("training", "architecture", "hyper") for k, v in result.config[part].items()}
    console.print("Settings: " + printable(", ".join(f"{k}={v}" for k, v in settings.items())))
    for fleet in result.fleets:
        versions = printable(", ".join(f"{k} {v}" for k, v in fleet.versions.items()))
        shared = f", their share of {fleet.together} runs trained together" if fleet.together else ""
        exact = ", deterministic" if fleet.deterministic else ""
        shared += f", on a device shared with {counted(fleet.sharing, 'other training')}" if fleet.sharing else ""
        console.print(
            f"Seeds {', '.join(map(str, fleet.seeds))}: {duration(fleet.seconds)} on {printable(fleet.device)} "
            f"({printable(fleet.precision)}{exact}){shared}, {printable(fleet.finished)}; {versions}",
        )

    if result.unsealed:
        seeds = ", ".join(map(str, result.unsealed))
        console.print(f"Unsealed: an earlier version wrote the numbers of seeds {seeds}, without a checksum.")


def _diverged(console: Console, result: ResultBase, where: Callable[[int, int], str]) -> None:
    for run in result.runs:
        if run.diverged is not None:
            console.print(f"Seed {run.seed}: diverged in {where(*run.diverged)}.")


def _details_of_games(console: Console, result: GameResult) -> None:
    _made(console, result)
    _diverged(console, result, lambda game, update: f"{result.games[game]}, update {update + 1}")
    for run in result.complete_runs:
        last = zip(result.games, run.matrix[-1], strict=True)
        console.print(f"Seed {run.seed}, in the end: " + ", ".join(f"{game} {score:g}" for game, score in last))


def _details(console: Console, result: Result) -> None:
    _made(console, result)
    _diverged(console, result, lambda task, epoch: f"task {task + 1}, epoch {epoch + 1}")
    runs = result.complete_runs
    if not runs:
        return
    mean = result.accuracy.mean(0)
    seen = _fitting(mean.shape[1], console.width)
    after = [t for t in range(len(mean)) if len(mean) == 1 or t in seen]
    rows = {str(t + 1) if len(mean) > 1 else "all": mean[t] for t in after}
    left = f" (only {len(seen)} of {mean.shape[1]} tasks have room here)" if len(seen) < mean.shape[1] else ""
    title = f"Accuracy % of task (column) after task (row), mean of {len(runs)} runs{left}"
    console.print(_by_task(title, rows, seen, "{:.0f}"))
    if result.config["architecture"]["learners"] > 1:
        own = {f"learner {k + 1}": column for k, column in enumerate(result.expertise[0].T)}
        title = f"Expertise of the learners in the end, seed {runs[0].seed}: accuracy minus the learners' mean{left}"
        console.print(_by_task(title, own, seen, "{:+.0f}"))


def _fitting(tasks: int, width: int) -> list[int]:
    """Return as many tasks as fit into a width, evenly spaced, with the first and the last."""
    most = max(2, (width - 14) // 5)  # columns of four characters, after the names of rows
    if tasks <= most:
        return list(range(tasks))
    return sorted({round(i * (tasks - 1) / (most - 1)) for i in range(most)})


def _by_task(title: str, rows: dict[str, Array], tasks: list[int], form: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for t in tasks:
        table.add_column(str(t + 1), justify="right", min_width=3)
    for name, row in rows.items():
        table.add_row(name, *(form.format(row[t]) for t in tasks))
    return table
