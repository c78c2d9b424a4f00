"""Analyses of trained runs: the type, and the files that measurements are saved in.

METHOD/analysis/NAME.json holds the measurements of all runs of a result with their origin. A measurement is valid as
long as configuration, settings and weights are the same (or the weights are gone and the run's numbers the same);
later runs are added. BENCHMARK/analysis/NAME.json shows several results of a benchmark side by side.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kenyon.errors import ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import Result, Run, compact, plain
from kenyon.experiments.store import check_writable, config_digest, weights_path
from kenyon.metrics import Array, Summary
from kenyon.utils.clock import since
from kenyon.utils.files import write_atomically
from kenyon.utils.formats import check_json, with_checksum
from kenyon.utils.views import Bar, Series, View, numbers

if TYPE_CHECKING:
    from kenyon.data import Source
    from kenyon.models import Net
    from kenyon.paper.analyses.model import Model

FORMAT = 1
Values = dict[str, Any]  # measurements of a run, ready for JSON; in a file with its seed
Runs = Sequence[Values]  # in the order of their seeds
Compared = Mapping[str, Runs]  # by label


@dataclass(frozen=True)
class NoSettings:
    """Settings of an analysis that has none."""


@dataclass(frozen=True, eq=False)
class Case:
    """One run of a result. Its weights and data are read on first use."""

    folder: Path
    result: Result
    run: Run
    source: Callable[[], Source]
    device: torch.device

    @cached_property
    def model(self) -> Model:
        from kenyon.paper.analyses.model import Model

        return Model.of_result(self.folder, self.run.seed, self.source(), self.device)


@dataclass(frozen=True)
class Analysis:
    """An analysis by name: its measurement of a run, and its charts."""

    name: str
    about: str
    measure: Callable[[Case, Any], Values]
    view: Callable[[str, Runs], View]  # (label, runs)
    compare: Callable[[str, Compared], View] | None  # (benchmark, runs by label)
    why_not: Callable[[Result], str | None] = lambda result: None  # the reason why a result cannot be analysed
    settings: Any = field(default_factory=NoSettings)
    scalars: tuple[str, ...] = ()  # names of values that are one number per run
    weights: bool = True  # needs the weights
    runs: int | None = None  # analyse only the first runs; None: all


@dataclass(frozen=True)
class Entry:
    """The measurements of one result by one analysis."""

    path: Path  # of the JSON file
    label: str
    runs: list[Values]
    view: View
    measured: int  # runs that were measured now; the others had been measured before


def analyse(
    analysis: Analysis,
    settings: Any,
    folder: Path,
    result: Result,
    source: Callable[[], Source],
    device: torch.device,
    told: Callable[[str], None] = lambda text: None,
    into: Path | None = None,
) -> Entry:
    """Measure the runs of a result that have no valid measurement, and save the analysis.

    The file is written into the result's folder, or into the folder `into`. The callback receives a line of text
    before each run that needs its weights.
    """
    path = (into or folder) / "analysis" / f"{analysis.name}.json"
    complete = result.complete_runs[: analysis.runs]
    if not complete:
        raise ResultsError(
            f"{folder} has no complete run to analyse: the loss of every run diverged. Train it with other settings."
        )
    identity = {"configuration": config_digest(result.config), "settings": asdict(settings)}
    before = _read(path, identity)
    known = {run["seed"]: run for run in before.get("runs", [])}
    runs: list[Values] = []
    measured: list[Values] = []
    net: Net | None = None
    for one in complete:
        case = Case(folder, result, one, source, device)  # holds a model until the next run
        numbers_of_run, basis = one.digest, _basis(analysis, case)
        run = known.get(one.seed)
        if run is None or not _fits(analysis, run, basis, numbers_of_run):
            if analysis.weights:
                told(f"{result.label}: {analysis.name}, seed {one.seed}")
            if not measured:
                check_writable(path.parent)  # before what may take long
            started = time.perf_counter()
            values = numbers(analysis.measure(case, settings))
            seconds = round(since(started), 3)
            run = {"seed": one.seed, "basis": basis, "run": numbers_of_run, "seconds": seconds, **values}
            measured.append(run)
            net = case.model.net if analysis.weights else None
        runs.append(run)
    origins = before.get("origins", [])
    if measured:
        origins = [*_of_others(origins, measured), *_origins(measured, net, result)]
    view = analysis.view(result.label, runs)
    body = {
        "format": FORMAT,
        "analysis": analysis.name,
        "about": analysis.about,
        "benchmark": result.benchmark,
        "method": result.method,
        "label": result.label,
        **identity,
        "origins": origins,
        "summary": {name: _summary([run.get(name) for run in runs]) for name in analysis.scalars},
        "view": view,
        "runs": runs,
    }
    if measured or body["view"] != before.get("view"):
        write(path, body)
    return Entry(path, result.label, runs, view, len(measured))


def compare(
    analysis: Analysis, benchmark: str, entries: Mapping[str, Entry], folder: Path
) -> tuple[Path, View] | None:
    """Save several results in one view, folder/NAME.json. Return None if there is nothing to compare."""
    if analysis.compare is None or len(entries) < 2:
        return None
    view = analysis.compare(benchmark, {label: entry.runs for label, entry in entries.items()})
    path = folder / f"{analysis.name}.json"
    of = {label: entry.path.relative_to(folder.parent).as_posix() for label, entry in entries.items()}
    body = {"format": FORMAT, "analysis": analysis.name, "about": analysis.about, "benchmark": benchmark, "of": of}
    # A later measurement of one of the results makes the view outdated.
    body["basis"] = {
        label: {str(run["seed"]): run["basis"] for run in entry.runs} for label, entry in entries.items()
    }
    body["view"] = view
    if with_checksum(plain(body)) != _intact(path):
        write(path, body)
    return path, view


def write(path: Path, body: dict[str, Any]) -> None:
    text = compact(json.dumps(with_checksum(plain(body)), indent=1, allow_nan=False, ensure_ascii=False))
    write_atomically(path, (text + "\n").encode())


def _fits(analysis: Analysis, run: Values, basis: str | None, numbers_of_run: str) -> bool:
    """True if a run's measurement is still valid. Weights that were removed after the measurement are not needed
    again, even if an older version left a value out.
    """
    if basis is None:
        return bool(run.get("run") == numbers_of_run)
    return bool(run["basis"] == basis and run.keys() >= {*analysis.scalars})


def _basis(analysis: Analysis, case: Case) -> str | None:
    """Digest of the run's numbers and weights; None if the analysis needs weights and they are not there."""
    digest = hashlib.sha256(case.run.numbers)
    if analysis.weights:
        from kenyon.paper.analyses.model import Saved

        saved = Saved(case.folder, case.result, Config.from_dict(case.result.config))
        path = weights_path(case.folder, case.run.seed)
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ResultsError(f"{path} cannot be read: {error.strerror or error}.") from error
        if analysis.name == "change" and saved.has_every_task(case.run.seed):
            digest.update(b"every task")
    return digest.hexdigest()[:16]


def _origins(measured: list[Values], net: Net | None, result: Result) -> list[dict[str, Any]]:
    """Origins of the runs measured now: this process, or without a network those of the result."""
    seconds = {run["seed"]: run["seconds"] for run in measured}
    if net is not None:
        from kenyon.experiments.training import origin_here

        found = [origin_here([*seconds], sum(seconds.values()), net)]
    else:
        parts = [(fleet, [seed for seed in fleet.seeds if seed in seconds]) for fleet in result.fleets]
        found = [
            replace(fleet, seeds=seeds, seconds=round(sum(seconds[seed] for seed in seeds), 2), together=None)
            for fleet, seeds in parts
            if seeds
        ]
    return [{name: value for name, value in asdict(origin).items() if value is not None} for origin in found]


def _of_others(origins: list[dict[str, Any]], measured: list[Values]) -> list[dict[str, Any]]:
    """Origins of the runs that were measured before and not now."""
    new = {run["seed"] for run in measured}
    left = [origin | {"seeds": [seed for seed in origin["seeds"] if seed not in new]} for origin in origins]
    return [origin for origin in left if origin["seeds"]]


def _intact(path: Path) -> Any:
    """Return the contents of a JSON file, or None if it is unreadable or its checksum is wrong."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path)
        return body
    except (OSError, ValueError, RecursionError):
        return None


def _read(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the saved analysis if it has the same configuration and settings, or {}."""
    body = _intact(path)
    try:
        same = body["format"] == FORMAT and all(body[name] == value for name, value in identity.items())
    except (LookupError, TypeError):
        return {}
    return body if same else {}


def _summary(values: list[Any]) -> dict[str, Any] | None:
    summary = Summary.of([float("nan") if v is None else v for v in values])
    return None if summary is None else numbers({"mean": summary.mean, "sem": summary.sem, "runs": summary.runs})


def stacked(runs: Runs, name: str) -> Array:
    return np.array([[np.nan if v is None else v for v in run[name]] for run in runs], dtype=float)


def places(count: int) -> list[int]:
    return list(range(1, count + 1))


def count_text(runs: Runs) -> str:
    return "1 run" if len(runs) == 1 else f"mean of {len(runs)} runs"


def mean_line(name: str, x: Sequence[float], each: Array) -> Series:
    """The mean over runs (first axis) with its standard error."""
    return Series(name, x, each.mean(0), each.std(0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else None)


def bar_of(name: str, values: Sequence[float]) -> Bar:
    """The mean of runs with its standard error, and every run as a point."""
    found = Summary.of(list(values))
    return Bar(name, np.nan) if found is None else Bar(name, found.mean, found.sem, found.runs)
