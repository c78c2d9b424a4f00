"""`kenyon search`: choose hyper-parameters, and show, save and draw the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kenyon.cli.options import Json, experiment_options

if TYPE_CHECKING:
    from rich.console import Console

    from kenyon.experiments.found import Found


@experiment_options("device", "data", "out", "fleet", "json")
def search(
    benchmark: Annotated[str, typer.Argument(help="A name of `kenyon list benchmarks`, or your own file.py.")],
    method: Annotated[
        str, typer.Option("--method", "-m", help="The method whose settings are chosen; or your own file.py.")
    ] = "caf-ewc",
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            help="held-out: the whole sequence, other tasks, order and seed than reported runs have. short: 5 random "
            "tasks, several times.",
        ),
    ] = "held-out",
    folds: Annotated[
        int | None,
        typer.Option("--folds", help="How many sequences; otherwise 1 held-out, or 3 short ones."),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", help="Part of the training data that is held out to score.")
    ] = 0.2,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Values to choose from, lambda_sp=1000,5000, instead of the published ones; or a setting for all "
            "points, width=4. May be repeated.",
        ),
    ] = None,
    optuna: Annotated[
        bool, typer.Option("--optuna", help="Draw points between the ends of the values instead of trying all.")
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option("--trials", help="How many points Optuna draws; otherwise 32."),
    ] = None,
    together: Annotated[
        int | None,
        typer.Option("--together", help="How many of them at a time, which train together; otherwise 8."),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", help="Only so many tasks of each sequence."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Epochs a task in the search; no part of what it chooses."),
    ] = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Choose a method's hyper-parameters, all points in one fleet, without looking at test data.

    The choice is in OUT/search/BENCHMARK/METHOD/PROTOCOL/best.toml, for `kenyon run --config`, with a picture beside
    it. Run again, it continues what was interrupted.
    """
    import shlex
    import time

    from kenyon.cli.consoles import stderr, stdout, tell_json
    from kenyon.cli.progress import watched
    from kenyon.errors import ConfigError
    from kenyon.experiments.config import parse_settings
    from kenyon.experiments.hyper_search import TOGETHER, TRIALS, Sampling, execute_search, plan_search
    from kenyon.experiments.results import plain, point_name
    from kenyon.experiments.spec import named_benchmark, named_methods
    from kenyon.methods import find_method
    from kenyon.report.figures import draw_search
    from kenyon.utils.user_code import is_user_file

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
    settings = parse_settings(set_ or [], [method])
    if epochs is not None:
        if "epochs" in settings:
            raise ConfigError("epochs is given twice: with --epochs and with --set.")
        settings["epochs"] = epochs
    plan = plan_search(
        named_benchmark(benchmark),
        method,
        protocol=protocol,
        folds=folds,
        share=share,
        tasks=tasks,
        overrides=settings,
        sampling=Sampling(TRIALS if trials is None else trials, TOGETHER if together is None else together)
        if optuna
        else None,
        **options,
    )
    notes = stderr()
    with watched(notes) as (progress, stopping):
        found = execute_search(plan, progress=progress, stop=stopping)
    _show(found, notes if json else stdout())
    if json:
        tell_json(plain(search_json(found, time.monotonic() - started)))
    best = point_name(found.best)  # raises if nothing stayed finite
    figure = draw_search(found, found.folder / "figure.png")
    notes.print(f"Drawn in {figure}.", soft_wrap=True)
    own = [benchmark] if is_user_file(benchmark) else []
    taken = (plan.out / found.benchmark / found.method / "result.json").exists()  # most likely by other settings
    elsewhere = ["--out", f"{plan.out}-chosen"] if taken else []
    command = shlex.join(["kenyon", "run", *own, "--config", str(found.path), *elsewhere])
    notes.print(f"Best: {best}. {command} runs it.", soft_wrap=True)
    if found.at_the_end:
        notes.print(f"{'; '.join(found.at_the_end)}: there may be better ones beyond.", soft_wrap=True)


def _show(found: Found, console: Console) -> None:
    from kenyon.utils.text import counted

    folds = counted(len(found.seeds), "fold")
    lines = (
        f"{found.method} on {found.benchmark}, {found.protocol.name} search: {found.tasks} tasks, {folds}",
        f"Scored on {100 * found.protocol.share:g}% of the training data, held out; {found.stream}.",
        found.table(),
    )
    for line, style in zip(lines, ("bold", None, None), strict=True):
        console.print(line, style=style, soft_wrap=True)
    equal = sum(score.mean == found.scores[0].mean for score in found.scores) - 1
    if equal > 0:
        console.print(
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
