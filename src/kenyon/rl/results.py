"""Scores with their origin: what a method reached on games, run by run.

On disk one small JSON file, `OUT/SUITE/METHOD/scores.json`, beside the weights of every run. Scores are raw; a game
that had not been met yet has none (null).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.results import FleetOrigin, compact, plain
from kenyon.formats import Formats
from kenyon.metrics import Array, Summary
from kenyon.rl.scores import Measured, measured, reference
from kenyon.train.state import write_atomically

FORMATS = Formats("result of games", 1)
FILE = "scores.json"


@dataclass(frozen=True)
class GameRun:
    """One seed."""

    seed: int
    scores: list[list[float]]  # (evaluations, games): the mean raw score of an episode; NaN before a game was met
    diverged: list[int] | None = None  # [game, update] (from 0) at which the loss was no longer finite

    @property
    def matrix(self) -> Array:
        return np.array(self.scores, dtype=float)


@dataclass(frozen=True)
class GameOrigin(FleetOrigin):
    """Where some of the runs come from, and how fast they played: steps of all of them, all work included."""

    steps_per_second: float = 0.0


@dataclass(frozen=True)
class GameResult:
    config: dict[str, Any]
    parameters: int  # of one run, heads included
    moments: list[list[int]]  # of every evaluation: [which game was being learned, after how many of its steps]
    runs: list[GameRun]
    fleets: list[GameOrigin]

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def suite(self) -> str:
        return str(self.config["benchmark"])

    @property
    def games(self) -> list[str]:
        return list(self.config["games"])

    @property
    def complete_runs(self) -> list[GameRun]:
        return [run for run in self.runs if run.diverged is None]

    @property
    def scores(self) -> Array:
        """Of the complete runs, (R, evaluations, games)."""
        return np.array([run.scores for run in self.complete_runs], dtype=float)

    @property
    def ends(self) -> list[int]:
        """The last evaluation of every game's learning: row ends[t] is what was reached after game t."""
        return [max(row for row, (g, _) in enumerate(self.moments) if g == game) for game in range(len(self.games))]

    def final(self, game: int) -> Summary | None:
        """The score of a game when all were learned."""
        return Summary.of([float(run.matrix[-1, game]) for run in self.complete_runs])

    def learned(self, game: int) -> Summary | None:
        """The score of a game when it had just been learned."""
        return Summary.of([float(run.matrix[self.ends[game], game]) for run in self.complete_runs])

    @property
    def seconds(self) -> float:
        return sum(fleet.seconds for fleet in self.fleets)

    def summary(self) -> dict[str, Any]:
        def told(found: Summary | None) -> dict[str, float] | None:
            return None if found is None else {"mean": round(found.mean, 4), "sem": round(found.sem, 4)}

        each = {n: {"final": told(self.final(g)), "learned": told(self.learned(g))} for g, n in enumerate(self.games)}
        return {"games": each if self.complete_runs else {}, "seconds": round(self.seconds, 2)}

    def restricted(self, seeds: Sequence[int]) -> GameResult:
        """Only the runs of these seeds."""
        return replace(
            self,
            runs=[run for run in self.runs if run.seed in seeds],
            fleets=[fleet for fleet in self.fleets if set(fleet.seeds) & set(seeds)],
        )

    def to_json(self) -> str:
        body = {
            "format": FORMATS.present,
            "config": self.config,
            "parameters": self.parameters,
            "summary": self.summary(),
            "moments": self.moments,
            "runs": [asdict(run) for run in self.runs],
            "fleets": [{k: v for k, v in asdict(fleet).items() if v is not None} for fleet in self.fleets],
        }
        return compact(json.dumps(plain(body), indent=1, allow_nan=False))

    def save(self, path: Path) -> None:
        write_atomically(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> GameResult:
        try:
            body = FORMATS.read(json.loads(path.read_text()), path)
            runs = [GameRun(run["seed"], _restored(run["scores"]), run["diverged"]) for run in body["runs"]]
            origins = [GameOrigin(**fleet) for fleet in body["fleets"]]
            return cls(body["config"], body["parameters"], body["moments"], runs, origins)
        except FileNotFoundError:
            raise ResultsError(f"There is no result at {path}.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResultsError(
                f"{path} cannot be read as scores of games ({error!r}). Move it away to run anew."
            ) from error


def measures(results: Mapping[str, GameResult]) -> dict[str, Measured]:
    """NAR, NP and NS of every method, normalised by fine-tuning; nothing where that is not among them."""
    tuned = results.get("finetune")
    if tuned is None or not tuned.complete_runs:
        return {}
    try:
        best = reference([run.matrix for run in tuned.complete_runs], tuned.games)
    except ResultsError:  # it never scored in some game
        return {}
    return {
        name: measured([run.matrix for run in result.complete_runs], best)
        for name, result in results.items()
        if result.complete_runs and result.games == tuned.games
    }


def _restored(rows: list[list[float | None]]) -> list[list[float]]:
    """Null back to NaN."""
    return [[math.nan if value is None else value for value in row] for row in rows]
