"""Small experiments on digits, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kenyon.experiments.results import Result
from kenyon.experiments.runner import Silent, execute, plan
from kenyon.methods import METHODS, find_method
from kenyon.training import Trainer

STRENGTHS = {"lambda_sp": 10.0, "lambda_af": 1e-4, "gamma": 0.02, "lambda_cpr": 0.1, "mu": 1.0, "rho": 0.5}
SMALL = {"epochs": 1, "width": 2, "batch": 16}


def strengths_of(methods: list[str]) -> dict[str, float]:
    required = {name for method in methods if method in METHODS for name in find_method(method).required}
    return {name: value for name, value in STRENGTHS.items() if name in required}


def digits(out: Path, methods: list[str] | None = None, seeds: Any = 2, **more: Any) -> dict[str, Result]:
    stop = more.pop("stop", lambda: False)
    progress = more.pop("progress", None)
    tasks, fwt, fleet = more.pop("tasks", 2), more.pop("fwt", False), more.pop("fleet", None)
    overrides = SMALL | strengths_of(methods or ["ewc"]) | more
    asked = {"tasks": tasks, "overrides": overrides, "device": "cpu", "out": out, "fwt": fwt, "fleet": fleet}
    return execute(plan("digits", methods or ["ewc"], seeds, **asked), progress=progress, stop=stop)


class Counter(Silent):
    """Which fleets were trained, and for how many epochs; in `cells` also of which points."""

    def __init__(self) -> None:
        self.fleets: list[tuple[str, tuple[int, ...], int]] = []
        self.cells: list[list[tuple[str, int]]] = []
        self.splits: list[tuple[int, int]] = []
        self.calls = 0

    def fleet_starts(self, cells: Any, done: int, total: int) -> None:
        self.fleets.append((cells[0].config.method, tuple(cell.seed for cell in cells), done))
        self.cells.append([(cell.point.name, cell.seed) for cell in cells])

    def epoch_done(self, trainer: Trainer) -> None:
        self.calls += 1

    def fleet_split(self, cells: Any, most: int) -> None:
        self.splits.append((len(cells), most))


def numbers(result: Result) -> str:
    """Everything that was measured; not how long it took."""
    return repr(
        [(r.seed, r.accuracy, r.own_accuracy, r.cosine, r.euclidean, r.tasks, r.diverged) for r in result.runs]
    )


def all_numbers(results: dict[str, Result]) -> dict[str, str]:
    return {label: numbers(result) for label, result in results.items()}


def weights(out: Path) -> dict[str, bytes]:
    """All final weights below a folder."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("weights-*.safetensors"))}


def stop_after(calls: int) -> Callable[[], bool]:
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop
