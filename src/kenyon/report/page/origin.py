"""Where every number comes from: the file, the settings, the runs, and the machine, versions and date of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kenyon.experiments.results import Result, ResultBase, Run, value_text
from kenyon.experiments.store import flatten
from kenyon.metrics import average_accuracy, backward_transfer, forward_transfer, learning_accuracy
from kenyon.report.page.html import MISSING, Markup, scrolled, shown, table, tag
from kenyon.report.tables import duration


@dataclass(frozen=True)
class Origin:
    """Of one result, of images or of games."""

    label: str
    file: str
    result: ResultBase
    runs: Markup  # a table of them
    place: str  # where links to it lead


def origin_part(note: str, some: Sequence[Origin], place: str) -> Markup:
    """The last part of a benchmark or suite."""
    return tag(
        "section",
        tag("h3", "Origin", id=f"{place}-title"),
        tag("p", note, class_="note"),
        [_folded(one) for one in some],
        class_="part",
        id=place,
        aria_labelledby=f"{place}-title",
    )


def _folded(one: Origin) -> Markup:
    """Closed until it is asked for: a link to the place inside opens it."""
    parts = [
        _settings(one.result),
        scrolled(one.runs, f"Runs of {one.label}"),
        scrolled(_fleets(one.result), f"Machines of {one.label}") if one.result.fleets else None,
    ]
    return tag(
        "details",
        tag("summary", tag("span", class_="swatch", data_label=one.label), one.label),
        tag("div", tag("p", "File: ", tag("code", one.file)), parts, id=one.place, class_="inside", tabindex=-1),
        class_="origin",
    )


def _settings(result: ResultBase) -> Markup:
    settings = {**flatten(result.config), "parameters": f"{result.parameters:,}"}
    if result.point:
        settings |= {"values of this point": ", ".join(f"{k}={value_text(v)}" for k, v in result.point.items())}
    if result.unsealed:
        settings["without a checksum"] = f"numbers of seeds {', '.join(map(str, result.unsealed))}"
    texts = {
        n: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else value_text(v) for n, v in settings.items()
    }
    pairs = [tag("div", tag("dt", name), tag("dd", text)) for name, text in texts.items()]
    return tag("dl", pairs, class_="settings")


def runs_table(result: Result) -> Markup:
    head = ["seed", "AAC, %", "BWT", "FWT", "just learned, %", "ended", "tasks in their order"]
    return table("Runs", head, [_run(result, run) for run in result.runs])


def _run(result: Result, run: Run) -> list[str]:
    measured = _measured(result, run) if run.complete else [MISSING] * 4
    if run.diverged is None:
        ended = "complete"
    else:
        task, epoch = run.diverged
        ended = f"diverged in task {task + 1}, epoch {epoch + 1}"
    return [str(run.seed), *measured, ended, ", ".join(run.tasks)]


def _measured(result: Result, run: Run) -> list[str]:
    matrix = run.matrix
    values: list[float] = [average_accuracy(matrix)] + [math.nan] * 3
    if len(run.accuracy) == len(run.tasks):
        alone = result.alone.get(run.seed)
        values[1] = backward_transfer(matrix)
        values[2] = forward_transfer(matrix, np.array(alone)) if alone is not None else math.nan
        values[3] = learning_accuracy(matrix)
    return [shown(v if math.isfinite(v) else None) for v in values]


def _fleets(result: ResultBase) -> Markup:
    head = ["seeds", "seconds", "device", "precision", "finished (UTC)", "versions"]
    rows = []
    for fleet in result.fleets:
        beside = f", their share of {fleet.together} runs trained together" if fleet.together else ""
        rows.append(
            [
                ", ".join(map(str, fleet.seeds)),
                f"{fleet.seconds:,.2f} ({duration(fleet.seconds)}){beside}",
                fleet.device,
                fleet.precision,
                fleet.finished.replace("T", " ").removesuffix("+00:00"),
                ", ".join(f"{name} {version}" for name, version in fleet.versions.items()),
            ]
        )
    return table("Where and when", head, rows)
