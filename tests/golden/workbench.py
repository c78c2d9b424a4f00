"""What cases are made with: `kenyon` as a user calls it, saved files read back, and data equal on every machine.

Only public entry points and files on disk are used, so that all of it still works when the inside is rebuilt.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch

from tests.golden.values import Exact, Percent, Values, flat

CHANGING = frozenset({"seconds", "steps_per_second", "fleets", "origins", "versions", "images", "view"})


@dataclass(frozen=True)
class Bench:
    """Where a case computes: an empty folder and a device."""

    folder: Path
    device: str = "cpu"


def command(*words: object) -> str:
    """Standard output of `python -m kenyon WORDS`, in this process."""
    said, told = io.StringIO(), io.StringIO()
    known = [signal.SIGINT, signal.SIGTERM, *(getattr(signal, n) for n in ("SIGHUP",) if hasattr(signal, n))]
    handlers = {number: signal.getsignal(number) for number in known}
    argv, hook = sys.argv, sys.excepthook
    sys.argv = ["kenyon", *map(str, words)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            runpy.run_module("kenyon", run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.argv, sys.excepthook = argv, hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code:
        raise RuntimeError(f"kenyon {' '.join(map(str, words))} ended with {code}: {told.getvalue()}")
    return said.getvalue()


def last_json(said: str) -> Any:
    """What a command with --json says in its last line."""
    return json.loads(said.strip().splitlines()[-1])


# ------------------------------------------------------------------------------------------ saved files


def tensors(path: Path, prefix: str = "") -> Values:
    """Of a file of safetensors, by name."""
    return {f"{prefix}{name}": tensor for name, tensor in sorted(safetensors.torch.load_file(path).items())}


def saved(out: Path, *, weights: bool = True) -> Values:
    """All that runs below a folder have left: accuracies or scores, and weights."""
    found: Values = {}
    for path in sorted(out.rglob("result.json")):
        body, place = json.loads(path.read_text()), path.parent.relative_to(out).as_posix()
        found[f"{place}: parameters"] = Exact(body["parameters"])
        for run in body["runs"]:
            name = f"{place}: {run['seed']}"
            found[f"{name} accuracy"] = Percent(run["accuracy"])
            found[f"{name} own accuracy"] = Percent(run["own_accuracy"])
            found[f"{name} diversity"] = [*run["cosine"], *run["euclidean"]]
            found[f"{name} tasks"] = Exact([*run["tasks"], run["diverged"]])
    for path in sorted(out.rglob("scores.json")):
        body, place = json.loads(path.read_text()), path.parent.relative_to(out).as_posix()
        found[f"{place}: moments"] = Exact([body["parameters"], body["moments"]])
        for run in body["runs"]:
            found[f"{place}: {run['seed']} scores"] = run["scores"]
            found[f"{place}: {run['seed']} diverged"] = Exact(run["diverged"])
    for path in sorted(out.rglob("weights-*.safetensors")) if weights else ():
        found |= tensors(path, f"{path.relative_to(out).with_suffix('').as_posix()}: ")
    if not found:
        raise RuntimeError("Nothing was saved.")
    return found


def numbers_of(body: Any) -> Values:
    """Of JSON, without times, versions and texts, which may be written better."""
    return {name: value for name, value in flat(body, CHANGING).items() if not isinstance(value, Exact)}


# ------------------------------------------------------------------------------------------ data


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Uniform numbers from -1 to 1: a hash of the place (splitmix64), so the same with every library and machine."""
    size = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.arange(size, dtype=np.uint64) + np.uint64(1 + seed * 1_000_003)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    numbers = (x >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    return numbers.astype(np.float32).reshape(shape)


def clouds(
    task: int, *shape: int, size: int = 48, classes: int = 2
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Samples of some classes, each class around a point of its own."""
    y = np.arange(size) % classes
    middle = noise(classes, *shape, seed=100 + task)
    return middle[y] + np.float32(0.5) * noise(size, *shape, seed=200 + task), y + classes * task


def pictures(task: int, *shape: int, size: int = 48, classes: int = 2) -> tuple[Any, Any]:
    """The same as bytes."""
    x, y = clouds(task, *shape, size=size, classes=classes)
    return np.clip(128 + 80 * x, 0, 255).astype(np.uint8), y
