"""`kenyon bench`: measure, and show, save and draw what was measured."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kenyon.bench import BenchResult, extents, new_result, run_bench
from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.cli.signals import interruptible
from kenyon.errors import ResultsError
from kenyon.report.speed import draw_speed, speed_tables
from kenyon.report.tables import duration
from kenyon.training import choose_device

LINE_EVERY = 10.0  # seconds between lines where there is no terminal


def bench_command(*, device: str, out: Path, quick: bool, as_json: bool) -> None:
    chosen, path = choose_device(device), out if out.suffix == ".json" else out / "bench.json"
    check_writable(path)
    told = stderr()
    result, code = new_result(chosen, quick=quick), 0
    with interruptible() as heard:
        try:
            with BenchProgress(told) as progress:
                run_bench(extents(chosen, quick=quick), chosen, result, progress)
        except KeyboardInterrupt:
            code = heard.code
    _report(result, path, told, as_json=as_json)
    if code:
        sys.exit(code)


def _report(result: BenchResult, path: Path, told: Console, *, as_json: bool) -> None:
    spoken = told if as_json else stdout()
    if not result.complete:
        kept = "What was measured is kept." if result.records else "Nothing was measured yet."
        told.print(f"Stopped. {kept}", style="yellow")
    if not result.records:
        return
    for table in speed_tables(result):
        spoken.print(table)
    for what in result.left_out:
        spoken.print(f"Left out: {what}.", style="yellow")
    try:
        result.save(path)
    except ResultsError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. Choose another place with --out.") from error
    seconds = duration(result.seconds)
    spoken.print(f"Measured in {seconds}. Saved in {path}.", soft_wrap=True)
    if as_json:
        tell_json(result.as_dict())
    # What may still go wrong comes last, when everything measured has been told.
    figure = draw_speed(result, path.with_suffix(".png"))
    told.print(f"Drawn in {figure}.", soft_wrap=True)


def check_writable(path: Path) -> None:
    """Before minutes are spent on measuring: the results can be written."""
    probe = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder", str(path))
        probe.touch()
    except OSError as error:
        raise ResultsError(
            f"Cannot write {path}: {error.strerror or error}. Choose another file or folder with --out."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


class BenchProgress:
    """A bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, console: Console) -> None:
        self.console, self.spoken = console, time.monotonic()
        self.bars = Progress(
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.bar = self.bars.add_task("starting", total=None)

    def __enter__(self) -> BenchProgress:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *how: object) -> None:
        self.bars.stop()

    def __call__(self, doing: str, done: int, total: int) -> None:
        self.bars.update(self.bar, description=doing, completed=done, total=total)
        if not self.console.is_terminal and time.monotonic() - self.spoken > LINE_EVERY:
            self.spoken = time.monotonic()
            self.console.print(f"{done}/{total}: {doing}", soft_wrap=True)
