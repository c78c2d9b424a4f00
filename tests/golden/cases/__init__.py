"""The cases: small computations over everything that a user can ask for, by name.

Most are trained for a few epochs, so that rounding has little time to grow where another machine computes them.
"""

from tests.golden.cases import estimator, games, methods, networks, numbers, own_loops, programs
from tests.golden.cases.registry import CASES, Entry

__all__ = ["CASES", "Entry", "estimator", "games", "methods", "networks", "numbers", "own_loops", "programs"]
