"""Baselines: no protection, replay, and joint training.

Joint training has all tasks at once. With the terms of continual learning it shows whether they help where nothing
has to be remembered; terms act from the beginning, adaptive ones too (Supplementary Fig. 4).
"""

from __future__ import annotations

from kenyon.methods.base import Method, Replay, ReplayForm
from kenyon.methods.collaborative import FORGETTING_PAPER, DecayRates, Weights, forgetting_terms
from kenyon.methods.penalties import ActiveForgetting1, Strength
from kenyon.methods.penalties.predictions import DivergenceForm
from kenyon.methods.registry import method


@method(family="unprotected", color="#8c8c8c", hue="grey")
def finetune() -> Method:
    """Train on task after task without protection."""
    return Method()


@method(family="reference", color="#bfbfbf")
def random_init() -> Method:
    """Learn every task from the initial weights: the reference for forward transfer."""
    return Method(schedule="restart")


@method(family="replay", cite="Chaudhry et al., 2019 (arXiv:1902.10486)", color="#84584e")
def er(memory: int = 20, replay_batch: int = 64, replay: ReplayForm = "published") -> Method:
    """Experience replay: keep old samples, `memory` of every class, and train on them again; no other method does."""
    return Method(replay=Replay(memory, replay_batch, replay))


@method(
    family="joint",
    definitions={"paper": FORGETTING_PAPER, "authors": {}},
    color="#6e3b38",
)
def joint_caf(
    lambda_af: Strength,
    gamma: Strength,
    af1: DecayRates = "adaptive",
    afs: Weights = "adaptive",
    afs_form: DivergenceForm = "published",
) -> Method:
    """All tasks at once, by multiple learners with the terms of CAF: AF-1 and AF-S."""
    terms = forgetting_terms(lambda_af, gamma, af1, afs, afs_form)
    return Method(penalties=terms, schedule="joint", multi=True, from_first=True)


@method(family="joint", color="#7a6a4c")
def joint_mcl() -> Method:
    """All tasks at once, by multiple learners."""
    return Method(schedule="joint", multi=True)


@method(family="joint", color="#5c6b7a")
def joint_af1(lambda_af: Strength) -> Method:
    """All tasks at once, with active forgetting AF-1."""
    return Method(penalties=(ActiveForgetting1(lambda_af),), schedule="joint", from_first=True)


@method(family="joint", color="#404040")
def joint() -> Method:
    """Train on all tasks at once: the reference of continual learning."""
    return Method(schedule="joint")
