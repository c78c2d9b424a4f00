"""Benchmarks with their published configurations, and how they are run."""

from kenyon.experiments.benchmarks import BENCHMARKS, Benchmark, benchmark, find_benchmark, load_benchmark_file
from kenyon.experiments.config import Config, configure, parse_settings
from kenyon.experiments.grid import Cell, Point
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import Result, Run
from kenyon.experiments.runner import Plan, execute, plan, run
from kenyon.experiments.scores import Found, Score
from kenyon.experiments.searching import Search, execute_search, plan_search, search

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
