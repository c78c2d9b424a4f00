"""Benchmarks, one a file: data, network, training regime, strengths of every method, published numbers.

Importing this package registers them, in the order of lists and tables.
"""

# isort: off
from kenyon.benchmarks import digits, cifar, omniglot, cub, tiny_imagenet, core50  # noqa: F401 - they register

# isort: on
from kenyon.benchmarks.registry import BENCHMARKS, Benchmark, benchmark, find_benchmark, load_benchmark_file

__all__ = ["BENCHMARKS", "Benchmark", "benchmark", "find_benchmark", "load_benchmark_file"]
