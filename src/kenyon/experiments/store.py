"""A results folder: OUT/BENCHMARK/METHOD holds one configuration's result, weights and unfinished states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kenyon.errors import ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import Result
from kenyon.train.state import write_atomically


class MethodFolder:
    def __init__(self, out: Path, config: Config) -> None:
        self.config = config
        self.path = out / config.benchmark / config.method

    @property
    def result_path(self) -> Path:
        return self.path / "result.json"

    def weights_path(self, seed: int) -> Path:
        return self.path / f"weights-{seed}.safetensors"

    def state_path(self, seeds: Sequence[int]) -> Path:
        digest = hashlib.sha256(",".join(map(str, seeds)).encode()).hexdigest()[:8]
        return self.path / f"state-{digest}.safetensors"

    def state_identity(self, seeds: Sequence[int]) -> str:
        return json.dumps({"config": self.config.as_dict(), "seeds": list(seeds)}, sort_keys=True)

    def check(self) -> None:
        """Before anything is trained: the folder can be written, and holds no other configuration."""
        write_atomically(self.path / ".writable", b"")
        (self.path / ".writable").unlink(missing_ok=True)
        result = self.result()
        finished = set() if result is None else {run.seed for run in result.runs}
        if result is not None:
            self._same(result.config)
        for path, identity in self._unfinished().items():
            if finished.issuperset(identity["seeds"]):
                path.unlink(missing_ok=True)  # killed between saving the result and removing the state
            else:
                self._same(identity["config"])

    def _same(self, other: dict[str, Any]) -> None:
        mine, theirs = _flatten(self.config.as_dict()), _flatten(other)
        if mine == theirs:
            return
        names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
        told = "; ".join(f"{n} was {theirs.get(n, 'not set')}, now {mine.get(n, 'not set')}" for n in names)
        raise ResultsError(
            f"{self.path} holds results made with another configuration ({told}). "
            "Choose another folder with --out, or ask for the same configuration."
        )

    def result(self) -> Result | None:
        return Result.load(self.result_path) if self.result_path.exists() else None

    def save(self, result: Result) -> None:
        result.save(self.result_path)

    def fleets_to_train(self, seeds: Sequence[int], result: Result | None) -> list[tuple[int, ...]]:
        """The missing seeds in fleets: unfinished ones as they were begun, then all others together."""
        missing = set(seeds) - {run.seed for run in (result.runs if result else [])}
        fleets = []
        for identity in self._unfinished().values():
            begun = tuple(identity["seeds"])
            if missing.issuperset(begun):
                fleets.append(begun)
                missing -= set(begun)
        rest = tuple(seed for seed in seeds if seed in missing)
        return [*fleets, rest] if rest else fleets

    def _unfinished(self) -> dict[Path, dict[str, Any]]:
        """States of fleets that were interrupted, with the configuration and seeds they belong to."""
        found = {}
        for path in sorted(self.path.glob("state-*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    identity = json.loads((file.metadata() or {})["identity"])
                    if {"config", "seeds"} <= set(identity):
                        found[path] = identity
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                raise ResultsError(
                    f"{path} is damaged ({error}). Move it away: its fleet then starts anew, finished results stay."
                ) from error
        return found


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
