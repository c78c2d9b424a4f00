"""Methods are values; here they are by name.

A new method is a function of a few lines with @method.
"""

from kenyon.methods import baselines, progress_compress, regularization  # noqa: F401 - they register
from kenyon.methods.registry import LEARNERS, METHODS, Method, MethodSpec, find_method, load_method_file, method

__all__ = ["LEARNERS", "METHODS", "Method", "MethodSpec", "find_method", "load_method_file", "method"]
