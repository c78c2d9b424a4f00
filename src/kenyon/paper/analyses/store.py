"""Analyses beside the results they are of: METHOD/analysis/NAME.json, with their origin, measured once.

What is there is kept as long as configuration, settings and weights are the same (or the weights gone, and the run's
numbers the same); runs that came later are added. Several results of a benchmark are also drawn side by side, in
BENCHMARK/analysis/NAME.json.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kenyon.data import Source
from kenyon.errors import ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import Result, compact, plain
from kenyon.experiments.store import check_writable, config_digest, weights_path
from kenyon.experiments.training import origin_here
from kenyon.metrics import Summary
from kenyon.models import Net
from kenyon.paper.analyses.catalog import Analysis, Case, Values
from kenyon.paper.analyses.model import Saved
from kenyon.utils.clock import since
from kenyon.utils.files import write_atomically
from kenyon.utils.formats import check_json, with_checksum
from kenyon.utils.views import View, numbers

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """What is known of one result by one analysis."""

    path: Path  # of the JSON file
    label: str
    runs: list[Values]  # in the order of seeds, each with its `seed`
    view: View
    measured: int  # runs that were measured now; the others were there


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
    """Measure what is missing of a result, and write it beside it, or into another folder."""
    path = (into or folder) / "analysis" / f"{analysis.name}.json"
    complete = result.complete_runs[: analysis.runs]
    if not complete:
        raise ResultsError(f"{folder} has no run whose loss stayed finite: there is nothing to analyse.")
    identity = {"configuration": config_digest(result.config), "settings": asdict(settings)}
    before = _read(path, identity)
    known = {run["seed"]: run for run in before.get("runs", [])}
    runs: list[Values] = []
    measured: list[Values] = []
    net: Net | None = None
    for one in complete:
        case = Case(folder, result, one, source, device)  # goes with its model when the next one comes
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
    """Several results in one picture, folder/NAME.json; None where there is nothing to compare."""
    if analysis.compare is None or len(entries) < 2:
        return None
    view = analysis.compare(benchmark, {label: entry.runs for label, entry in entries.items()})
    path = folder / f"{analysis.name}.json"
    of = {label: entry.path.relative_to(folder.parent).as_posix() for label, entry in entries.items()}
    body = {"format": FORMAT, "analysis": analysis.name, "about": analysis.about, "benchmark": benchmark, "of": of}
    # Of what it is drawn: whoever measures one of them anew makes it out of date.
    body["basis"] = {
        label: {str(run["seed"]): run["basis"] for run in entry.runs} for label, entry in entries.items()
    }
    body["view"] = view
    if with_checksum(plain(body)) != _anything(path):
        write(path, body)
    return path, view


def write(path: Path, body: dict[str, Any]) -> None:
    text = compact(json.dumps(with_checksum(plain(body)), indent=1, allow_nan=False, ensure_ascii=False))
    write_atomically(path, (text + "\n").encode())


def _fits(analysis: Analysis, run: Values, basis: str | None, numbers_of_run: str) -> bool:
    """Whether what is known of a run is still what would be measured. Weights that were removed after they were
    measured are not needed again, even where an older version has left a value out.
    """
    if basis is None:
        return bool(run.get("run") == numbers_of_run)
    return bool(run["basis"] == basis and run.keys() >= {*analysis.scalars})


def _basis(analysis: Analysis, case: Case) -> str | None:
    """A digest of what is measured: the run's weights, those of every task where they are there, and its numbers.
    None where weights are needed and not there.
    """
    digest = hashlib.sha256(case.run.numbers)
    if analysis.weights:
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
    """Of the runs measured now. Without a network their numbers are those of the result, and so are their origins."""
    seconds = {run["seed"]: run["seconds"] for run in measured}
    if net is not None:
        found = [origin_here([*seconds], sum(seconds.values()), net)]
    else:
        mine = [(fleet, [seed for seed in fleet.seeds if seed in seconds]) for fleet in result.fleets]
        found = [
            replace(fleet, seeds=seeds, seconds=round(sum(seconds[seed] for seed in seeds), 2), together=None)
            for fleet, seeds in mine
            if seeds
        ]
    return [{name: value for name, value in asdict(origin).items() if value is not None} for origin in found]


def _of_others(origins: list[dict[str, Any]], measured: list[Values]) -> list[dict[str, Any]]:
    """Origins of the runs that were there and still count."""
    new = {run["seed"] for run in measured}
    left = [origin | {"seeds": [seed for seed in origin["seeds"] if seed not in new]} for origin in origins]
    return [origin for origin in left if origin["seeds"]]


def _anything(path: Path) -> Any:
    """What a file holds, as long as nobody has changed it. None: nothing that can be read."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path)
        return body
    except (OSError, ValueError, RecursionError):
        return None


def _read(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What is there, if it was made with the same configuration and settings."""
    body = _anything(path)
    try:
        same = body["format"] == FORMAT and all(body[name] == value for name, value in identity.items())
    except (LookupError, TypeError):
        return {}
    return body if same else {}


def _summary(values: list[Any]) -> dict[str, Any] | None:
    summary = Summary.of([float("nan") if v is None else v for v in values])
    return None if summary is None else numbers({"mean": summary.mean, "sem": summary.sem, "runs": summary.runs})
