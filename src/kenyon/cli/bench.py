"""`kenyon bench`: measure the speed, and show, save and draw it."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kenyon.cli.options import Device, Json, path

if TYPE_CHECKING:
    from rich.console import Console

    from kenyon.bench import BenchResult

LINE_EVERY = 10.0  # seconds between lines where there is no terminal


def bench(
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", parser=path, help="Folder for bench.json and its figure, or a file.json.")
    ] = Path("results/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it works.")] = False,
    json: Json = False,
) -> None:
    """Measure the speed on this device: against what it could do, and against plain PyTorch.

    Under two minutes on two CPU cores, under three on a GPU. Ctrl-C keeps what was measured.
    """
    from kenyon.bench import extents, new_result, run_bench
    from kenyon.cli.consoles import stderr
    from kenyon.cli.signals import interruptible
    from kenyon.training import choose_device

    chosen, file = choose_device(device), out if out.suffix == ".json" else out / "bench.json"
    check_writable(file)
    notes = stderr()
    result, code = new_result(chosen, quick=quick), 0
    with interruptible() as heard:
        try:
            with BenchProgress(notes) as progress:
                run_bench(extents(chosen, quick=quick), chosen, result, progress)
        except KeyboardInterrupt:
            code = heard.code
    _report(result, file, notes, as_json=json)
    if code:
        sys.exit(code)


def _report(result: BenchResult, path: Path, notes: Console, *, as_json: bool) -> None:
    from kenyon.cli.consoles import stdout, tell_json
    from kenyon.errors import ResultsError
    from kenyon.report.speed import draw_speed, speed_tables
    from kenyon.report.tables import duration

    output = notes if as_json else stdout()
    if not result.complete:
        kept = "What was measured is kept." if result.records else "Nothing was measured yet."
        notes.print(f"Stopped. {kept}", style="yellow")
    if not result.records:
        return
    for table in speed_tables(result):
        output.print(table)
    for what in result.left_out:
        output.print(f"Left out: {what}.", style="yellow")
    try:
        result.save(path)
    except ResultsError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. Choose another place with --out.") from error
    seconds = duration(result.seconds)
    output.print(f"Measured in {seconds}. Saved in {path}.", soft_wrap=True)
    if as_json:
        tell_json(result.as_dict())
    # What may still fail comes last, after everything measured was shown.
    figure = draw_speed(result, path.with_suffix(".png"))
    notes.print(f"Drawn in {figure}.", soft_wrap=True)


def check_writable(path: Path) -> None:
    """Raise ResultsError unless the results can be written, before minutes are spent on measuring."""
    from kenyon.errors import ResultsError

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
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console, self.shown = console, time.monotonic()
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
        if not self.console.is_terminal and time.monotonic() - self.shown > LINE_EVERY:
            self.shown = time.monotonic()
            self.console.print(f"{done}/{total}: {doing}", soft_wrap=True)
