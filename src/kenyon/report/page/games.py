"""Suites of games on the page: scores of every method, measures relative to fine-tuning, and origins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kenyon.methods.registry import place
from kenyon.report.page.entries import Section
from kenyon.report.page.html import MISSING, Figures, Markup, breakable, joined, scrolled, shown, table, tag
from kenyon.report.page.summary import Origin, origin_part, pm
from kenyon.report.tables import duration, run_count
from kenyon.utils.text import counted

if TYPE_CHECKING:
    from kenyon.experiments.results import GameResult
    from kenyon.rl.scores import Measured


@dataclass(frozen=True)
class Played:
    """One method or grid point of a suite."""

    label: str  # unique in its suite
    result: GameResult
    file: str  # relative to the folder above the results


@dataclass(frozen=True)
class Suite:
    """The results of one suite of games."""

    title: str
    entries: Sequence[Played]

    @property
    def results(self) -> dict[str, GameResult]:
        return {e.label: e.result for e in self.entries}


def collect_games(path: Path) -> list[Suite]:
    """Read all scores at or below a path, labelled by what differs."""
    from kenyon.experiments.compare import saved_scores

    top = path.absolute().parent if path.is_dir() else path.absolute().parent.parent
    return [
        Suite(
            title,
            [
                Played(label, file.result, file.path.absolute().relative_to(top).as_posix())
                for label, file in sorted(some.items(), key=lambda pair: place(pair[1].result.method))
            ],
        )
        for title, some in sorted(saved_scores(path).items())
    ]


def suite_part(suite: Suite, figures: Figures, where: str, places: Mapping[str, str]) -> Markup:
    """Make the part of a suite. `places`: ids of the origins, by label."""
    from kenyon.experiments.compare import measures, unmeasured
    from kenyon.rl.scores import fig6

    results, found = suite.results, measures(suite.results)
    games = suite.entries[0].result.games
    seeds = {run.seed for r in results.values() for run in r.runs}
    charts = figures.ids.new(where, "rewards")
    views = fig6(found, games) if found else []
    return tag(
        "section",
        tag("h2", suite.title, id=f"{where}-title"),
        tag("p", f"{counted(len(games), 'game')}, {counted(len(seeds), 'seed')}.", class_="lede"),
        scrolled(_scores(suite, games, found, places), f"Scores of {suite.title}"),
        [tag("p", why, class_="note") for why in unmeasured(results)],
        figures.section(Section("Reward beside fine-tuning", views), charts) if views else None,
        origin_part(
            "The file, settings, runs and machines behind every score.",
            [Origin(e.label, e.file, e.result, _runs(e.result), places[e.label]) for e in suite.entries],
            figures.ids.new(where, "origin"),
        ),
        id=where,
        class_="benchmark",
        aria_labelledby=f"{where}-title",
    )


def _scores(suite: Suite, games: Sequence[str], found: Mapping[str, Measured], places: Mapping[str, str]) -> Markup:
    names = ("nar", "np", "ns") if found else ()
    rows = []
    for e in suite.entries:
        swatch = tag("span", class_="swatch", data_label=e.label)
        rates = (getattr(found[e.label], name) if e.label in found else None for name in names)
        rows.append(
            [
                tag("a", swatch, breakable(e.label), href=f"#{places[e.label]}"),
                *map(pm, rates),
                run_count(e.result),
                *(_both(e.result, g) for g in range(len(games))),
                f"{e.result.parameters:,}",
                duration(e.result.seconds),
            ]
        )
    meaning = (
        "Of games the mean raw score of an episode ± standard error, in the end; in brackets, when just learned."
    )
    if found:
        meaning += " NAR, NP, NS: all games in the end, further games learned, and what is left, by fine-tuning."
    head = ["method", *(name.upper() for name in names), "runs", *games, "parameters", "time"]
    return table(f"{suite.title}. {meaning}", head, rows)


def _both(result: GameResult, game: int) -> Markup:
    """The final score, and below it the score just after learning."""
    return joined(pm(result.final(game), 1), tag("br"), f"({pm(result.learned(game), 1)})")


def _runs(result: GameResult) -> Markup:
    """A table of the final scores of every run."""
    rows = []
    for run in result.runs:
        scores = [_score(v) for v in run.matrix[-1]] if run.complete else [MISSING] * len(result.games)
        ended = "complete"
        if run.diverged is not None:
            game, update = run.diverged
            ended = f"diverged in game {game + 1}, update {update + 1}"
        rows.append([str(run.seed), *scores, ended])
    return table("Runs: scores in the end", ["seed", *result.games, "ended"], rows)


def _score(value: float) -> str:
    return shown(float(value) if math.isfinite(value) else None, 1)
