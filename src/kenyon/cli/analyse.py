"""`kenyon analyse`: look behind the accuracies of saved results."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kenyon.cli.options import DataDir, Device, Json, Results, path

if TYPE_CHECKING:
    from rich.console import Console

    from kenyon.data import Source
    from kenyon.experiments.results import Result
    from kenyon.paper.analyses import Analysis
    from kenyon.paper.analyses.analysis import Entry
    from kenyon.utils.views import View


def analyse(
    path: Results = Path("results"),
    what: Annotated[
        str,
        typer.Option(
            "--what",
            help="all, or some of pertask, diversity, expertise, discrepancy, flatness, change and gradcam.",
        ),
    ] = "all",
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", help="Only results of this benchmark; your own file.py for one of yours."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Only these methods, or points of a grid as `kenyon show` names them; your own file.py for yours.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change how: ANALYSIS.NAME=VALUE, e.g. flatness.directions=5. May be repeated."),
    ] = None,
    device: Device = "auto",
    data: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=path, help="Write into this folder instead, where the results' own cannot be written to."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look behind the accuracies of saved results: diversity, discrepancy, flatness, Grad-CAM and more.

    Writes METHOD/analysis/NAME.json with a picture beside each result, and BENCHMARK/analysis/NAME.json with methods
    side by side. What is there is not measured again.
    """
    from kenyon.benchmarks.registry import find_benchmark
    from kenyon.cli.consoles import stderr, stdout, tell_json
    from kenyon.errors import ResultsError
    from kenyon.experiments.results import point_name
    from kenyon.paper.analyses import ANALYSES, compare
    from kenyon.paper.analyses import analyse as run_analysis
    from kenyon.training import choose_device

    asked = _asked(what)
    chosen = _with_settings(asked, set_ or [])
    where = choose_device(device)
    found = _results(path, benchmark, method)
    notes = stderr()
    output = notes if json else stdout()
    written: dict[str, dict[str, dict[str, str]]] = {}
    for name, results in found.items():

        @cache
        def source(name: str = name) -> Source:  # read only if something has to be measured
            return find_benchmark(name).source.load(data)

        for analysis, how in chosen.items():
            fit = {label: why for label, (_, r) in results.items() if (why := ANALYSES[analysis].why_not(r))}
            for label, (_, result) in results.items():
                if not result.complete_runs:
                    fit[label] = "no run stayed finite"
                    notes.print(f"{label}: left out, for no run stayed finite.", style="yellow", soft_wrap=True)
            fitting = {label: pair for label, pair in results.items() if label not in fit}
            if not fitting and what != "all":
                label, why = next(iter(fit.items()))
                raise ResultsError(f"{analysis} cannot be measured of {label} on {name}: {why}.")
            entries: dict[str, Entry] = {}
            for label, (folder, result) in fitting.items():
                entry = run_analysis(
                    ANALYSES[analysis],
                    how,
                    folder,
                    result,
                    source,
                    where,
                    lambda text: notes.print(text, soft_wrap=True),
                    None if out is None else out / name / result.method / point_name(result.point),
                )
                entries[label] = entry
                _draw(entry.path, entry.view)
                written.setdefault(name, {}).setdefault(label, {})[analysis] = str(entry.path)
            folder_of_all = _common_folder(fitting) if out is None else out / name / "analysis"
            if folder_of_all is not None:
                together = compare(ANALYSES[analysis], name, entries, folder_of_all)
                if together is not None:
                    _draw(*together)
            if entries:
                _show(output, name, ANALYSES[analysis], entries)
    if not written:
        raise ResultsError(f"Nothing of {what} can be measured of the results below {path}.")
    where_to = "beside the results, in analysis/" if out is None else f"in {out}"
    output.print(f"Written {where_to} (JSON, PNG and SVG).", soft_wrap=True)
    if json:
        tell_json(written)


def _asked(what: str) -> list[Analysis]:
    from kenyon.errors import ConfigError
    from kenyon.paper.analyses import ANALYSES, find_analysis

    names = [name.strip() for name in what.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--what names no analysis. There are: all, {', '.join(ANALYSES)}.")
    return list(ANALYSES.values()) if names == ["all"] else [find_analysis(name) for name in names]


def _with_settings(asked: list[Analysis], pairs: list[str]) -> dict[str, Any]:
    """Return the settings of each analysis, with `ANALYSIS.NAME=VALUE` applied."""
    from dataclasses import fields, replace

    from kenyon.errors import ConfigError, unknown

    chosen = {analysis.name: analysis.settings for analysis in asked}
    for pair in pairs:
        where, sign, text = pair.partition("=")
        analysis, dot, name = where.strip().partition(".")
        if not sign or not dot:
            raise ConfigError(f"--set takes ANALYSIS.NAME=VALUE, not '{pair}'. For example flatness.directions=5.")
        if analysis not in chosen:
            raise unknown("analysis among those asked for", analysis, chosen)
        known = {f.name: getattr(chosen[analysis], f.name) for f in fields(chosen[analysis])}
        if name not in known:
            raise unknown(f"setting of {analysis}", name, known or ["none"])
        kind = type(known[name])
        try:
            value = kind(text.strip())
        except ValueError:
            kinds = {int: "a whole number", float: "a number"}
            raise ConfigError(f"{where} must be {kinds.get(kind, 'a word')}, not '{text}'.") from None
        chosen[analysis] = replace(chosen[analysis], **{name: value})
    return chosen


def _results(path: Path, benchmark: str | None, methods: str | None) -> dict[str, dict[str, tuple[Path, Result]]]:
    """Return results at or below a path with their folders: benchmark -> label -> (folder, result)."""
    from kenyon.benchmarks.registry import load_benchmark_file
    from kenyon.errors import ResultsError, unknown
    from kenyon.experiments.compare import reported
    from kenyon.experiments.runner import REFERENCE
    from kenyon.experiments.spec import named_methods
    from kenyon.methods import METHODS
    from kenyon.methods.registry import place
    from kenyon.utils.user_code import is_user_file

    if benchmark is not None and is_user_file(benchmark):
        benchmark = load_benchmark_file(Path(benchmark))
    files = reported(path)
    if all(result.held_out for _, result in files):
        raise ResultsError(
            f"{path} has only runs of a search, whose accuracies are of held-out training data and whose weights are "
            "not kept. Run what it chose, `kenyon run --config .../best.toml --out chosen`, and analyse that."
        )
    wanted = None if methods is None else named_methods(methods)
    found: dict[str, dict[str, tuple[Path, Result]]] = {}
    labels: set[str] = set()
    for file, result in sorted(files, key=lambda pair: place(pair[1].method)):
        labels |= {result.method, result.label}
        # The reference for FWT learns every task from a random start, and is analysed only by name.
        named = result.method != REFERENCE if wanted is None else {result.method, result.label} & set(wanted)
        if benchmark in (None, result.benchmark) and (named or len(files) == 1):
            _check_known(file.parent, result, sorted({r.method for _, r in files} & {*METHODS}))
            by_label = found.setdefault(result.benchmark, {})
            if result.label in by_label:
                raise ResultsError(
                    f"{path} has several results of {result.label} on {result.benchmark}: "
                    f"{by_label[result.label][0]} and {file.parent}. Name the folder of one."
                )
            by_label[result.label] = (file.parent, result)
    for name in wanted or ():
        if name not in labels:
            raise unknown(f"method with results below {path}", name, labels)
    if not found:
        raise ResultsError(f"There are no results of {benchmark or methods} below {path}.")
    return found


def _check_known(folder: Path, result: Result, others: list[str]) -> None:
    """Raise ConfigError unless benchmark and method are known; those of a user's file are once it is named."""
    from kenyon.benchmarks.registry import BENCHMARKS
    from kenyon.errors import ConfigError
    from kenyon.experiments.runner import REFERENCE
    from kenyon.methods import METHODS

    own = f"{folder} is of a {{}} called '{{}}', which Kenyon does not have. If it is yours, name its file too: {{}}."
    if result.benchmark not in BENCHMARKS:
        raise ConfigError(own.format("benchmark", result.benchmark, "--benchmark mine.py"))
    if result.method not in METHODS:
        known = ",".join([*(name for name in others if name != REFERENCE), "mine.py"])
        raise ConfigError(own.format("method", result.method, f"--method {known}"))


def _common_folder(results: dict[str, tuple[Path, Result]]) -> Path | None:
    """Return BENCHMARK/analysis if all results are in one benchmark's folder."""
    folders = {folder.parent.parent if result.point else folder.parent for folder, result in results.values()}
    return folders.pop() / "analysis" if len(folders) == 1 else None


def _draw(path: Path, view: View) -> None:
    """Draw unless both pictures are there and newer than the data."""
    from kenyon.report.plots import draw_views
    from kenyon.utils.files import is_file

    pictures = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    if not all(is_file(one) and one.stat().st_mtime >= path.stat().st_mtime for one in pictures):
        draw_views([view], pictures[0], suffixes=(".png", ".svg"))


def _show(console: Console, benchmark: str, analysis: Analysis, entries: dict[str, Entry]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kenyon.metrics import Summary
    from kenyon.report.tables import pm

    title = f"{benchmark}: {analysis.name}, {analysis.about}"
    if not analysis.scalars:
        console.print(f"{title}: drawn", soft_wrap=True)
        return
    console.print(title, style="bold", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold")  # labels of points are long, and may differ in the end only
    for name in analysis.scalars:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    for label, entry in entries.items():
        cells = []
        for name in analysis.scalars:
            values = [float("nan") if run.get(name) is None else float(run[name]) for run in entry.runs]
            cells.append(pm(Summary.of(values), 3))
        table.add_row(label, *cells)
    console.print(table)
