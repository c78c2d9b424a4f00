"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from kenyon.version import __version__

app = typer.Typer(
    name="kenyon",
    help="Continual learning with collaborating learners and active forgetting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Fetch public datasets and see what is there.", no_args_is_help=True)
app.add_typer(data, name="data")

Json = Annotated[bool, typer.Option("--json", help="Machine-readable: the last line of output is one JSON object.")]
DataDir = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--data", help="Folder with the datasets; otherwise KENYON_DATA, then the cache folder."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kenyon {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    benchmark: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="A name of `kenyon list benchmarks`, or your own file.py. Several with commas.",
            show_default="digits",
        ),
    ] = None,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--method",
            "-m",
            help="One or several, with commas. See `kenyon list methods`.",
            show_default="finetune,ewc,caf-ewc",
        ),
    ] = None,
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--seeds", help="How many (5 means 0 to 4), or which: 0,3,7 (a single one: 7,).", show_default="5"
        ),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--config",
            help="A TOML file with benchmark, method, seeds and settings, such as the best.toml of `kenyon search`. "
            "Options beside it win.",
        ),
    ] = None,
    tasks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--tasks", help="Only the first so many tasks of each run."),
    ] = None,
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--epochs", help="Epochs a task; otherwise as many as the benchmark has."),
    ] = None,
    games: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--games", help="Of a suite of games: which, in which order, with commas; otherwise all."),
    ] = None,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--steps", help="Of a suite of games: steps a game, all copies together."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    data: DataDir = None,
    out: Annotated[Path, typer.Option("--out", help="Results folder.")] = Path("results"),
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--set",
            help="Change a setting: name=value, e.g. lambda_sp=5000. Several values, lambda_sp=1000,5000, make a "
            "grid: every combination is trained, with all seeds. May be repeated.",
        ),
    ] = None,
    learners: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--learners",
            help="How many learners instead of 5, each as wide as the parameters of a single one allow: the same as "
            "--set learners=3. Several values, 3,4,5, make a grid.",
        ),
    ] = None,
    fleet: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--fleet", help="Most runs to train together; otherwise 128, or as many as the device has room for."
        ),
    ] = None,
    fwt: Annotated[
        bool,
        typer.Option(
            "--fwt/--no-fwt",
            help="Also learn every task from a random start, once per benchmark: forward transfer needs it.",
        ),
    ] = True,
    keep_every_task: Annotated[
        bool,
        typer.Option("--keep-every-task", help="Keep the weights after every task, not only the final ones."),
    ] = False,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="PyTorch's deterministic algorithms: a GPU's numbers repeat bit for bit, and training is slower. "
            "Those of a CPU always do.",
        ),
    ] = False,
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
        as_json=json,
    )


@app.command()
def search(
    benchmark: Annotated[str, typer.Argument(help="A name of `kenyon list benchmarks`, or your own file.py.")],
    method: Annotated[str, typer.Option("--method", "-m", help="The method whose settings are chosen.")] = "caf-ewc",
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            help="held-out: the whole sequence, other tasks, order and seed than reported runs have. short: 5 random "
            "tasks, several times.",
        ),
    ] = "held-out",
    folds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--folds", help="How many sequences; otherwise 1 held-out, or 3 short ones."),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", help="Part of the training data that is held out to score.")
    ] = 0.2,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
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
        Optional[int],  # noqa: UP045
        typer.Option("--trials", help="How many points Optuna draws; otherwise 32."),
    ] = None,
    together: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--together", help="How many of them at a time, which train together; otherwise 8."),
    ] = None,
    tasks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--tasks", help="Only so many tasks of each sequence."),
    ] = None,
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--epochs", help="Epochs a task in the search; no part of what it chooses."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    data: DataDir = None,
    out: Annotated[Path, typer.Option("--out", help="Results folder.")] = Path("results"),
    fleet: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--fleet", help="Most runs to train together; otherwise 128, or as many as the device has room for."
        ),
    ] = None,
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


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="benchmarks or methods")] = "benchmarks",
    json: Json = False,
) -> None:
    """List the benchmarks or the methods."""
    from kenyon.cli.listing import list_command

    list_command(what, as_json=json)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A results folder, or a result.json in it.")] = Path("results"),
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As Markdown tables, beside published values.")
    ] = False,
) -> None:
    """Show saved results: the table, and for a single method its runs and settings."""
    from kenyon.cli.show import show_command

    show_command(path, as_json=json, as_markdown=markdown)


@app.command()
def analyse(
    path: Annotated[Path, typer.Argument(help="A results folder, or a result.json in it.")] = Path("results"),
    what: Annotated[
        str,
        typer.Option(
            "--what",
            help="all, or some of pertask, diversity, expertise, discrepancy, flatness, change and gradcam.",
        ),
    ] = "all",
    benchmark: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--benchmark", help="Only results of this benchmark; your own file.py for one of yours."),
    ] = None,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--method", "-m", help="Only these methods, or points of a grid as `kenyon show` names them."),
    ] = None,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", help="Change how: ANALYSIS.NAME=VALUE, e.g. flatness.directions=5. May be repeated."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    data: DataDir = None,
    json: Json = False,
) -> None:
    """Look behind the accuracies of saved results: diversity, discrepancy, flatness, Grad-CAM and more.

    Writes METHOD/analysis/NAME.json with a picture beside each result, and BENCHMARK/analysis/NAME.json with methods
    side by side. What is there is not measured again.
    """
    from kenyon.cli.analyse import analyse_command

    analyse_command(
        path=path,
        benchmark=benchmark,
        methods=method,
        what=what,
        data=data,
        device=device,
        settings=set_ or [],
        as_json=json,
    )


@app.command(name="reproduce")
def reproduce_(
    names: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(help="Figures and tables, such as fig2c table5, or all."),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke, quick or paper.")] = "smoke",
    benchmark: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--benchmark", help="Only these, with commas, of the benchmarks that a figure has."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Results folder: runs that it has are used.")] = Path("results"),
    data: DataDir = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train what is missing, or say which command would.")
    ] = True,
    list_: Annotated[
        bool, typer.Option("--list", help="Say what there is, what it needs and what it costs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make figures and tables of the paper: data, pictures, and published beside measured.

    Written to OUT/figures/SCALE/NAME.json, .md, .png, .svg and .pdf.
    """
    from kenyon.cli.reproduce import reproduce_command

    reproduce_command(
        names=names or [],
        scale=scale,
        benchmarks=benchmark,
        out=out,
        data=data,
        device=device,
        train=train,
        listing=list_,
        as_json=json,
    )


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A results folder, or a result.json in it.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("report.html"),
    apart: Annotated[
        bool, typer.Option("--apart", help="Label results of one method under different settings by what differs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make one HTML file of all results: tables, charts and the origin of every number. It opens offline.

    Analyses beside a result, METHOD/analysis/NAME.json, are shown with it.
    """
    from kenyon.cli.report import report_command

    report_command(path, out, apart=apart, as_json=json)


@app.command()
def watch(
    result: Annotated[Path, typer.Argument(help="The folder of a method's scores, OUT/SUITE/METHOD.")],
    game: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--game", help="Which game; otherwise the last that was learned."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the run that plays.")] = 0,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="The GIF to write; otherwise GAME-SEED.gif beside the scores."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How much of the episode to show.")] = 60.0,
) -> None:
    """Watch a trained agent play: one episode as a GIF."""
    from kenyon.cli.games import watch_command

    watch_command(result, game=game, seed=seed, out=out, seconds=seconds)


@app.command()
def bench(
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="Folder for bench.json and its figure, or a file.json.")] = Path(
        "results/bench"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it works.")] = False,
    json: Json = False,
) -> None:
    """Measure the speed on this device: against what it could do, and against plain PyTorch.

    Under two minutes on two CPU cores, under three on a GPU. Ctrl-C keeps what was measured.
    """
    from kenyon.cli.bench import bench_command

    bench_command(device=device, out=out, quick=quick, as_json=json)


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="See `kenyon data list`.")],
    data: DataDir = None,
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--url", help="Another server for the same file."),
    ] = None,
) -> None:
    """Download a public dataset: resumes where it stopped, and checks what arrived."""
    from kenyon.cli.data import get_command

    get_command(name, data, url)


@data.command(name="list")
def list_data(data: DataDir = None, json: Json = False) -> None:
    """Say which datasets are there, and where."""
    from kenyon.cli.data import list_command

    list_command(data, as_json=json)
