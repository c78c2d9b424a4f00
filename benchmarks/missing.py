"""List cells of the README's table of results that lack runs, with the commands that fill them, or run these.

    python benchmarks/missing.py                                # the commands, most important first
    python benchmarks/missing.py --at-once 4 --seconds 1500     # runs them, four at a time, for at most 1500 seconds

Results are saved in `--out` (`results`); runs that `--have` has of the same cell are not trained again. A cell is not
started if it would not finish in time, judging by the last one of its benchmark. When the time is up, everything is
interrupted as by Ctrl-C, and the same command continues from there. A benchmark without its data waits for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kenyon.benchmarks.registry import find_benchmark
from kenyon.datasets.archives import DATASETS, data_folders, locate
from kenyon.errors import KenyonError
from kenyon.experiments.results import Result
from kenyon.experiments.training import SHARING
from kenyon.utils.files import cores

HERE = Path(__file__).parent
PATIENCE = 60  # seconds that an interrupted run has to save its state


@dataclass(frozen=True)
class Cell:
    """A result that should exist: a number of runs of a method, or of its grid points, on a benchmark."""

    benchmark: str
    method: str
    seeds: int
    grid: str = ""  # such as learners=4,6

    @property
    def name(self) -> str:
        return f"{self.benchmark}/{self.method}"

    def done(self, folder: Path) -> bool:
        setting, _, values = self.grid.partition("=")
        points = [f"{setting}={value}" for value in values.split(",")] if self.grid else [""]
        paths = [folder / self.name / point / "result.json" for point in points]
        try:
            return all(path.exists() and len(Result.load(path).runs) >= self.seeds for path in paths)
        except KenyonError:
            return False

    def command(self, out: Path) -> list[str]:
        settings = ["--set", self.grid] if self.grid else []
        seeds = ["--seeds", str(self.seeds), "--no-fwt", "--out", str(out)]
        return ["run", self.benchmark, "--method", self.method, *settings, *seeds]

    @property
    def data_is_here(self) -> bool:
        return all(locate(DATASETS[name], data_folders()) for name in find_benchmark(self.benchmark).source.needs)


def cells(benchmark: str, methods: str, seeds: int = 3) -> Iterator[Cell]:
    for method in methods.split():
        name, _, grid = method.partition("/")
        yield Cell(benchmark, name, seeds, grid)


def in_turns(*lists: Iterable[Cell]) -> Iterator[Cell]:
    """Interleave lists: cells that run at the same time should differ in their use of the GPU."""
    waiting = [iter(one) for one in lists]
    while waiting:
        for one in list(waiting):
            cell = next(one, None)
            if cell is None:
                waiting.remove(one)
            else:
                yield cell


# Most important first. Five runs if a run takes a minute, three if it takes many.
METHODS = (
    "ewc caf-ewc mas caf-mas finetune pnc ewc-af2 mas-af2 si agscl rwalk er mcl-ewc mcl-mas cpr-ewc cpr-mas ewc-af1 "
    "mas-af1 discrete icl-ewc icl-mas joint"
)
BENCHMARKS = {
    "r-cifar-10-100": 5, "cub-200": 5, "tiny-imagenet": 3, "omniglot": 3, "r-cifar-100": 5, "s-cifar-100": 5,
}  # fmt: skip
WANTED = (
    *in_turns(*(cells(benchmark, METHODS, seeds) for benchmark, seeds in BENCHMARKS.items())),
    *cells("r-cifar-10-100", "caf-ewc/learners=4,6"),
    *in_turns(
        *(cells(benchmark, "joint-af1 joint-mcl joint-caf", 5) for benchmark in ("r-cifar-100", "s-cifar-100"))
    ),
)


def longer(times: float, methods: str) -> dict[str, float]:
    return dict.fromkeys(methods.split(), times)


# Methods that take longer than most: how many times as long, roughly.
TAKES = {
    **longer(1.4, "er"),
    **longer(1.7, "si rwalk agscl mcl-ewc mcl-mas caf-ewc caf-mas icl-ewc icl-mas joint-mcl joint-caf"),
    **longer(3.0, "ewc-af2 mas-af2"),
    **longer(5.0, "pnc"),
}


Asked = tuple[str, int | None]  # how a cell's name begins, and how many runs of it at most


def some_cells(text: str) -> Asked:
    """`omniglot/pnc` or `omniglot/pnc:2`."""
    name, colon, most = text.partition(":")
    if not any(cell.name.startswith(name) for cell in WANTED) or (colon and not most.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither BENCHMARK nor BENCHMARK/METHOD, nor one with :2 behind it"
        )
    return name, int(most) if most else None


def missing(
    have: Path, out: Path, again: Iterable[str], only: Iterable[Asked], seeds: int | None = None
) -> list[Cell]:
    """Cells that neither folder has, in the order of `only`; of those made `again`, cells that `out` lacks. No more
    runs a cell than `seeds`.
    """
    anew, wanted = tuple(again) or (" ",), dict[tuple[str, str], Cell]()
    for name, most in only:
        for cell in WANTED:
            if cell.name.startswith(name) and (cell.name, cell.grid) not in wanted:
                cut = replace(cell, seeds=min(cell.seeds, most or seeds or cell.seeds))
                wanted[cell.name, cell.grid] = cut
    return [c for c in wanted.values() if not c.done(out) and (not c.done(have) or c.name.startswith(anew))]


def lay_beside(cell: Cell, have: Path, out: Path) -> None:
    """Copy the existing runs of a cell, so that training adds the others."""
    setting, _, values = cell.grid.partition("=")
    for point in [f"{setting}={value}" for value in values.split(",")] if cell.grid else [""]:
        before, place = (folder / cell.name / point / "result.json" for folder in (have, out))
        if before.exists() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(before, place)


def carry_out(
    waiting: list[Cell], have: Path, out: Path, at_once: int, seconds: float, again: Iterable[str] = ()
) -> None:
    end, anew = time.monotonic() + seconds, tuple(again) or (" ",)
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    at_work: dict[Cell, subprocess.Popen[bytes]] = {}
    began: dict[Cell, float] = {}
    took: dict[str, float] = {}  # seconds that a usual one of a benchmark takes, by the last one

    def fits(cell: Cell) -> bool:
        return time.monotonic() + took.get(cell.benchmark, 0.0) * TAKES.get(cell.method, 1.0) < end

    while (any(map(fits, waiting)) or at_work) and time.monotonic() < end:
        for ended in [cell for cell, process in at_work.items() if process.poll() is not None]:
            code = at_work.pop(ended).returncode
            seconds_of_it = time.monotonic() - began[ended]
            if code == 0:
                took[ended.benchmark] = seconds_of_it / TAKES.get(ended.method, 1.0)
            said = f"done in {seconds_of_it:.0f} s" if code == 0 else "FAILED, see its log"
            print(f"{ended.name}: {said}", flush=True)
        while len(at_work) < at_once and (ready := next((c for c in waiting if c.data_is_here and fits(c)), None)):
            waiting.remove(ready)
            began[ready] = time.monotonic()
            if not ready.name.startswith(anew):
                lay_beside(ready, have, out)
            with (logs / f"{ready.name.replace('/', '+')}.log").open("ab") as log:
                command = [sys.executable, "-m", "kenyon", *ready.command(out)]
                at_work[ready] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        time.sleep(0.5)
    for process in at_work.values():
        process.send_signal(signal.SIGINT)
    for cell, process in at_work.items():
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
        print(f"{cell.name}: interrupted", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--have", type=Path, default=HERE / "h200", help="what has been made")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument(
        "--again", nargs="*", default=[], help="BENCHMARK or BENCHMARK/METHOD to make although it is there"
    )
    parser.add_argument(
        "--only",
        nargs="*",
        type=some_cells,
        default=[("", None)],
        help="BENCHMARK or BENCHMARK/METHOD, nothing else and in this order; with :2 behind it, two runs a cell",
    )
    parser.add_argument("--seeds", type=int, help="no more runs a cell than these")
    parser.add_argument("--at-once", type=int, default=0, help="carry them out, so many at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    todo = missing(asked.have, asked.out, asked.again, asked.only, asked.seeds)
    if asked.at_once:
        # Each has a share of the cores: its threads would only wait for one another.
        os.environ[SHARING] = str(asked.at_once - 1)
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // asked.at_once)))
        carry_out(todo, asked.have, asked.out, asked.at_once, asked.seconds, asked.again)
    else:
        for cell in todo:
            print(shlex.join(["kenyon", *cell.command(asked.out)]))
