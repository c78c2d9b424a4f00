"""All tasks at once, with the terms of continual learning: do they help where nothing has to be remembered?

Terms act from the beginning, adaptive ones too (Supplementary Fig. 4).
"""

from __future__ import annotations

from kenyon.methods.registry import Method, method
from kenyon.methods.regularised import Adapt, Decay, Form, active_forgetting, divergence
from kenyon.penalties import ActiveForgetting1, Strength


@method
def joint() -> Method:
    """Train on all tasks at once: what continual learning is measured against."""
    return Method(schedule="joint")


@method
def joint_af1(lambda_af: Strength) -> Method:
    """All tasks at once, with active forgetting AF-1."""
    return Method(penalties=(ActiveForgetting1(lambda_af),), schedule="joint", from_first=True)


@method
def joint_mcl() -> Method:
    """All tasks at once, by multiple learners."""
    return Method(schedule="joint", multi=True)


@method
def joint_caf(
    lambda_af: Strength,
    gamma: Strength,
    af1: Decay = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
) -> Method:
    """All tasks at once, by multiple learners with the terms of CAF: AF-1 and AF-S."""
    terms = (active_forgetting(lambda_af, af1), divergence(gamma, afs, afs_form))
    return Method(penalties=terms, schedule="joint", multi=True, from_first=True)
