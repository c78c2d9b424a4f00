"""What an experiment could not compute, and the command that does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from kenyon.errors import DeviceMemoryError
from kenyon.experiments.command import command_of
from kenyon.experiments.config import Config
from kenyon.experiments.grid import AnyCell
from kenyon.experiments.results import Result

SHOWN = 5  # commands; a grid may have thousands


class Incomplete(DeviceMemoryError):
    """Some runs do not fit into the device; all others are finished, and here."""

    def __init__(self, reason: str, cells: Sequence[AnyCell], out: Path, results: dict[str, Any]) -> None:
        self.results = results  # by label, of images or of games
        super().__init__(
            "\n".join([reason, "What is missing, and the command for a device with room:", *commands_for(cells, out)])
        )


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


def command_for_diverged(result: Result, out: Path) -> str | None:
    """A command that may give the numbers of runs whose loss did not stay finite: a third of the learning rate.

    The same settings would end the same way. Its folder is a new one. None where every run is complete.
    """
    seeds = [run.seed for run in result.runs if not run.complete]
    if not seeds:
        return None
    config = Config.from_dict(result.config)
    rate = float(f"{config.training.rate / 3:.3g}")
    slower = replace(config, training=replace(config.training, rate=rate))
    varied = {name: value for name, value in result.point.items() if name != "rate"}
    return command_of(slower, seeds, f"{out}-rate-{rate:g}", varied=varied)
