"""`kenyon search`: from the command line to a table, a choice and a picture."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.console import Console

from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.cli.run import named_benchmark, named_methods, with_epochs
from kenyon.cli.watched import watched
from kenyon.errors import ConfigError
from kenyon.experiments import Found, execute_search, parse_settings, plan_search
from kenyon.experiments.hyper_search import TOGETHER, TRIALS, Sampling
from kenyon.experiments.results import plain, point_name
from kenyon.methods import find_method
from kenyon.report.figures import draw_search
from kenyon.utils.text import counted
from kenyon.utils.user_code import is_user_file


def search_command(
    *,
    benchmark: str,
    method: str,
    protocol: str,
    folds: int | None,
    share: float,
    settings: list[str],
    optuna: bool,
    trials: int | None,
    together: int | None,
    tasks: int | None,
    epochs: int | None,
    device: str,
    data: Path | None,
    out: Path,
    fleet: int | None,
    as_json: bool,
) -> None:
    started = time.monotonic()
    for kind, text in (("benchmark", benchmark), ("method", method)):
        if "," in text:
            raise ConfigError(f"A search is of one {kind}, not of {text}. Search one after another.")
    names = named_methods(method)
    if len(names) > 1:
        raise ConfigError(f"A search is of one method, and {method} defines {', '.join(names)}.")
    method = names[0]
    find_method(method)
    for option, number in (("--trials", trials), ("--together", together)):
        if number is not None and not optuna:
            raise ConfigError(f"{option} is for --optuna; a grid is tried as a whole.")
    search = plan_search(
        named_benchmark(benchmark),
        method,
        protocol=protocol,
        folds=folds,
        share=share,
        tasks=tasks,
        overrides=with_epochs(parse_settings(settings, [method]), epochs),
        sampling=Sampling(*(TRIALS if trials is None else trials, TOGETHER if together is None else together))
        if optuna
        else None,
        device=device,
        data=data,
        out=out,
        fleet=fleet,
    )
    told = stderr()
    with watched(told) as (progress, stopping):
        found = execute_search(search, progress=progress, stop=stopping)
    _tell(found, told if as_json else stdout())
    if as_json:
        tell_json(plain(search_json(found, time.monotonic() - started)))
    best = point_name(found.best)  # says so if nothing stayed finite
    figure = draw_search(found, found.folder / "figure.png")
    told.print(f"Drawn in {figure}.", soft_wrap=True)
    own = [benchmark] if is_user_file(benchmark) else []
    taken = (out / found.benchmark / found.method / "result.json").exists()  # by other settings, most likely
    elsewhere = ["--out", f"{out}-chosen"] if taken else []
    command = shlex.join(["kenyon", "run", *own, "--config", str(found.path), *elsewhere])
    told.print(f"Best: {best}. {command} runs it.", soft_wrap=True)
    if found.at_the_end:
        told.print(f"{'; '.join(found.at_the_end)}: there may be better ones beyond.", soft_wrap=True)


def _tell(found: Found, spoken: Console) -> None:
    folds = counted(len(found.seeds), "fold")
    lines = (
        f"{found.method} on {found.benchmark}, {found.protocol.name} search: {found.tasks} tasks, {folds}",
        f"Scored on {100 * found.protocol.share:g}% of the training data, held out; {found.stream}.",
        found.table(),
    )
    for line, style in zip(lines, ("bold", None, None), strict=True):
        spoken.print(line, style=style, soft_wrap=True)
    equal = sum(score.mean == found.scores[0].mean for score in found.scores) - 1
    if equal > 0:
        spoken.print(
            f"{equal} other point{'s score' if equal > 1 else ' scores'} as much as the best. More --folds may tell.",
            soft_wrap=True,
        )


def search_json(found: Found, seconds: float) -> dict[str, object]:
    return {
        "benchmark": found.benchmark,
        "method": found.method,
        "protocol": found.protocol.name,
        "seeds": list(found.seeds),
        "best": found.scores[0].settings if found.scores[0].aac else None,
        "scores": [
            {
                "settings": score.settings,
                "mean": score.mean,
                "sem": score.aac.sem if score.aac else None,
                "folds": list(score.aac.runs) if score.aac else None,
            }
            for score in found.scores
        ],
        "config": str(found.path),
        "seconds": round(seconds, 2),
    }
