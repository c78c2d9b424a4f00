"""Baselines: independent learners, replay and joint training.

Independent learners are as wide as learners with common heads; having heads of their own, they have more parameters
(981,900 instead of 879,100 for five on the CIFAR network with 20 tasks; width 8 gives 876,060). Results tell the true
count.

Joint training has all tasks at once. With the terms of continual learning it shows whether they help where nothing
has to be remembered; terms act from the beginning, adaptive ones too (Supplementary Fig. 4).
"""

from __future__ import annotations

from kenyon.methods.importance import Accumulate
from kenyon.methods.penalties.weights import ActiveForgetting1, StabilityProtection, Strength
from kenyon.methods.registry import Method, Replay, ReplayForm, method
from kenyon.methods.regularization import (
    Adapt,
    DecayRates,
    Fisher,
    Form,
    Omega,
    active_forgetting,
    divergence,
    fisher_named,
    mas_named,
)


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


@method
def er(memory: int = 20, replay_batch: int = 64, replay: ReplayForm = "published") -> Method:
    """Experience replay: keep old samples (no other method does), `memory` of every class, and learn them again."""
    return Method(replay=Replay(memory, replay_batch, replay))


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
    af1: DecayRates = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
) -> Method:
    """All tasks at once, by multiple learners with the terms of CAF: AF-1 and AF-S."""
    terms = (active_forgetting(lambda_af, af1), divergence(gamma, afs, afs_form))
    return Method(penalties=terms, schedule="joint", multi=True, from_first=True)
