"""Figures and tables of the paper by name: missing runs are trained, results drawn and compared with the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kenyon.errors import ConfigError, KenyonError, ResultsError
from kenyon.paper.reproduce import ablations, comparisons  # noqa: F401  (they register)
from kenyon.paper.reproduce.figure import (
    REPRODUCTIONS,
    SCALES,
    Place,
    Reproduction,
    Scale,
    Wanted,
    find_reproduction,
    find_scale,
)
from kenyon.paper.reproduce.page import Written, write
from kenyon.utils.files import as_path

if TYPE_CHECKING:
    from kenyon.experiments.progress import Progress
    from kenyon.experiments.results import GameResult
    from kenyon.experiments.runner import Plan

# The order of the paper.
_ORDER = sorted(
    REPRODUCTIONS, key=lambda name: (("fig", "tab", "s").index(name[:3] if name[0] != "s" else "s"), name)
)
for _name in _ORDER:
    REPRODUCTIONS[_name] = REPRODUCTIONS.pop(_name)

__all__ = ["REPRODUCTIONS", "SCALES", "Reproduction", "Scale", "Unmade", "Written", "find_reproduction", "reproduce"]


def reproduce(
    names: str | Sequence[str] = "all",
    *,
    scale: str = "smoke",
    benchmarks: Sequence[str] | None = None,
    seeds: int | None = None,
    out: Path | str = "results",
    data: Path | str | None = None,
    device: str = "auto",
    train: bool = True,
    progress: Progress | None = None,
    play: Callable[[Plan], dict[str, GameResult]] | None = None,
    told: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Written]:
    """Make figures and tables of the paper, by name or all of them, at a scale.

    `benchmarks`: restricts figures to these benchmarks; `seeds`: the most runs of each variant. Runs that the folder
    `out` already holds are used and not repeated; with `train=False`, missing ones are an error that says how to make
    them. `play` trains games. If several figures are asked for, those that can be made are written, and the error
    names the others.
    """
    from kenyon.paper.reproduce.runs import gather
    from kenyon.training import choose_device

    asked = [names] if isinstance(names, str) else list(names)
    asked = [*REPRODUCTIONS] if asked == ["all"] else [part for name in asked for part in name.split(",") if part]
    if not asked:
        raise ConfigError(f"No figure is named. Choose some of {', '.join(REPRODUCTIONS)}, or all.")
    chosen = [find_reproduction(name) for name in dict.fromkeys(asked)]
    folder = None if data is None else as_path("data", data)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    place = Place(
        as_path("out", out),
        find_scale(scale).at_most(seeds),
        choose_device(device),
        folder,
        train,
        play,
    )
    wanted = {one.name: _only(one, place.scale, benchmarks) for one in chosen}
    written: list[Written] = []
    problems: dict[str, KenyonError] = {}
    for one in chosen:
        told(one.name)
        try:
            found = gather(place, wanted[one.name], progress, stop)
            written.append(write(one, one.made(found, place), found, place))
        except KenyonError as error:
            if len(chosen) == 1:
                raise
            problems[one.name] = error
    if problems:
        raise Unmade(problems, written)
    return written


class Unmade(ResultsError):
    """Errors of figures that could not be made; all others are written."""

    def __init__(self, problems: Mapping[str, KenyonError], written: list[Written]) -> None:
        self.written = written
        super().__init__("\n".join(f"{name}: {problem}" for name, problem in problems.items()))


def _only(one: Reproduction, scale: Scale, benchmarks: Sequence[str] | None) -> list[Wanted]:
    wanted = list(one.wanted(scale))
    if benchmarks is None or not wanted:
        return wanted
    from kenyon.benchmarks.registry import find_benchmark

    for name in benchmarks:
        find_benchmark(name)
    kept = [part for part in wanted if part.benchmark in benchmarks]
    if not kept:
        there = ", ".join(part.benchmark for part in wanted)
        raise ConfigError(f"{one.name} at scale {scale.name} is made of {there}, not of {', '.join(benchmarks)}.")
    return kept
