"""How a sweep stands, for a terminal.

`kenyon sweep`: from an experiment's file to the results of many workers; and how a sweep stands.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.cli.games import draw_scores, scores_json, tell_scores
from kenyon.cli.progress import LINE_EVERY
from kenyon.cli.run import draw, named_benchmark, tell_results
from kenyon.cli.signals import interruptible
from kenyon.cli.stopping import stoppable
from kenyon.cli.watched import watched
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.results import Result, plain
from kenyon.experiments.spec_file import read_config
from kenyon.report.tables import duration, results_json
from kenyon.rl.suites import ARENAS
from kenyon.sweep import Sweep, Unfinished, carry_out, collect, open_space, plan_sweep
from kenyon.sweep.local import Here, Processes
from kenyon.sweep.merge import name_of
from kenyon.sweep.ray_cluster import Cluster
from kenyon.sweep.status import AT_WORK, MISSING, WAITING, Line, Status, Watch
from kenyon.sweep.storage import Folder, Space
from kenyon.training import choose_device
from kenyon.utils.clock import Stopwatch, since

SHOWN = 8  # fleets of a kind


def standing(status: Status) -> Group:
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
    """All in one line."""
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
    unfinished = line.state in (AT_WORK, WAITING)
    share = f"{100 * line.share:.0f}%" if line.state == AT_WORK or (unfinished and line.share) else ""
    time = f"~{duration(line.seconds)}" if unfinished else ""
    said = Text(line.why or line.where)  # as they are: a point's label has brackets too
    return [Text(line.label), str(line.runs), line.state, share, time, said]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def sweep_command(
    *,
    experiment: Path | None,
    workers: int | None,
    ray: str | None,
    status: bool,
    tasks: int | None,
    device: str,
    data: Path | None,
    out: str,
    fleet: int | None,
    fwt: bool,
    keep_every: bool,
    deterministic: bool,
    as_json: bool,
) -> None:
    if status:
        if experiment is not None:
            raise ConfigError("--status looks at a store, which --out names, and takes no experiment.")
        _show_status(open_space(out), as_json=as_json)
        return
    if experiment is None:
        raise ConfigError("No experiment is named. Give a TOML file with benchmark, method, seeds and settings.")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers takes a whole number from 1 on, not {workers}.")
    if out.startswith("memory://") and (workers or ray):
        raise ConfigError("memory:// is this process's own. Leave out --workers and --ray, or choose another --out.")
    if ray is None:
        choose_device(device)
    benchmarks = read_config(experiment).benchmarks
    for name in benchmarks:
        if not name.endswith(".py") and name not in ARENAS:
            named_benchmark(name)
    started, told, space = time.perf_counter(), stderr(), open_space(out)
    moment = "update" if benchmarks and all(name in ARENAS for name in benchmarks) else "epoch"

    def planned(slots: int) -> Sweep:
        return plan_sweep(
            experiment,
            space,
            workers=slots,
            tasks=tasks,
            data=data,
            fwt=fwt,
            fleet=fleet,
            keep="every" if keep_every else "last",
            deterministic=deterministic,
            tell=lambda text: told.print(text, style="yellow"),
        )

    if workers is None and ray is None:
        sweep = planned(1)
        with watched(told, moment) as (progress, stopping):
            carry_out(sweep, Here(device, progress=progress, stop=stopping), stop=stopping)
    else:
        place = Processes(workers or 1, device) if ray is None else Cluster(ray, device, workers)
        try:
            sweep = planned(place.slots)
            with stoppable(told, moment) as stopping, _shown(space, told) as show:
                carry_out(sweep, place, stop=stopping, watch=show)
        finally:
            place.close()
    missing = None
    try:
        found = collect(sweep)
    except Unfinished as unfinished:  # told in the end, after what there is
        found, missing = unfinished.results, unfinished
    _tell(found, space, told, as_json=as_json, seconds=since(started))
    if missing:
        raise missing


def _tell(found: dict[str, dict[str, Any]], space: Space, told: Console, *, as_json: bool, seconds: float) -> None:
    spoken = told if as_json else stdout()
    folder = space.local if isinstance(space, Folder) else Path("results")  # where a command may write
    there = {name: results for name, results in found.items() if results}
    for name, results in there.items():
        if name in ARENAS:
            tell_scores(results, folder, f"{space.address}/{name}", spoken)
        else:
            tell_results(results, folder, f"{space.address}/{name}", spoken)
    if as_json:
        bodies = {
            name: scores_json(results) if name in ARENAS else results_json(results, seconds, _devices(results))
            for name, results in there.items()
        }
        tell_json(plain({"benchmarks": bodies}))
    quiet = told if isinstance(space, Folder) else stderr(quiet=True)
    for name, results in there.items():
        figure = space.local / name / "figure.png"
        if name in ARENAS:
            draw_scores(results, figure, quiet)
        else:
            draw(name, results, figure, quiet)
        for path in (figure, figure.with_suffix(".svg")):
            space.push(name_of(space, path))


def _devices(results: dict[str, Result]) -> str:
    return ", ".join(sorted({fleet.device for result in results.values() for fleet in result.fleets}))


def _show_status(space: Space, *, as_json: bool) -> None:
    """Once, or on a terminal until all has come to an end."""
    watch, console = Watch(space), stdout()
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
                        time.sleep(space.pause)
                        status = watch.look()
                        live.update(standing(status))
            except KeyboardInterrupt:
                sys.exit(heard.code)


@contextlib.contextmanager
def _shown(space: Space, told: Console) -> Iterator[Callable[[], None]]:
    """What to call now and then while a sweep goes on: a table on a terminal, a line now and then elsewhere."""
    watch, last = Watch(space), Stopwatch()
    if not told.is_terminal:

        def line() -> None:
            if last.seconds > LINE_EVERY:
                last.start()
                with contextlib.suppress(ResultsError):  # a store that does not answer for a moment
                    told.print(standing_line(watch.look()), soft_wrap=True)

        yield line
        return
    with Live(console=told, transient=True) as live:
        rest = [0.0]

        def table() -> None:
            if last.seconds > rest[0]:
                last.start()
                with contextlib.suppress(ResultsError):
                    live.update(standing(watch.look()))
                rest[0] = 10 * last.seconds  # a look at a thousand leases takes a while
                last.start()

        yield table
