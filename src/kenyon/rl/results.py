"""Scores with their origin: what a method reached on games, run by run.

On disk one small JSON file, `OUT/SUITE/METHOD/scores.json`, beside the weights of every run; for a point of a grid
`OUT/SUITE/METHOD/lambda_sp=1000/scores.json`. Scores are raw; a game that had not been met yet has none (null).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.compare import File, labels
from kenyon.experiments.result_form import check_scores, out_of_place
from kenyon.experiments.results import FleetOrigin, Kept, Result, checksummed_text, integrity_of
from kenyon.experiments.store import files_below
from kenyon.metrics import Array, Summary, rounded
from kenyon.rl.scores import Measured, measured, reference
from kenyon.utils.formats import Formats

FORMATS = Formats("result of games", 1)
FINE_TUNING = "finetune"  # what scores are normalised by
HOLDING = ("importance_rollouts", "importance_steps", "anchors", "penalties_from")


@dataclass(frozen=True)
class GameRun:
    """One seed."""

    seed: int
    scores: list[list[float]]  # (evaluations, games): the mean raw score of an episode; NaN before a game was met
    diverged: list[int] | None = None  # [game, update] (from 0) at which the loss was no longer finite

    @property
    def matrix(self) -> Array:
        return np.array(self.scores, dtype=float)

    @property
    def complete(self) -> bool:
        return self.diverged is None


@dataclass(frozen=True)
class GameOrigin(FleetOrigin):
    """Where some of the runs come from, and how fast they played: steps of all of them, all work included."""

    steps_per_second: float = 0.0


@dataclass(frozen=True, repr=False)
class GameResult(Kept[GameRun, GameOrigin]):
    FILE, WHAT, FORMATS = "scores.json", "scores of games", FORMATS

    moments: list[list[int]]  # of every evaluation: [which game was being learned, after how many of its steps]

    @property
    def games(self) -> list[str]:
        return list(self.config["games"])

    @property
    def scores(self) -> Array:
        """Of the complete runs, (R, evaluations, games)."""
        return np.array([run.scores for run in self.complete_runs], dtype=float)

    @property
    def ends(self) -> list[int]:
        """The last evaluation of every game's learning: row ends[t] is what was reached after game t."""
        return [max(row for row, (g, _) in enumerate(self.moments) if g == game) for game in range(len(self.games))]

    def measurements(self) -> Iterator[dict[str, Any]]:
        for run in self.complete_runs:
            for after, row in enumerate(run.matrix[self.ends], 1):
                for game, (name, score) in enumerate(zip(self.games, row.tolist(), strict=True), 1):
                    if math.isfinite(score):  # it is NaN before the game was played
                        yield {"seed": run.seed, "after_task": after, "task": game, "task_name": name, "score": score}

    def final(self, game: int) -> Summary | None:
        """The score of a game when all were learned."""
        return Summary.of([float(run.matrix[-1, game]) for run in self.complete_runs])

    def learned(self, game: int) -> Summary | None:
        """The score of a game when it had just been learned."""
        return Summary.of([float(run.matrix[self.ends[game], game]) for run in self.complete_runs])

    def summary(self) -> dict[str, Any]:
        each = {
            n: {"final": rounded(self.final(g)), "learned": rounded(self.learned(g))}
            for g, n in enumerate(self.games)
        }
        return {"games": each if self.complete_runs else {}, "seconds": round(self.seconds, 2)}

    def to_json(self) -> str:
        body = {
            "format": FORMATS.present,
            "config": self.config,
            **({"point": self.point} if self.point else {}),
            "parameters": self.parameters,
            "summary": self.summary(),
            "moments": self.moments,
            "runs": [asdict(run) for run in self.runs],
            "fleets": [{k: v for k, v in asdict(fleet).items() if v is not None} for fleet in self.fleets],
            **self.integrity(),
        }
        return checksummed_text(body)

    @classmethod
    def of_body(cls, body: Any, path: Path) -> GameResult:
        try:
            body = FORMATS.read(body, path)
            runs = [GameRun(run["seed"], _restored(run["scores"]), run["diverged"]) for run in body["runs"]]
            origins = [GameOrigin(**fleet) for fleet in body["fleets"]]
            point = body.get("point", {})
            more = integrity_of(body)
            result = cls(body["config"], body["parameters"], runs, origins, body["moments"], point=point, **more)
            check_scores(result)
            return result
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResultsError(
                f"{path} cannot be read as scores of games: {out_of_place(error)}. Move it away to run anew."
            ) from error


def saved_scores(path: Path) -> dict[str, dict[str, File[GameResult]]]:
    """All scores of games at or below a path, with their files: suite -> label -> file. Where other games were
    learned, or in another order, they stand apart; labels tell apart what was made under different settings.
    """
    paths = [path] if path.name == GameResult.FILE else files_below(path, GameResult.FILE) if path.is_dir() else []
    groups: dict[str, dict[str, list[File[GameResult]]]] = {}  # suite -> games -> files
    for file in (File(name.as_posix(), GameResult.load(name), name) for name in paths):
        groups.setdefault(file.result.benchmark, {}).setdefault(", ".join(file.result.games), []).append(file)
    return {
        suite if len(some) == 1 else f"{suite} ({games})": {label: file for file, label in labels(files, apart=True)}
        for suite, some in groups.items()
        for games, files in some.items()
    }


def load_scores(path: Path) -> dict[str, dict[str, GameResult]]:
    """The same without the files: suite -> label -> result."""
    return {suite: {label: file.result for label, file in some.items()} for suite, some in saved_scores(path).items()}


def has_images(path: Path) -> bool:
    """Whether a path that has scores of games has results of images too."""
    return path.name != GameResult.FILE and (path.is_file() or bool(files_below(path, Result.FILE)))


def measures(results: Mapping[str, GameResult]) -> dict[str, Measured]:
    """NAR, NP and NS of every method and point, normalised by fine-tuning on the same games in the same way; nothing
    of those where that is not among them.
    """
    found = {}
    for name, result in results.items():
        tuned = _fine_tuning(result, results)
        if tuned is not None and result.complete_runs:
            with suppress(ResultsError):  # it never scored in some game: `unmeasured` tells
                best = reference([run.matrix for run in tuned.complete_runs], tuned.games)
                found[name] = measured([run.matrix for run in result.complete_runs], best)
    return found


def unmeasured(results: Mapping[str, GameResult]) -> list[str]:
    """Why there is no NAR, NP and NS where fine-tuning is there."""
    told = []
    for result in results.values():
        if result.method == FINE_TUNING and result.complete_runs:
            try:
                reference([run.matrix for run in result.complete_runs], result.games)
            except ResultsError as error:
                told.append(str(error))
    return list(dict.fromkeys(told))


def _fine_tuning(result: GameResult, results: Mapping[str, GameResult]) -> GameResult | None:
    for other in results.values():
        if other.method == FINE_TUNING and other.complete_runs and _played(other) == _played(result):
            return other
    return None


def _played(result: GameResult) -> tuple[Any, ...]:
    """The games and how they were learned, but for what only methods that hold weights have to do with."""
    training = {n: v for n, v in result.config["training"].items() if n not in HOLDING}
    return result.games, training


def _restored(rows: list[list[float | None]]) -> list[list[float]]:
    """Null back to NaN."""
    return [[math.nan if value is None else value for value in row] for row in rows]
