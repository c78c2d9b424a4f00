"""The memory-aware scheduler: which runs train together, and what happens when they do not fit into the device.

`Incomplete` names the runs that do not fit even alone, with the commands that train them elsewhere.
"""

from __future__ import annotations

import gc
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kenyon.benchmarks.registry import BENCHMARKS
from kenyon.errors import DeviceMemoryError, ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import ResultBase, value_text
from kenyon.experiments.store import Job, SavedState, put_aside, resumed, state_path, usable
from kenyon.methods import find_method
from kenyon.training.checkpoint import StateError
from kenyon.training.device import NoRoom, out_of_memory, taken_by_others
from kenyon.utils.clock import Stopwatch
from kenyon.utils.user_code import command_name

if TYPE_CHECKING:
    from kenyon.experiments.grid import RunSpec

MOST = 128  # runs of a job by default: more do not use a device better, and results come later
LONG = 2.0  # seconds of training after which garbage is collected on a CPU too
SHOWN = 5  # commands in a message; a grid may need thousands


def jobs_of(runs: Sequence[RunSpec], states: Sequence[SavedState]) -> list[Job]:
    """Group runs into jobs: unfinished ones as they were saved, then the others by structure."""
    jobs, rest = resumed(states, runs)
    fresh: dict[str, list[RunSpec]] = {}
    for run in rest:
        fresh.setdefault(run.config.structure, []).append(run)
    return [*jobs, *(Job(tuple(same)) for same in fresh.values())]


def split_job(job: Job, most: int) -> list[Job]:
    """Split a job into as few jobs of at most `most` runs as possible, nearly equal in size."""
    count = -(-len(job.runs) // most)
    ends = [len(job.runs) * part // count for part in range(count + 1)]
    return [replace(job, runs=job.runs[begin:end]) for begin, end in pairwise(ends)]


class Scheduler:
    """Trains jobs of at most `most` runs, and of fewer once the device has run out of memory.

    Runs share nothing and their random numbers are functions of the seed, so the numbers stay the same.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device = most, device
        self.without: list[RunSpec] = []  # runs that do not fit even alone
        self.reason = ""  # why the first of them does not
        self.short = ""  # what the last job that did not fit lacked, where that is known

    def train_missing(
        self,
        missing: Callable[[], Sequence[RunSpec]],
        begun: Callable[[], Sequence[SavedState]],
        out: Path,
        train: Callable[[Job], None],
        split: Callable[[Sequence[RunSpec], int], None],
    ) -> None:
        """Train what is missing, from saved states where there are any. A state that cannot be used is set aside."""
        while True:
            try:
                self.train(jobs_of(missing(), begun()), out, train, split)
                return
            except StateError as problem:
                put_aside(problem)  # one state fewer each time

    def train(
        self,
        waiting: Sequence[Job],
        out: Path,
        train: Callable[[Job], None],
        split: Callable[[Sequence[RunSpec], int], None],
    ) -> None:
        """Train jobs one after another, in halves where they do not fit; `split` is called with the runs of those.

        A run that does not fit alone is added to `without`, with all of its structure.
        """
        queue = deque(waiting)
        while queue:
            job = queue.popleft()
            if len(job.runs) > self.most:
                queue.extendleft(reversed(split_job(job, self.most)))
            elif not self._fits(job, train):
                if len(job.runs) == 1:
                    queue = self._give_up(job.runs[0], queue)
                    continue
                self.most = (len(job.runs) + 1) // 2
                split(job.runs, self.most)
                path = state_path(out, job.runs)
                saved = usable(path) if path.exists() else None  # what the job itself has saved
                queue.appendleft(replace(job, begun=saved) if saved else job)

    def _fits(self, job: Job, train: Callable[[Job], None]) -> bool:
        """Train a job. False if it does not fit into memory; nothing of it stays there."""
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        watch = Stopwatch()
        try:
            train(job)
            fits = True
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            fits, self.short = False, error.short if isinstance(error, NoRoom) else taken_by_others(self.device)
        # Collected here, where the error with its frames is gone: a trainer refers to itself through its captured
        # work and would stay in the device's memory. Collecting takes a tenth of a second or more, too long for what
        # was small and quick.
        if stream is not None or not fits or watch.seconds > LONG:
            gc.collect()
        if stream is not None:
            torch.cuda.set_stream(stream)  # a failed capture may have left its own
            # cuBLAS keeps a workspace for every stream that used it.
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()
        return fits

    def _give_up(self, run: RunSpec, queue: deque[Job]) -> deque[Job]:
        """Return the queue without the runs that need as much memory as this one."""
        structure = run.config.structure
        self.reason = self.reason or self.short
        self.without += [run, *(r for job in queue for r in job.runs if r.config.structure == structure)]
        return deque(job for job in queue if job.runs[0].config.structure != structure)

    def why(self) -> str:
        """Explain why the first run does not fit, and what would."""
        run = self.without[0]
        arch, where = run.config.architecture, str(self.device)
        demand, less = run.config.demand
        if self.device.type == "cuda":
            where = torch.cuda.get_device_name(self.device)
        several = arch.learners > 1
        shape = f"{arch.learners} learners of width {arch.width}" if several else f"width {arch.width}"
        fewer = "fewer or narrower learners (learners=..., width=...)" if several else "a smaller width (width=...)"
        other = "another device (--device cpu)" if self.device.type == "cuda" else "a machine with more memory"
        short = f": {self.reason}" if self.reason else ""
        return (
            f"A single run of {run.point.label} ({demand}, {shape}) does not fit into the "
            f"memory of {where}{short}. Use --set with {less} or {fewer}, or {other}. Everything else is finished "
            "and saved."
        )


# ------------------------------------------------------------------------------------------------- what is incomplete


class Incomplete(DeviceMemoryError):
    """Some runs do not fit into the device; all others are finished, and in `results`."""

    def __init__(self, reason: str, runs: Sequence[RunSpec], out: Path, results: dict[str, Any]) -> None:
        self.results = results  # by label
        lines = ["Missing runs, and the commands for a device with more memory:", *commands_for(runs, out)]
        if any(run.config.search is not None for run in runs):  # not reported
            lines = [f"{len(runs)} runs of the search are missing. The same command continues with them."]
        super().__init__("\n".join([reason, *lines]))


def commands_for(runs: Sequence[RunSpec], out: Path | str) -> list[str]:
    """Return a line for each grid point: its runs, and the command that trains them."""
    lines = []
    for _, same in groupby(runs, key=lambda run: run.point.label):
        some = list(same)
        point, seeds = some[0].point, [run.seed for run in some]
        command = command_of(point.config, seeds, out, varied=point.varied)
        lines.append(f"  {point.label}, seed {', '.join(map(str, seeds))}: {command}")
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  and {len(lines) - SHOWN} more points"]


def command_of(
    config: Config, seeds: Sequence[int], out: Path | str, *options: str, varied: Mapping[str, Any] | None = None
) -> str:
    """Return `kenyon run ...` with all that differs from the published configuration, quoted for a shell.

    `varied`: the values of a grid point, written as a grid so that its folder is that of the point.
    """
    point = varied or {}
    part, changes = config.changes
    benchmark, method = config.benchmark, command_name(config.method, find_method(config.method).build)
    if benchmark in BENCHMARKS:  # not a suite of games
        benchmark = command_name(benchmark, BENCHMARKS[benchmark].source.load)
    words = ["kenyon", "run", benchmark, "--method", method, "--seeds", _seeds(seeds), *part]
    for name, value in changes.items():
        words += [] if name in point else ["--set", f"{name}={value_text(value)}"]
    for name, value in point.items():
        words += ["--set", f"{name}={value_text(value)},"]
    return shlex.join([*words, "--out", str(out), *options])


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def diverged_message(name: str, result: ResultBase, out: Path) -> str | None:
    """Return a sentence about runs whose loss did not stay finite, with a command that may succeed: a third of the
    learning rate, at most the usual one, in a new folder. Strengths chosen by the user are named. None if all are
    complete.
    """
    seeds = [run.seed for run in result.runs if not run.complete]
    if not seeds:
        return None
    config = Config.from_dict(result.config)
    rate = float(f"{min(config.training.rate / 3, config.usual_rate):.3g}")
    own = [f"{strength} ({value_text(config.hyper[strength])})" for strength in _strong(config)]
    lower = " or ".join(["learning rate", *own])
    slower = replace(config, training=replace(config.training, rate=rate))
    varied = {name: value for name, value in result.point.items() if name != "rate"}
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    command = command_of(slower, seeds, f"{out}-rate-{rate:g}", varied=varied)
    return f"{name}: no numbers for {which}, whose loss did not stay finite. A lower {lower} may give them: {command}"


def _strong(config: Config) -> list[str]:
    """Return the strengths above 0 that are not the published ones."""
    _, changes = config.changes
    return [name for name in find_method(config.method).strengths if changes.get(name, 0) > 0]


def none_finite(benchmark: str) -> ResultsError:
    return ResultsError(
        f"No run stayed finite on {benchmark}. Lower the learning rate (--set rate=...) or the strengths, in a new "
        "--out."
    )
