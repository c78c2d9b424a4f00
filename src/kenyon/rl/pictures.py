"""Fig. 6 b to e as views: the course of NAR, and NAR, NP and NS of every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kenyon.metrics import Summary
from kenyon.rl.scores import Measured
from kenyon.views import Bar, Series, View, bars, lines

MEASURES = (
    ("nar", "Normalised accumulated reward", "NAR", "sum over all games in the end"),
    ("np", "Normalised plasticity", "NP", "how well each further game is learned"),
    ("ns", "Normalised stability", "NS", "what is left of each game in the end"),
)


def fig6(methods: Mapping[str, Measured], games: Sequence[str]) -> list[View]:
    """b, c, d and e, from what `scores.measured` gives for each method by its label."""
    return [course(methods, games), *(_bars(methods, *measure) for measure in MEASURES)]


def course(methods: Mapping[str, Measured], games: Sequence[str]) -> View:
    """NAR in every evaluation; games that have been learned on the x axis, so that game 1 ends at 1."""
    series = []
    for name, found in methods.items():
        n = len(found.curve)
        position = np.arange(1, n + 1) * len(games) / n
        band = None if np.isnan(found.curve_sem).all() else found.curve_sem
        series.append(Series(name, position, found.curve, error=band))
    runs = max((len(found.nar.runs) for found in methods.values() if found.nar), default=0)
    note = f"{' - '.join(games)}. Score of the games met so far, each by the best of fine-tuning, added up."
    return lines("NAR in continual learning", "games learned", "NAR", series, f"{note}{_over(runs)}")


def _bars(methods: Mapping[str, Measured], field: str, title: str, axis: str, meaning: str) -> View:
    shown: dict[str, Summary] = {n: value for n, found in methods.items() if (value := getattr(found, field))}
    made = [
        Bar(
            name,
            value.mean,
            None if np.isnan(value.sem) else value.sem,
            points=value.runs if len(value.runs) > 1 else (),
        )
        for name, value in shown.items()
    ]
    runs = max((len(value.runs) for value in shown.values()), default=0)
    return bars(title, axis, made, f"{meaning[0].upper()}{meaning[1:]}.{_over(runs)}")


def _over(runs: int) -> str:
    return f" Mean and standard error over {runs} runs." if runs > 1 else ""
