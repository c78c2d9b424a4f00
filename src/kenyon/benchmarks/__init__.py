"""The benchmarks: data, network, training regime and strengths of each. Importing it registers them."""

from kenyon.benchmarks import cifar, core50, cub, digits, omniglot, tiny_imagenet  # noqa: F401 - they register
from kenyon.benchmarks.registry import BENCHMARKS, Benchmark, benchmark, find_benchmark, load_benchmark_file

__all__ = ["BENCHMARKS", "Benchmark", "benchmark", "find_benchmark", "load_benchmark_file"]
