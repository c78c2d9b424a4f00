"""Search, sweeps, analyses, interruptions, and files of one's own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import kenyon
from tests.golden.cases.methods import trained
from tests.golden.cases.registry import add
from tests.golden.values import Exact, Percent, Values
from tests.golden.workbench import Bench, command, last_json, numbers_of, saved


def searched(bench: Bench) -> Values:
    given: dict[str, Any] = {"lambda_sp": [1e4, 1e6], "gamma": [0.02, 0.2], "lambda_af": 1e-6}
    given |= {"protocol": "short", "folds": 2, "tasks": 2, "epochs": 1, "out": bench.folder, "device": bench.device}
    kenyon.search("digits", "caf-ewc", **given)
    (best,) = bench.folder.rglob("best.toml")
    lines = [line for line in best.read_text().splitlines() if line and not line.startswith("#")]
    kept = lines[: lines.index("[origin]")] if "[origin]" in lines else lines
    return saved(bench.folder) | {"best": Exact(kept)}


def swept(bench: Bench) -> Values:
    """Two benchmarks from a file, by workers of this process."""
    asked = bench.folder / "many.toml"
    asked.write_text(
        'benchmark = ["digits", "digits-conv"]\nmethod = ["finetune", "ewc"]\nseeds = [0, 4]\n'
        "[settings]\nepochs = 1\nlambda_sp = [100.0, 1e6]\n"
    )
    out = bench.folder / "out"
    command("sweep", asked, "--tasks", 2, "--out", out, "--device", bench.device, "--no-fwt", "--fleet", 3)
    return saved(out)


def analysed(bench: Bench, methods: str, what: str) -> Values:
    """Analyses by name, of one learner and of several, by the command line."""
    given: dict[str, Any] = {
        "out": bench.folder,
        "device": bench.device,
        "epochs": 1,
        "seeds": 2,
        "tasks": 2,
        "fwt": False,
    }
    kenyon.run("digits-conv", methods, **given)
    some = ["--set", "flatness.directions=2", "--set", "flatness.steps=3", "--set", "flatness.samples=32"]
    command("analyse", bench.folder, "--what", what, "--device", bench.device, *some)
    found: Values = {}
    for path in sorted(bench.folder.rglob("analysis/*.json")):
        place = path.relative_to(bench.folder).as_posix()
        for name, value in numbers_of(json.loads(path.read_text())).items():
            found[f"{place}: {name}"] = Percent(value) if "accuracy" in name else value
    return found


class StopAfter:
    """Progress of `kenyon.run` that interrupts the training after so many epochs, like Ctrl-C in a notebook."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def fleet_starts(self, cells: Any, done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Any, most: int) -> None: ...


def interrupted(bench: Bench, method: str) -> Values:
    """Stopped twice and resumed; a grid whose second point comes later."""
    for epochs in (2, 3):
        try:
            trained(bench, "digits", method, epochs=3, tasks=3, progress=StopAfter(epochs))
        except KeyboardInterrupt:
            continue
        raise RuntimeError("It was not interrupted.")
    states = sum(1 for _ in bench.folder.rglob("state-*"))
    return {"states": Exact(states > 0)} | trained(bench, "digits", method, epochs=3, tasks=3)


def added(bench: Bench) -> Values:
    """Seeds and points that are trained later than others."""
    kenyon.run("digits", "ewc", out=bench.folder, device=bench.device, tasks=2, epochs=1, fwt=False, seeds=[1])
    return trained(bench, "digits", "ewc", tasks=2, epochs=1, seeds=3)


def own_method(bench: Bench) -> Values:
    """The example of a method of one's own, as the command line takes it."""
    example = Path(__file__).parents[3] / "examples" / "own_method.py"
    command(
        "run", "digits", "--method", example, "--set", "epochs=1", "--seeds", 2, "--no-fwt",
        "--device", bench.device, "--out", bench.folder,
    )  # fmt: skip
    return saved(bench.folder)


def own_benchmark(bench: Bench) -> Values:
    """The example of a stream of domains, from its file."""
    example = Path(__file__).parents[3] / "examples" / "own_domains.py"
    asked = ["--method", "finetune,caf-ewc", "--epochs", 1, "--seeds", 1, "--no-fwt"]
    command("run", example, *asked, "--device", bench.device, "--out", bench.folder)
    return saved(bench.folder)


def configured(bench: Bench) -> Values:
    """A configuration file; what is said beside it wins."""
    file = bench.folder / "asked.toml"
    file.write_text('benchmark = "digits"\nmethod = "caf-ewc"\nseeds = [2]\n[settings]\nepochs = 9\ngamma = 0.2\n')
    kenyon.run(config=file, epochs=1, tasks=2, out=bench.folder / "out", device=bench.device, fwt=False)
    return saved(bench.folder / "out")


def shown_numbers(bench: Bench) -> Values:
    """What `kenyon show --json` says."""
    kenyon.run("digits", "finetune,caf-ewc", 2, out=bench.folder, device=bench.device, tasks=2, epochs=1)
    body = numbers_of(last_json(command("show", bench.folder, "--json")))
    return {name: Percent(value) for name, value in body.items()}


add("search/short", searched, quick=True)
add("sweep/one worker", swept)
add("analyses/all", partial(analysed, methods="ewc,caf-ewc", what="all"))
add("analyses/some", partial(analysed, methods="caf-ewc", what="discrepancy,flatness"), quick=True)
for name in ("caf-ewc", "ewc-af2", "pnc", "er", "si"):
    add(f"interrupted/{name}", partial(interrupted, method=name), quick=name in ("caf-ewc", "pnc"))
add("interrupted/added later", added)
add("own files/method", own_method)
add("own files/benchmark", own_benchmark)
add("own files/configuration", configured)
add("own files/show", shown_numbers)
