"""Methods are values; here they are by name.

A new method is a function of a few lines with @method.
"""

from kenyon.methods import columns, independent, regularised, replayed, together
from kenyon.methods.registry import LEARNERS, METHODS, Method, MethodSpec, find_method, load_method_file, method

__all__ = [
    "LEARNERS",
    "METHODS",
    "Method",
    "MethodSpec",
    "columns",
    "find_method",
    "independent",
    "load_method_file",
    "method",
    "regularised",
    "replayed",
    "together",
]
