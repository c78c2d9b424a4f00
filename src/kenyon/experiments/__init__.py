"""Benchmarks with their published configurations, and how they are run."""

from kenyon.benchmarks.registry import BENCHMARKS, Benchmark, benchmark, find_benchmark, load_benchmark_file
from kenyon.experiments.found import Found, Score
from kenyon.experiments.grid import Cell, Point
from kenyon.experiments.hyper_search import Search, execute_search, plan_search, search
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import Result, Run
from kenyon.experiments.runner import Plan, execute, plan, run
from kenyon.experiments.spec import Config, configure, parse_settings

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Cell",
    "Config",
    "Found",
    "Plan",
    "Point",
    "Progress",
    "Result",
    "Run",
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
