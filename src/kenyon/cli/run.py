"""`kenyon run`: from the command line to a table, files and a figure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.cli.games import run_games_command
from kenyon.cli.show import load_results
from kenyon.cli.watched import watched
from kenyon.errors import ConfigError, shown, unknown
from kenyon.experiments import BENCHMARKS, Plan, execute, load_benchmark_file, parse_settings, plan
from kenyon.experiments.incomplete import Incomplete, none_finite, told_of_diverged
from kenyon.experiments.results import Result, plain
from kenyon.experiments.runner import REFERENCE, check_data
from kenyon.experiments.spec import Config
from kenyon.experiments.spec_file import asked, read_config
from kenyon.experiments.store import PointFolder
from kenyon.methods import find_method, load_method_file
from kenyon.report.figures import draw_results
from kenyon.report.tables import results_json, results_tables
from kenyon.rl.suites import ARENAS
from kenyon.utils.clock import since
from kenyon.utils.user_code import is_user_file


def run_command(
    *,
    benchmark: str | None,
    methods: str | None,
    seeds: str | None,
    tasks: int | None,
    epochs: int | None,
    device: str,
    data: Path | None,
    out: Path,
    settings: list[str],
    fleet: int | None,
    fwt: bool,
    as_json: bool,
    learners: str | None = None,
    config: Path | None = None,
    keep_every: bool = False,
    games: str | None = None,
    steps: int | None = None,
    deterministic: bool = False,
    log: str | None = None,
) -> None:
    started = time.perf_counter()
    asked_for = [] if benchmark is None else _listed("benchmark", benchmark)
    if any(name in ARENAS for name in asked_for):
        if len(asked_for) > 1:
            raise ConfigError("A suite of games is run alone. Name one benchmark.")
        image_options = {
            "--tasks": tasks,
            "--epochs": epochs,
            "--data": data,
            "--config": config,
            "--no-fwt": None if fwt else True,
            "--keep-every-task": keep_every or None,
            "--deterministic": deterministic or None,
            "--log": log,
        }
        _refuse(f"is for images, and {benchmark} is a suite of games", image_options)
        run_games_command(
            suite=asked_for[0],
            methods=None if methods is None else named_methods(methods),
            seeds=None if seeds is None else parse_seeds(seeds),
            games=games,
            steps=steps,
            pairs=[*settings, *([] if learners is None else [f"learners={learners}"])],
            device=device,
            out=out,
            fleet=fleet,
            as_json=as_json,
        )
        return
    _refuse(f"is for suites of games: {', '.join(ARENAS)}", {"--games": games, "--steps": steps})
    file = None if config is None else read_config(config)
    wanted = asked(
        file,
        None if benchmark is None else [named_benchmark(name) for name in _listed("benchmark", benchmark)],
        None if methods is None else named_methods(methods),
        None if seeds is None else parse_seeds(seeds),
        {},
    )
    benchmarks, names = [named_benchmark(name) for name in wanted.benchmarks], named_methods(",".join(wanted.methods))
    for name in names:
        find_method(name)
    if learners is not None:
        if not any(find_method(name).multi for name in names):
            raise ConfigError(f"--learners is for methods of several learners; {' and '.join(names)} has one.")
        settings = [*settings, f"learners={learners}"]
    # What the command line says wins over the file.
    overrides = wanted.settings | with_epochs(parse_settings(settings, names), epochs)
    # All are planned before the first is trained: what is wrong shows at once.
    plans = {
        name: plan(
            name,
            names,
            wanted.seeds,
            tasks=tasks,
            overrides=overrides,
            device=device,
            data=data,
            out=out,
            fwt=fwt,
            fleet=fleet,
            keep="every" if keep_every else "last",
            deterministic=deterministic,
            log=log,
        )
        for name in benchmarks
    }
    for name, planned in plans.items():
        check_data(name, planned)
    told = stderr()
    spoken = told if as_json else stdout()
    found: dict[str, dict[str, Result]] = {}
    missing: list[Incomplete] = []
    for name, planned in plans.items():
        if len(plans) > 1:
            told.print(name, style="bold")
        with watched(told) as (progress, stopping):
            try:
                found[name] = execute(planned, progress=progress, stop=stopping)
            except Incomplete as incomplete:  # told in the end: the rest goes on
                missing.append(incomplete)
                found[name] = incomplete.results
        tell_results(found[name], out, str(out / name), spoken)
        if keep_every:
            _tell_unkept(planned, told)
    if as_json:
        where_device = next(iter(plans.values())).device
        where = torch.cuda.get_device_name(where_device) if where_device.type == "cuda" else "cpu"
        seconds = since(started)
        bodies = {name: results_json(results, seconds, where) for name, results in found.items() if results}
        body = bodies[name] if [name] == [*found] == [*bodies] else {"benchmarks": bodies}
        tell_json(plain(body))
    # What may still go wrong comes last, when everything computed has been told.
    for name, results in found.items():
        draw(name, results, out / name / "figure.png", told)
    if missing:
        raise missing[0]


def draw(name: str, results: dict[str, Result], path: Path, told: Console) -> None:
    """The picture of a benchmark's results, if there are any."""
    if not results:
        return
    if not any(result.complete_runs for result in results.values()):
        raise none_finite(name)
    beside = _beside(name, results, path.parent)
    figure = draw_results(beside | results, path)
    also = f", with {', '.join(beside)}, which {'was' if len(beside) == 1 else 'were'} there" if beside else ""
    told.print(f"Drawn in {figure}{also}.", soft_wrap=True)


def _beside(name: str, results: Mapping[str, Result], folder: Path) -> dict[str, Result]:
    """Methods of the folder that were not asked for and have the same settings: the picture is of them too."""
    asked = {REFERENCE, *(result.method for result in results.values())}
    there = load_results(folder).get(name, {})
    same = {label: r for label, r in there.items() if label == r.method}  # others are labelled by what differs
    if not all(method in same for method in asked - {REFERENCE}):
        return {}
    return {label: r for label, r in same.items() if label not in asked and r.complete_runs}


def _refuse(why: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise ConfigError(f"{option} {why}. Leave it out.")


def with_epochs(overrides: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    if epochs is None:
        return overrides
    if "epochs" in overrides:
        raise ConfigError("epochs is given twice: with --epochs and with --set.")
    return overrides | {"epochs": epochs}


def named_benchmark(text: str) -> str:
    """The name of a benchmark, or of that in a user's file."""
    if is_user_file(text):
        return load_benchmark_file(Path(text))
    if text in ARENAS:
        raise ConfigError(
            f"{text} is a suite of games: `kenyon run {text}`, `kenyon sweep`, `kenyon show`, `kenyon report` and "
            "`kenyon watch` know it, and here it has no place."
        )
    if text not in BENCHMARKS:
        raise unknown("benchmark", text, {*BENCHMARKS, *ARENAS})
    return text


def named_methods(text: str) -> list[str]:
    """The names of methods; a user's file stands for all that it defines."""
    parts = _listed("method", text)
    return [name for part in parts for name in (load_method_file(Path(part)) if is_user_file(part) else [part])]


def _listed(kind: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"No {kind} is named. Give one, or several with commas.")
    if len(set(names)) != len(names):
        raise ConfigError(f"A {kind} is named twice in {text}.")
    return names


def tell_results(results: dict[str, Result], out: Path, saved: str, spoken: Console) -> None:
    """A table, what did not stay finite with a command that may, and where the results are saved."""
    if not results:
        return
    for table in results_tables(results):
        spoken.print(table)
        spoken.print()
    for name, result in results.items():
        if said := told_of_diverged(name, result, Config.from_dict, out):
            spoken.print(said, soft_wrap=True)
    each = "a method and point" if any(result.point for result in results.values()) else "a method"
    spoken.print(f"Saved in {saved} (result.json {each}).", soft_wrap=True)


def _tell_unkept(asked: Plan, told: Console) -> None:
    """Runs that were finished, or well under way, before anybody asked for their weights after every task."""
    for point in asked.points:
        if point.config.build_method().schedule != "sequential":
            continue
        folder, places = PointFolder(asked.out, point), range(1, point.config.tasks)
        without = [s for s in asked.seeds if not all(folder.weights_path(s, after).is_file() for after in places)]
        if without:
            told.print(
                f"{point.label}: seed {', '.join(map(str, without))} was trained without --keep-every-task, and its "
                "weights between tasks are not there. A new --out trains it again.",
                style="yellow",
                soft_wrap=True,
            )


def parse_seeds(text: str) -> int | list[int]:
    """`5` is a number of seeds, `0,3,7` are the seeds themselves."""
    said = shown(text)
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--seeds takes a number (5) or a list (0,3,7), not {said}.") from None
    if "," in text:
        return numbers
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"--seeds must be at least 1, not {said}.")
    return numbers[0]
