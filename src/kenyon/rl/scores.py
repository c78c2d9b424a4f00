"""The paper's measures of continual reinforcement learning, from raw scores, and Fig. 6 b to e as views.

A matrix of one run has S[e, i], the mean raw score of game i in evaluation e. Evaluations cover the whole sequence,
equally many while each game is learned, the last of them at its end. Games that are learned later are NaN.

R[t, i] is the score of game i after learning game t, and r[i] the best score of game i in any evaluation of
fine-tuning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError, ResultsError
from kenyon.metrics import Summary
from kenyon.utils.views import Bar, Series, View, bars, lines

Array = npt.NDArray[np.float64]


def after_each(matrix: Array) -> Array:
    """Return R (T, T), from all evaluations (T * n, T)."""
    evaluations, games = matrix.shape
    if not evaluations or evaluations % games:
        raise ConfigError(
            f"{evaluations} evaluations are not equally many for each of {games} games. Give all of a finished run."
        )
    each = evaluations // games
    return matrix[each - 1 :: each]


def reference(finetuned: Sequence[Array], games: Sequence[str] | None = None) -> Array:
    """Return r (T,): each run's best score in any of its evaluations, averaged over the runs of fine-tuning.

    The paper does not say how its five runs are combined. Pass a single run to normalize by that run's own best.
    """
    if not finetuned:
        raise ConfigError("Scores are normalised by those of fine-tuning, and there is no run of it. Run it first.")
    best = np.mean([np.where(np.isnan(matrix), -np.inf, matrix).max(axis=0) for matrix in finetuned], axis=0)
    names = [f"game {i + 1}" for i in range(len(best))] if games is None else list(games)
    poor = [f"{name} ({value:g})" for name, value in zip(names, best, strict=True) if not value > 0]
    if poor:
        raise ResultsError(
            f"Fine-tuning never scored above 0 in {', '.join(poor)}, so that nothing can be normalised by it. "
            "Train for more steps, or leave these games out."
        )
    return best


def accumulated(R: Array, r: Array) -> float:
    """Return NAR = sum_i R[T, i] / r[i], the sum over all games at the end; T if all scores equal r."""
    return float(np.sum(R[-1] / r))


def plasticity(R: Array, r: Array) -> float:
    """Return NP = 1/(T-1) sum_{i>=2} R[i, i] / r[i], the mean score of each game after the first when learned."""
    if len(r) < 2:
        return math.nan
    return float(np.mean(np.diagonal(R)[1:] / r[1:]))


def stability(R: Array) -> float:
    """Return NS = 1/(T-1) sum_{i<T} R[T, i] / R[i, i], the fraction of each score that is left at the end.

    The mean is over the games that scored above 0 when learned: a ratio to a score of 0 or below has no meaning. NaN
    if there are none.
    """
    learned, left = np.diagonal(R)[:-1], R[-1, :-1]
    positive = learned > 0
    return float(np.mean(left[positive] / learned[positive])) if positive.any() else math.nan


def accumulated_curve(matrix: Array, r: Array) -> Array:
    """Return NAR in every evaluation, over the games learned so far (Fig. 6b). The last value is NAR itself."""
    return np.nansum(matrix / r, axis=1)


@dataclass(frozen=True)
class Measured:
    """NAR, NP and NS of a method over runs, and NAR in every evaluation."""

    nar: Summary | None
    np: Summary | None
    ns: Summary | None
    curve: Array  # (evaluations,), mean over runs
    curve_sem: Array  # (evaluations,); NaN for a single run


def measured(runs: Sequence[Array], r: Array) -> Measured:
    """Return the measures of complete runs of equal length, each normalized by the same r."""
    if not runs:
        raise ConfigError("There is no complete run to measure.")
    learned = [after_each(matrix) for matrix in runs]
    curves = np.array([accumulated_curve(matrix, r) for matrix in runs])
    n = len(runs)
    sem = curves.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(curves.shape[1], math.nan)
    return Measured(
        Summary.of([accumulated(R, r) for R in learned]),
        Summary.of([plasticity(R, r) for R in learned]),
        Summary.of([stability(R) for R in learned]),
        curves.mean(axis=0),
        sem,
    )


MEASURES = (
    ("nar", "Normalised accumulated reward", "NAR", "sum over all games in the end"),
    ("np", "Normalised plasticity", "NP", "how well each further game is learned"),
    ("ns", "Normalised stability", "NS", "what is left of each game in the end"),
)


def fig6(methods: Mapping[str, Measured], games: Sequence[str]) -> list[View]:
    """Return panels b, c, d and e, from the measures of each method by its label."""
    return [course(methods, games), *(_bars(methods, *measure) for measure in MEASURES)]


def course(methods: Mapping[str, Measured], games: Sequence[str]) -> View:
    """Return NAR in every evaluation, with the number of games learned on the x axis: game 1 ends at 1."""
    series = []
    for name, method in methods.items():
        n = len(method.curve)
        position = np.arange(1, n + 1) * len(games) / n
        band = None if np.isnan(method.curve_sem).all() else method.curve_sem
        series.append(Series(name, position, method.curve, error=band))
    runs = max((len(method.nar.runs) for method in methods.values() if method.nar), default=0)
    note = f"{' - '.join(games)}. Scores of the games so far, each divided by the best of fine-tuning, summed."
    return lines("NAR in continual learning", "games learned", "NAR", series, f"{note}{_over(runs)}")


def _bars(methods: Mapping[str, Measured], field: str, title: str, axis: str, meaning: str) -> View:
    shown: dict[str, Summary] = {n: value for n, method in methods.items() if (value := getattr(method, field))}
    each = [
        Bar(
            name,
            value.mean,
            None if np.isnan(value.sem) else value.sem,
            points=value.runs if len(value.runs) > 1 else (),
        )
        for name, value in shown.items()
    ]
    runs = max((len(value.runs) for value in shown.values()), default=0)
    return bars(title, axis, each, f"{meaning[0].upper()}{meaning[1:]}.{_over(runs)}")


def _over(runs: int) -> str:
    return f" Mean and standard error over {runs} runs." if runs > 1 else ""
