"""Commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kenyon.cli.options import DataDir, Deterministic, Device, Fleet, Fwt, Json, KeepEveryTask, Out, Tasks, path


def run(
    benchmark: Annotated[
        str | None,
        typer.Argument(
            help="A name of `kenyon list benchmarks`, or your own file.py. Several with commas.",
            show_default="digits",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="One or several, with commas: names of `kenyon list methods`, or your own file.py.",
            show_default="finetune,ewc,caf-ewc",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", help="How many (5 means 0 to 4), or which: 0,3,7 (a single one: 7,).", show_default="5"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            parser=path,
            help="A TOML file with benchmark, method, seeds and settings, such as the best.toml of `kenyon search`. "
            "Options beside it win.",
        ),
    ] = None,
    tasks: Tasks = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Epochs a task; otherwise as many as the benchmark has."),
    ] = None,
    games: Annotated[
        str | None,
        typer.Option("--games", help="Of a suite of games: which, in which order, with commas; otherwise all."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Of a suite of games: steps a game, all copies together."),
    ] = None,
    device: Device = "auto",
    data: DataDir = None,
    out: Out = Path("results"),
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a setting: name=value, e.g. lambda_sp=5000. Several values, lambda_sp=1000,5000, make a "
            "grid: every combination is trained, with all seeds. May be repeated.",
        ),
    ] = None,
    learners: Annotated[
        str | None,
        typer.Option(
            "--learners",
            help="How many learners instead of 5, each as wide as the parameters of a single one allow: the same as "
            "--set learners=3. Several values, 3,4,5, make a grid.",
        ),
    ] = None,
    fleet: Fleet = None,
    fwt: Fwt = True,
    keep_every_task: KeepEveryTask = False,
    deterministic: Deterministic = False,
    log: Annotated[
        str | None,
        typer.Option("--log", help="Also write the numbers, while they come, to tensorboard (below OUT) or wandb."),
    ] = None,
    json: Json = False,
) -> None:
    """Train methods on a benchmark, and show, save and draw what they reached.

    Run again, it continues what was interrupted and reports what is there. Results are in
    OUT/BENCHMARK/METHOD/result.json; those of a grid in a folder a point, METHOD/lambda_sp=1000/result.json.
    """
    from kenyon.cli.run import run_command

    run_command(
        benchmark=benchmark,
        methods=method,
        seeds=seeds,
        config=config,
        tasks=tasks,
        epochs=epochs,
        device=device,
        data=data,
        out=out,
        settings=set_ or [],
        learners=learners,
        fleet=fleet,
        fwt=fwt,
        keep_every=keep_every_task,
        games=games,
        steps=steps,
        deterministic=deterministic,
        log=log,
        as_json=json,
    )


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
    device: Device = "auto",
    data: DataDir = None,
    out: Out = Path("results"),
    fleet: Fleet = None,
    json: Json = False,
) -> None:
    """Choose a method's hyper-parameters, all points in one fleet, without looking at test data.

    The choice is in OUT/search/BENCHMARK/METHOD/PROTOCOL/best.toml, for `kenyon run --config`, with a picture beside
    it. Run again, it continues what was interrupted.
    """
    from kenyon.cli.search import search_command

    search_command(
        benchmark=benchmark,
        method=method,
        protocol=protocol,
        folds=folds,
        share=share,
        settings=set_ or [],
        optuna=optuna,
        trials=trials,
        together=together,
        tasks=tasks,
        epochs=epochs,
        device=device,
        data=data,
        out=out,
        fleet=fleet,
        as_json=json,
    )


def sweep(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            parser=path,
            help="A TOML file with benchmark, method, seeds and settings, as for `kenyon run --config`, and games "
            "where a benchmark is a suite of them. Benchmarks and methods may be lists; lists of values make a grid.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Train in so many processes of this machine, a GPU or some cores each."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            help="Train on the Ray cluster at host:port, or auto; local starts one here. Needs kenyon\\[ray].",
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show how the sweep in --out stands, whoever works on it.")
    ] = False,
    tasks: Tasks = None,
    device: Device = "auto",
    data: DataDir = None,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            help="Results folder, shared by all machines, or an address of fsspec (s3://...: kenyon\\[remote]).",
        ),
    ] = "results",
    fleet: Fleet = None,
    fwt: Fwt = True,
    keep_every_task: KeepEveryTask = False,
    deterministic: Deterministic = False,
    json: Json = False,
) -> None:
    """Train benchmarks x methods x seeds x grids on many workers, with the results of `kenyon run`.

    Runs are cut into fleets, which workers claim in the store that --out names. A worker that dies has its fleet
    resumed by another; the command can be stopped and started again, and started several times.
    """
    from kenyon.cli.sweep import sweep_command

    sweep_command(
        experiment=experiment,
        workers=workers,
        ray=ray,
        status=status,
        tasks=tasks,
        device=device,
        data=data,
        out=out,
        fleet=fleet,
        fwt=fwt,
        keep_every=keep_every_task,
        deterministic=deterministic,
        as_json=json,
    )
