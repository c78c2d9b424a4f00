"""The command that makes a result: what an error tells the user to type.

What an experiment could not compute, and the command that does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from kenyon.benchmarks.registry import BENCHMARKS
from kenyon.errors import DeviceMemoryError, ResultsError
from kenyon.experiments.grid import AnyCell
from kenyon.experiments.results import Kept, value_text
from kenyon.experiments.spec import Configured
from kenyon.methods import find_method
from kenyon.utils.user_code import command_name


def command_of(
    config: Configured, seeds: Sequence[int], out: Path | str, *options: str, varied: Mapping[str, Any] | None = None
) -> str:
    """`kenyon run ...` with everything that differs from the published configuration, quoted for a shell.

    `varied`: the values of a point of a grid, given so that its folder is that of the point.
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


SHOWN = 5  # commands; a grid may have thousands


class Incomplete(DeviceMemoryError):
    """Some runs do not fit into the device; all others are finished, and here."""

    def __init__(self, reason: str, cells: Sequence[AnyCell], out: Path, results: dict[str, Any]) -> None:
        self.results = results  # by label, of images or of games
        told = ["What is missing, and the command for a device with room:", *commands_for(cells, out)]
        if any(getattr(cell.config, "search", None) is not None for cell in cells):  # no runs that are reported
            told = [f"{len(cells)} runs of the search are missing. The same command goes on with them."]
        super().__init__("\n".join([reason, *told]))


def commands_for(cells: Sequence[AnyCell], out: Path | str) -> list[str]:
    """A line a point: its runs, and the command that trains them."""
    lines = []
    for _, same in groupby(cells, key=lambda cell: cell.point.label):
        some = list(same)
        point, seeds = some[0].point, [cell.seed for cell in some]
        seeds_told = ", ".join(map(str, seeds))
        lines.append(
            f"  {point.label}, seed {seeds_told}: {command_of(point.config, seeds, out, varied=point.varied)}"
        )
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  and {len(lines) - SHOWN} more points"]


def told_of_diverged(
    name: str, result: Kept[Any, Any], read: Callable[[dict[str, Any]], Any], out: Path
) -> str | None:
    """Which runs have no numbers, for their loss did not stay finite, and a command that may give them: with a third
    of the learning rate, and no more than is usual, for the same settings would end the same way, in a new folder.
    Strengths of the user's own are named. None where all are complete.

    `read` makes a configuration of the result's, of images or of games.
    """
    seeds = [run.seed for run in result.runs if not run.complete]
    if not seeds:
        return None
    config = read(result.config)
    rate = float(f"{min(config.training.rate / 3, config.usual_rate):.3g}")
    own = [f"{strength} ({value_text(config.hyper[strength])})" for strength in _strong(config)]
    lower = " or ".join(["learning rate", *own])
    slower: Configured = replace(config, training=replace(config.training, rate=rate))
    varied = {name: value for name, value in result.point.items() if name != "rate"}
    told = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    command = command_of(slower, seeds, f"{out}-rate-{rate:g}", varied=varied)
    return f"{name}: no numbers for {told}, whose loss did not stay finite. A lower {lower} may give them: {command}"


def _strong(config: Any) -> list[str]:
    """The strengths above 0 that are not the published ones."""
    _, changes = config.changes
    return [name for name in find_method(config.method).strengths if changes.get(name, 0) > 0]


def none_finite(benchmark: str) -> ResultsError:
    return ResultsError(
        f"No run stayed finite on {benchmark}. Lower the learning rate (--set rate=...) or the strengths, in a new "
        "--out."
    )
