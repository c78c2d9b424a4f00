"""Every figure and table of the paper by name: trained where runs are missing, drawn, and held against the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kenyon.errors import ConfigError
from kenyon.experiments.progress import Progress
from kenyon.reproduce import forgetting, learners, mechanisms, performance  # noqa: F401  (they register themselves)
from kenyon.reproduce.registry import REPRODUCTIONS, Reproduction, find_reproduction
from kenyon.reproduce.scale import SCALES, Scale, find_scale
from kenyon.reproduce.wanted import Place, gather
from kenyon.reproduce.writing import Written, write
from kenyon.train import choose_device

__all__ = ["REPRODUCTIONS", "SCALES", "Reproduction", "Scale", "Written", "find_reproduction", "reproduce"]


def reproduce(
    names: str | Sequence[str] = "all",
    *,
    scale: str = "smoke",
    out: Path | str = "results",
    data: Path | str | None = None,
    device: str = "auto",
    train: bool = True,
    progress: Progress | None = None,
    told: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Written]:
    """Make figures and tables of the paper, by name or all of them, at a scale.

    Runs that the folder `out` already holds are used and not repeated; with `train=False`, missing ones are an error
    that says how to make them.
    """
    asked = [names] if isinstance(names, str) else list(names)
    asked = [*REPRODUCTIONS] if asked == ["all"] else [part for name in asked for part in name.split(",") if part]
    if not asked:
        raise ConfigError(f"No figure is named. There are {', '.join(REPRODUCTIONS)}, or all.")
    chosen = [find_reproduction(name) for name in dict.fromkeys(asked)]
    folder = None if data is None else Path(data)
    place = Place(Path(out), find_scale(scale), choose_device(device), folder, train)
    written = []
    for one in chosen:
        told(one.name)
        found = gather(place, one.wanted(place.scale), progress, stop)
        written.append(write(one, one.made(found, place), found, place))
    return written
