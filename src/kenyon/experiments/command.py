"""The command that makes a result: what an error tells the user to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kenyon.experiments.benchmarks import BENCHMARKS
from kenyon.experiments.configured import Configured
from kenyon.experiments.labels import value_text
from kenyon.methods import find_method
from kenyon.user_files import name_or_file


def command_of(
    config: Configured, seeds: Sequence[int], out: Path | str, *options: str, varied: Mapping[str, Any] | None = None
) -> str:
    """`kenyon run ...` with everything that differs from the published configuration, quoted for a shell.

    `varied`: the values of a point of a grid, given so that its folder is that of the point.
    """
    point = varied or {}
    part, changes = config.changes
    benchmark, method = config.benchmark, name_or_file(config.method, find_method(config.method).build)
    if benchmark in BENCHMARKS:  # not a suite of games
        benchmark = name_or_file(benchmark, BENCHMARKS[benchmark].source.load)
    words = ["kenyon", "run", benchmark, "--method", method, "--seeds", _seeds(seeds), *part]
    for name, value in changes.items():
        words += [] if name in point else ["--set", f"{name}={value_text(value)}"]
    for name, value in point.items():
        words += ["--set", f"{name}={value_text(value)},"]
    return shlex.join([*words, "--out", str(out), *options])


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
