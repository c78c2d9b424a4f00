"""Runs whose results and unfinished states are kept from version to version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kenyon
from tests.golden.values import Percent, Values
from tests.golden.workbench import command, numbers_of, saved

OWN = Path(__file__).parent / "own.py"  # a user's file with a benchmark and a method
SMALL: dict[str, Any] = {"epochs": 2, "width": 2, "tasks": 2}
RESULTS: tuple[dict[str, Any], ...] = (
    {"benchmark": "digits", "methods": "finetune,ewc,joint,discrete", "seeds": 2, **SMALL},
    {"benchmark": "digits", "methods": "caf-ewc", "seeds": [0, 3], "learners": 2, "fwt": False, **SMALL},
    {"benchmark": "digits", "methods": "mas", "seeds": 1, "lambda_sp": [1.0, 100.0], "fwt": False, **SMALL},
    {"benchmark": "digits", "methods": "icl-mas", "seeds": 1, "learners": 2, "keep": "every", "fwt": False, **SMALL},
    {"benchmark": "digits-conv", "methods": "ewc", "seeds": 1, "fwt": False, **SMALL},
)  # fmt: skip
DIVERGED: dict[str, Any] = {"benchmark": "digits", "methods": "rwalk", "seeds": 2, "fwt": False, **SMALL}
DIVERGED |= {"optimiser": "sgd", "rate": 1e12, "lambda_sp": 1e20}
PLAYED = {
    "copies": 4, "horizon": 16, "minibatches": 4, "epochs": 2, "evaluations": 2, "episodes": 2, "longest": 60,
    "importance_rollouts": 2, "importance_steps": 4, "width": 6,
}  # fmt: skip
PAIRS = [word for name, value in PLAYED.items() for word in ("--set", f"{name}={value}")]
GAME_WORDS = [
    "run", "rl-mini", "--method", "finetune,ewc", "--seeds", "2", "--games", "catch,dodge", "--steps", "192", *PAIRS,
]  # fmt: skip
SWEEP = """benchmark = "digits"
method = ["si", "er"]
seeds = 1

[settings]
epochs = 3
width = 2
lambda_sp = [1.0, 10.0]
"""


@dataclass(frozen=True)
class Unfinished:
    kind: str  # images, own (a user's file), games or sweep
    after: int  # epochs or updates, when it is stopped
    asked: dict[str, Any]


def images(methods: str, after: int = 4, **asked: Any) -> Unfinished:
    given = {"benchmark": "digits", "methods": methods, "seeds": 1, "fwt": False, "epochs": 3, "width": 2, "tasks": 2}
    return Unfinished("images", after, given | asked)


def own(benchmark: str, method: str, after: int) -> Unfinished:
    """Of what is in a user's file."""
    return Unfinished("own", after, images(method, benchmark=benchmark, width=6).asked)


UNFINISHED: dict[str, Unfinished] = {
    "ewc": images("ewc", after=1, seeds=2),
    "caf-ewc-grid": images("caf-ewc", learners=2, width=1, lambda_sp=[1e3, 1e6]),
    "own-benchmark": own("little-digits", "pnc", after=8),
    "own-method": own("digits", "ewc-af1-cpr", after=2),
    "er": images("er"),
    "si": images("si", after=2, seeds=[4]),
    "ewc-af2": images("ewc-af2"),
    "agscl": images("agscl"),
    "icl-mas": images("icl-mas", learners=2),
    "sgd-carried-on": images("mas", optimiser="sgd", schedule="step", validation=0, carry=True, rate=0.05),
    "games-caf-ewc": Unfinished(
        "games",
        4,
        {"method": "caf-ewc", "seeds": 1, "games": ["catch", "dodge"], "steps": 192, "learners": 2, **PLAYED},
    ),
    "games-mas": Unfinished(
        "games", 2, {"method": "mas", "seeds": 1, "games": ["reach", "gap"], "steps": 192, **PLAYED}
    ),
    "sweep": Unfinished("sweep", 5, {}),
}


def run_own(benchmark: str, method: str, out: Path, **settings: Any) -> None:
    """`kenyon run` with the user's file in the place of what it has; as if for the first time in this process."""
    from kenyon.data import SOURCES
    from kenyon.experiments import BENCHMARKS
    from kenyon.methods import METHODS

    for registry in (BENCHMARKS, METHODS, SOURCES):
        for name in ("little-digits", "ewc-af1-cpr"):
            registry.pop(name, None)
    words: list[object] = ["run", OWN if benchmark == "little-digits" else benchmark]
    words += ["--method", OWN if method == "ewc-af1-cpr" else method, "--seeds", 1, "--tasks", 2, "--no-fwt"]
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command(*words, *pairs, "--out", out, "--device", "cpu")


def resume(out: Path, unfinished: Unfinished) -> Values:
    """The same command again, and all that it leaves."""
    if unfinished.kind == "images":
        kenyon.run(**unfinished.asked, out=out, device="cpu")
    elif unfinished.kind == "own":
        asked = unfinished.asked
        run_own(asked["benchmark"], asked["methods"], out, epochs=asked["epochs"], width=asked["width"])
    elif unfinished.kind == "games":
        asked = dict(unfinished.asked)
        given = {name: asked.pop(name) for name in ("method", "seeds", "steps")}
        options = [word for name, value in given.items() for word in (f"--{name}", value)]
        pairs = [word for name, value in asked.items() if name != "games" for word in ("--set", f"{name}={value}")]
        command(
            "run", "rl-mini", *options, "--games", ",".join(asked["games"]), *pairs, "--out", out, "--device", "cpu"
        )
    else:
        file = out / "many.toml"
        file.write_text(SWEEP)
        command("sweep", file, "--tasks", 2, "--no-fwt", "--out", out, "--device", "cpu")
    return saved(out)


def analysed(out: Path) -> Values:
    """What `kenyon analyse` measures on saved weights."""
    some = ["--what", "discrepancy,flatness", "--set", "flatness.directions=2", "--set", "flatness.steps=3"]
    command("analyse", out / "digits-conv" / "ewc", *some, "--set", "flatness.samples=32", "--device", "cpu")
    found: Values = {}
    for name in ("discrepancy", "flatness"):
        body = numbers_of(json.loads((out / "digits-conv" / "ewc" / "analysis" / f"{name}.json").read_text()))
        found |= {f"{name}: {k}": Percent(v) if "accuracy" in k else v for k, v in body.items()}
    return found
