"""Learners that do not work together: what several learners with a common head are measured against.

Independent learners are as wide as learners with common heads; having heads of their own, they have more parameters
(981,900 instead of 879,100 for five on the CIFAR network with 20 tasks; width 8 gives 876,060). Results tell the true
count.
"""

from __future__ import annotations

from kenyon.importance import Accumulate
from kenyon.methods.registry import Method, method
from kenyon.methods.regularised import Fisher, Omega, fisher_named, mas_named
from kenyon.penalties import StabilityProtection, Strength


@method
def icl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Independent continual learners on EWC: each with heads of its own; tests average their predictions."""
    penalties = (StabilityProtection(lambda_sp),)
    return Method(fisher_named(fisher, accumulate), penalties, multi=True, apart=True)


@method
def icl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Independent continual learners on MAS: each with heads of its own; tests average their predictions."""
    return Method(mas_named(omega, accumulate), (StabilityProtection(lambda_sp),), multi=True, apart=True)


@method
def discrete() -> Method:
    """A narrow learner for every task, never changed afterwards: nothing is forgotten, and nothing shared."""
    return Method(schedule="discrete")
