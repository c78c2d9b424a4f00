"""`kenyon sweep`: train the experiment of a file on many workers, and show how a sweep stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kenyon.cli.options import Json, experiment_options, path

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

    from kenyon.sweep import Storage, Sweep
    from kenyon.sweep.status import Line, Status

SHOWN = 8  # fleets of a kind
SWEPT = ("tasks", "data", "fwt", "fleet", "keep", "deterministic")  # options of an experiment


@experiment_options("tasks", "device", "data", "out", "fleet", "fwt", "keep_every_task", "deterministic", "json")
def sweep(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            parser=path,
            help="A TOML file with benchmark, method, seeds and settings, as for `kenyon run --config`, and games "
            "where a benchmark is a suite of them. Benchmarks and methods may be lists; lists of values make a grid.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Train in so many processes of this machine, a GPU or some cores each."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            help="Train on the Ray cluster at host:port, or auto; local starts one here. Needs kenyon\\[ray].",
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show how the sweep in --out stands, whoever works on it.")
    ] = False,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            help="Results folder, shared by all machines, or an address of fsspec (s3://...: kenyon\\[remote]).",
        ),
    ] = "results",
    json: Json = False,
    **options: Any,
) -> None:
    """Train benchmarks x methods x seeds x grids on many workers, with the results of `kenyon run`.

    Runs are cut into fleets, which workers claim in the store that --out names. A worker that dies has its fleet
    resumed by another; the command can be stopped and started again, and started several times.
    """
    import time

    from kenyon.cli.consoles import stderr
    from kenyon.cli.progress import watched
    from kenyon.cli.stopping import stoppable
    from kenyon.errors import ConfigError
    from kenyon.experiments.config import is_suite
    from kenyon.experiments.spec import OPTIONS, read_spec
    from kenyon.sweep import Unfinished, carry_out, collect, open_storage, plan_sweep
    from kenyon.sweep.local import Local, Processes
    from kenyon.sweep.ray_cluster import Cluster
    from kenyon.training import choose_device
    from kenyon.utils.clock import since

    if status:
        if experiment is not None:
            raise ConfigError("--status looks at a store, which --out names, and takes no experiment.")
        _show_status(open_storage(out), as_json=json)
        return
    if experiment is None:
        raise ConfigError("No experiment is named. Give a TOML file with benchmark, method, seeds and settings.")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers takes a whole number from 1 on, not {workers}.")
    if out.startswith("memory://") and (workers or ray):
        raise ConfigError("memory:// belongs to one process. Leave out --workers and --ray, or choose another --out.")
    device = options.pop("device")
    if ray is None:
        choose_device(device)
    benchmarks = read_spec(experiment).given.get("benchmarks", ())
    started, notes, storage = time.perf_counter(), stderr(), open_storage(out)
    moment = "update" if benchmarks and all(map(is_suite, benchmarks)) else "epoch"
    given = {name: OPTIONS[name].parse(options[OPTIONS[name].name or name]) for name in SWEPT}

    def planned(slots: int) -> Sweep:
        return plan_sweep(
            experiment,
            storage,
            workers=slots,
            tell=lambda text: notes.print(text, style="yellow"),
            **given,
        )

    if workers is None and ray is None:
        plan = planned(1)
        with watched(notes, moment) as (progress, stopping):
            carry_out(plan, Local(device, progress=progress, stop=stopping), stop=stopping)
    else:
        place = Processes(workers or 1, device) if ray is None else Cluster(ray, device, workers)
        try:
            plan = planned(place.slots)
            with stoppable(notes, moment) as stopping, _shown(storage, notes) as show:
                carry_out(plan, place, stop=stopping, watch=show)
        finally:
            place.close()
    missing = None
    try:
        found = collect(plan)
    except Unfinished as unfinished:  # raised at the end
        found, missing = unfinished.results, unfinished
    _show(found, storage, notes, as_json=json, seconds=since(started))
    if missing:
        raise missing


def _show(
    found: dict[str, dict[str, Any]], storage: Storage, notes: Console, *, as_json: bool, seconds: float
) -> None:
    from kenyon.cli.consoles import stderr, stdout, tell_json
    from kenyon.cli.results import bodies_of, draw, show_results
    from kenyon.sweep.merge import name_of

    output = notes if as_json else stdout()
    folder = storage.local if storage.is_folder else Path("results")  # for commands in messages
    found = {name: results for name, results in found.items() if results}
    for name, results in found.items():
        show_results(results, folder, f"{storage.address}/{name}", output)
    if as_json:
        tell_json({"benchmarks": bodies_of(found, seconds)})
    quiet = notes if storage.is_folder else stderr(quiet=True)
    for name, results in found.items():
        figure = storage.local / name / "figure.png"
        draw(results, figure, quiet, name)
        for file in (figure, figure.with_suffix(".svg")):
            storage.push(name_of(storage, file))


def standing(status: Status) -> Group:
    """Return the state of a sweep as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from kenyon.sweep.status import AT_WORK, MISSING, WAITING

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name, right in (("fleet", False), ("runs", True), ("", False), ("done", True), ("time", True), ("", False)):
        table.add_column(name, justify="right" if right else "left")
    for state in (AT_WORK, MISSING, WAITING):
        some = [line for line in status.lines if line.state == state]
        for line in some[:SHOWN]:
            table.add_row(*_cells(line))
        if len(some) > SHOWN:
            table.add_row(f"and {len(some) - SHOWN} more", "", state, style="dim")
    return Group(Text(standing_line(status), style="bold"), *([table] if table.row_count else []))


def standing_line(status: Status) -> str:
    """Return the state of a sweep in one line."""
    from kenyon.report.tables import duration
    from kenyon.sweep.status import AT_WORK, MISSING, WAITING

    parts = [f"{status.about}: {status.finished:,} of {status.runs:,} runs finished"]
    if status.count(AT_WORK):
        parts.append(f"{_count(status.count(AT_WORK), 'fleet')} at work, {status.count(WAITING)} waiting")
    elif status.count(WAITING):
        parts.append(f"{_count(status.count(WAITING), 'fleet')} waiting, nobody at work")
    if status.count(MISSING):
        parts.append(f"{_count(status.count(MISSING), 'fleet')} with missing runs")
    if status.left is not None:
        likely, low, high = map(duration, status.left)
        parts.append(f"about {likely} left ({low} to {high})")
    return "; ".join(parts)


def _cells(line: Line) -> list[str | Text]:
    from rich.text import Text

    from kenyon.report.tables import duration
    from kenyon.sweep.status import AT_WORK, WAITING

    unfinished = line.state in (AT_WORK, WAITING)
    share = f"{100 * line.share:.0f}%" if line.state == AT_WORK or (unfinished and line.share) else ""
    time = f"~{duration(line.seconds)}" if unfinished else ""
    note = Text(line.why or line.where)  # not markup: labels have brackets
    return [Text(line.label), str(line.runs), line.state, share, time, note]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _show_status(storage: Storage, *, as_json: bool) -> None:
    """Show the state once, or on a terminal until the end of the sweep."""
    import sys
    import time
    from dataclasses import asdict

    from rich.live import Live

    from kenyon.cli.consoles import stdout, tell_json
    from kenyon.cli.signals import interruptible
    from kenyon.experiments.results import plain
    from kenyon.sweep.status import Watch

    watch, console = Watch(storage), stdout()
    status = watch.look()
    if as_json:
        tell_json(plain(asdict(status)))
    elif not console.is_terminal:
        console.print(standing(status))
    else:
        with interruptible() as heard:
            try:
                with Live(standing(status), console=console) as live:
                    while not status.over:
                        time.sleep(storage.pause)
                        status = watch.look()
                        live.update(standing(status))
            except KeyboardInterrupt:
                sys.exit(heard.code)


@contextlib.contextmanager
def _shown(storage: Storage, notes: Console) -> Iterator[Callable[[], None]]:
    """Yield a function that shows the state of a sweep: a table on a terminal, a line now and then elsewhere."""
    from rich.live import Live

    from kenyon.cli.progress import LINE_EVERY
    from kenyon.errors import ResultsError
    from kenyon.sweep.status import Watch
    from kenyon.utils.clock import Stopwatch

    watch, last = Watch(storage), Stopwatch()
    if not notes.is_terminal:

        def line() -> None:
            if last.seconds > LINE_EVERY:
                last.start()
                with contextlib.suppress(ResultsError):  # a store that does not answer for a moment
                    notes.print(standing_line(watch.look()), soft_wrap=True)

        yield line
        return
    with Live(console=notes, transient=True) as live:
        rest = [0.0]

        def table() -> None:
            if last.seconds > rest[0]:
                last.start()
                with contextlib.suppress(ResultsError):
                    live.update(standing(watch.look()))
                rest[0] = 10 * last.seconds  # a look at a thousand leases takes a while
                last.start()

        yield table
