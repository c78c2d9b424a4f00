"""Methods of several learners: independent (ICL, a learner a task) or with shared heads (MCL, and CAF).

Independent learners are as wide as learners with shared heads; with heads of their own they have more parameters
(981,900 instead of 879,100 for five on the CIFAR network with 20 tasks; width 8 gives 876,060). Results report the
true count.

Definitions of CAF. Paper: AF-1 weighs whole learners and decays no heads, AF-S has gradients to both learners of a
pair, and both adapt. Authors: AF-1 decays all heads, those of finished tasks too, where nothing holds them; AF-S on
MAS has equal weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kenyon.methods.base import Method
from kenyon.methods.importance import Accumulate
from kenyon.methods.path_importance import Importance
from kenyon.methods.penalties import ActiveForgetting1, DecayingHeads, Divergence, Penalty, Strength
from kenyon.methods.penalties.predictions import DivergenceForm
from kenyon.methods.penalties.strength import check_word
from kenyon.methods.registry import method
from kenyon.methods.regularization import (
    EWC_DEFAULTS,
    EWC_PAPER,
    MAS_DEFAULTS,
    MAS_PAPER,
    Fisher,
    Omega,
    fisher_information,
    mas_importance,
    protected,
)

DecayRates = Literal["adaptive", "learner", "uniform"]
Weights = Literal["adaptive", "uniform"]
CITE = "Wang et al., Nature Machine Intelligence 2023"
CAF_DEFAULTS = {"lambda_af": 1e-7, "gamma": 0.02}
FORGETTING_PAPER = {"af1": "learner", "afs": "adaptive", "afs_form": "paper"}
CAF_PAPER = FORGETTING_PAPER | {"af1_heads": "none"}
ON_EWC = {"paper": EWC_PAPER, "authors": {}}
ON_MAS = {"paper": MAS_PAPER, "authors": {}}


def forgetting_terms(
    lambda_af: Strength,
    gamma: Strength,
    af1: DecayRates,
    afs: Weights,
    afs_form: DivergenceForm,
    af1_heads: DecayingHeads = "current",
) -> tuple[Penalty, ...]:
    """Return AF-1 and AF-S of several learners.

    AF-1 adapts by parameter tensor as published, or by learner as in the paper.
    """
    check_word("af1", af1, DecayRates)
    check_word("afs", afs, Weights)
    check_word("afs_form", afs_form, DivergenceForm)
    decay = ActiveForgetting1(lambda_af, af1 != "uniform", af1_heads, of_learners=af1 == "learner")
    return decay, Divergence(gamma, afs == "adaptive", afs_form)


@method(family="independent", color="#55b7c8")
def discrete() -> Method:
    """A narrow learner for every task, never changed afterwards: nothing is forgotten, and nothing shared."""
    return Method(schedule="discrete")


def _independent(importance: Importance, lambda_sp: Strength) -> Method:
    return replace(protected(importance, lambda_sp, multi=True), apart=True)


@method(family="independent", cite=CITE, defaults=MAS_DEFAULTS, definitions=ON_MAS, color="#e9df9a")
def icl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Independent continual learners on MAS: each with heads of its own; tests average their predictions."""
    return _independent(mas_importance(omega, accumulate), lambda_sp)


@method(family="independent", cite=CITE, defaults=EWC_DEFAULTS, definitions=ON_EWC, color="#f1cf9b")
def icl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Independent continual learners on EWC: each with heads of its own; tests average their predictions."""
    return _independent(fisher_information(fisher, accumulate), lambda_sp)


@method(family="collaborative", cite=CITE, defaults=MAS_DEFAULTS, definitions=ON_MAS, color="#d8c03a", hue="brown")
def mcl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Multiple continual learners on MAS, without active forgetting."""
    return protected(mas_importance(omega, accumulate), lambda_sp, multi=True)


@method(family="collaborative", cite=CITE, defaults=EWC_DEFAULTS, definitions=ON_EWC, color="#e8a33d", hue="gold")
def mcl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Multiple continual learners on EWC, without active forgetting."""
    return protected(fisher_information(fisher, accumulate), lambda_sp, multi=True)


@method(
    family="collaborative",
    cite=CITE,
    defaults=MAS_DEFAULTS | CAF_DEFAULTS,
    definitions={"paper": MAS_PAPER | CAF_PAPER, "authors": {"af1_heads": "all", "afs": "uniform"}},
    color="#8b2f5b",
    hue="pink",
)
def caf_mas(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af1: DecayRates = "adaptive",
    afs: Weights = "adaptive",
    afs_form: DivergenceForm = "published",
    af1_heads: DecayingHeads = "current",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on MAS."""
    terms = forgetting_terms(lambda_af, gamma, af1, afs, afs_form, af1_heads)
    return protected(mas_importance(omega, accumulate), lambda_sp, *terms, multi=True)


@method(
    family="collaborative",
    cite=CITE,
    defaults=EWC_DEFAULTS | CAF_DEFAULTS,
    definitions={"paper": EWC_PAPER | CAF_PAPER, "authors": {"af1_heads": "all"}},
    color="#c53a32",
    hue="red",
)
def caf_ewc(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af1: DecayRates = "adaptive",
    afs: Weights = "adaptive",
    afs_form: DivergenceForm = "published",
    af1_heads: DecayingHeads = "current",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on EWC."""
    terms = forgetting_terms(lambda_af, gamma, af1, afs, afs_form, af1_heads)
    return protected(fisher_information(fisher, accumulate), lambda_sp, *terms, multi=True)
