"""Experiments: requests, configurations, runs and their results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kenyon.benchmarks.registry import BENCHMARKS, Benchmark, benchmark, find_benchmark, load_benchmark_file
    from kenyon.experiments.config import Config, configure, parse_settings
    from kenyon.experiments.found import Found, Score
    from kenyon.experiments.grid import GridPoint, RunSpec
    from kenyon.experiments.grid import GridPoint as Point
    from kenyon.experiments.grid import RunSpec as Cell
    from kenyon.experiments.hyper_search import Search, execute_search, plan_search, search
    from kenyon.experiments.progress import Progress
    from kenyon.experiments.results import GameResult, Result, Run
    from kenyon.experiments.runner import Plan, execute, plan, run
    from kenyon.experiments.spec import Experiment

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Cell",
    "Config",
    "Experiment",
    "Found",
    "GameResult",
    "GridPoint",
    "Plan",
    "Point",
    "Progress",
    "Result",
    "Run",
    "RunSpec",
    "Score",
    "Search",
    "benchmark",
    "configure",
    "execute",
    "execute_search",
    "find_benchmark",
    "load_benchmark_file",
    "parse_settings",
    "plan",
    "plan_search",
    "run",
    "search",
]

# Imported when they are first used: the command line's help reads `spec` alone.
_HOMES = {
    "kenyon.benchmarks.registry": ("BENCHMARKS", "Benchmark", "benchmark", "find_benchmark", "load_benchmark_file"),
    "kenyon.experiments.config": ("Config", "configure", "parse_settings"),
    "kenyon.experiments.found": ("Found", "Score"),
    "kenyon.experiments.grid": ("GridPoint", "RunSpec"),
    "kenyon.experiments.hyper_search": ("Search", "execute_search", "plan_search", "search"),
    "kenyon.experiments.progress": ("Progress",),
    "kenyon.experiments.results": ("GameResult", "Result", "Run"),
    "kenyon.experiments.runner": ("Plan", "execute", "plan", "run"),
    "kenyon.experiments.spec": ("Experiment",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_RENAMED = {"Cell": "RunSpec", "Point": "GridPoint"}  # names of version 0.1


def __getattr__(name: str) -> Any:
    name = _RENAMED.get(name, name)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
