"""Continual learning methods. Each is a value, `Method`, and has a name.

Importing this package registers the built-in ones, a family a file. A method of your own is a function of a few lines
with `@method`.
"""

from kenyon.methods import (  # noqa: F401 - they register
    active_forgetting,
    agscl,
    baselines,
    collaborative,
    distillation,
    progress_compress,
    regularization,
)
from kenyon.methods.base import LEARNERS, Method
from kenyon.methods.registry import METHODS, MethodSpec, find_method, load_method_file, method, place

for _name in sorted(METHODS, key=place):  # lists and tables have them in the order of their families
    METHODS[_name] = METHODS.pop(_name)

__all__ = ["LEARNERS", "METHODS", "Method", "MethodSpec", "find_method", "load_method_file", "method"]
