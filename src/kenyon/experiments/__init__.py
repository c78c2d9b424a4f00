"""Benchmarks with their published configurations, and how they are run."""

from kenyon.experiments.benchmarks import BENCHMARKS, Benchmark, find_benchmark
from kenyon.experiments.config import Config, configure, parse_settings
from kenyon.experiments.results import Result, Run
from kenyon.experiments.runner import Plan, Progress, execute, plan, run

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Config",
    "Plan",
    "Progress",
    "Result",
    "Run",
    "configure",
    "execute",
    "find_benchmark",
    "parse_settings",
    "plan",
    "run",
]
