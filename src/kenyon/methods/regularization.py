"""Methods that keep weights from changing, alone and in several learners, with and without active forgetting.

A new method is one more function of a few lines.
"""

from __future__ import annotations

from typing import Literal, get_args

from kenyon.errors import ConfigError, unknown
from kenyon.methods.agscl import GroupSparsity
from kenyon.methods.expanded import ExpandedNetwork
from kenyon.methods.importance import (
    Accumulate,
    GradientImportance,
    Merge,
    fisher_core50,
    fisher_exact,
    fisher_large,
    fisher_published,
    mas_core50,
    mas_large,
)
from kenyon.methods.importance import mas as mas_published
from kenyon.methods.path_importance import Importance
from kenyon.methods.path_importance import rwalk as rwalk_importance
from kenyon.methods.path_importance import si as si_importance
from kenyon.methods.penalties.weights import (
    ActiveForgetting1,
    ActiveForgetting2,
    Confidence,
    DecayingHeads,
    Divergence,
    StabilityProtection,
    Strength,
)
from kenyon.methods.registry import Method, method

Fisher = Literal["published", "exact", "large", "core50"]
Omega = Literal["published", "large", "core50"]
Adapt = Literal["adaptive", "uniform"]
Form = Literal["published", "paper"]
DecayRates = Literal["adaptive", "learner", "uniform"]
First = Literal["learned", "waits"]


def fisher_named(variant: Fisher, accumulate: Merge | None = None) -> GradientImportance:
    makers = {"published": fisher_published, "exact": fisher_exact, "large": fisher_large, "core50": fisher_core50}
    if variant not in makers:
        raise unknown("fisher variant", variant, makers)
    return makers[variant]() if accumulate is None else makers[variant](accumulate)


def mas_named(variant: Omega, accumulate: Accumulate) -> GradientImportance:
    makers = {"published": mas_published, "large": mas_large, "core50": mas_core50}
    if variant not in makers:
        raise unknown("omega variant", variant, makers)
    return makers[variant](accumulate)


def _expanded(variant: Fisher | Omega, first: First) -> ExpandedNetwork:
    """Measured by the Fisher information of the same scale, also where MAS protects."""
    if first not in get_args(First):
        raise ConfigError(f"af2_first must be {' or '.join(get_args(First))}, not '{first}'.")
    return ExpandedNetwork(fisher_named("published" if variant == "exact" else variant), first == "waits")


def adaptive(option: str, value: Adapt) -> bool:
    if value not in ("adaptive", "uniform"):
        raise ConfigError(f"{option} must be adaptive or uniform, not '{value}'.")
    return value == "adaptive"


def active_forgetting(lambda_af: Strength, af1: DecayRates, heads: DecayingHeads = "current") -> ActiveForgetting1:
    """AF-1 of several learners: adaptive by parameter tensor as published, or by learner as in the paper."""
    if af1 not in get_args(DecayRates):
        raise ConfigError(f"af1 must be {', '.join(get_args(DecayRates))}, not '{af1}'.")
    return ActiveForgetting1(lambda_af, af1 != "uniform", heads, of_learners=af1 == "learner")


def divergence(gamma: Strength, afs: Adapt, form: Form) -> Divergence:
    if form not in ("published", "paper"):
        raise ConfigError(f"afs_form must be published or paper, not '{form}'.")
    return Divergence(gamma, adaptive("afs", afs), form)


def _caf(
    importance: Importance,
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    af1: DecayRates,
    afs: Adapt,
    afs_form: Form,
    af1_heads: DecayingHeads,
) -> Method:
    forgetting = active_forgetting(lambda_af, af1, af1_heads)
    penalties = (StabilityProtection(lambda_sp), forgetting, divergence(gamma, afs, afs_form))
    return Method(importance, penalties, multi=True)


@method
def finetune() -> Method:
    """Train on task after task and protect nothing."""
    return Method()


@method
def random_init() -> Method:
    """Learn every task from the first weights: the reference that forward transfer needs."""
    return Method(schedule="restart")


@method
def ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Elastic weight consolidation: protect weights by their Fisher information."""
    return Method(fisher_named(fisher, accumulate), (StabilityProtection(lambda_sp),))


@method
def mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Memory-aware synapses: protect weights by how much the output depends on them."""
    return Method(mas_named(omega, accumulate), (StabilityProtection(lambda_sp),))


@method
def si(lambda_sp: Strength) -> Method:
    """Synaptic intelligence: protect weights by how much they lowered the loss along the way."""
    return Method(si_importance(), (StabilityProtection(lambda_sp, factor=1.0),))


@method
def rwalk(lambda_sp: Strength, rwalk_form: Form = "published") -> Method:
    """Riemannian walk: protect weights by an averaged Fisher information and how far the loss fell on their way."""
    return Method(rwalk_importance(rwalk_form), (StabilityProtection(lambda_sp, factor=1.0),))


@method
def cpr_ewc(
    lambda_sp: Strength, lambda_cpr: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with less confident predictions (CPR), whose minima are wider."""
    return Method(fisher_named(fisher, accumulate), (StabilityProtection(lambda_sp), Confidence(lambda_cpr)))


@method
def cpr_mas(
    lambda_sp: Strength, lambda_cpr: Strength, accumulate: Accumulate = "sum", omega: Omega = "published"
) -> Method:
    """MAS with less confident predictions (CPR)."""
    return Method(mas_named(omega, accumulate), (StabilityProtection(lambda_sp), Confidence(lambda_cpr)))


@method
def agscl(lambda_sp: Strength, mu: Strength, rho: Strength, eta: Strength = 0.9) -> Method:
    """AGS-CL: freeze nodes that were active, keep the others sparse, and renew a share of them after every task."""
    return Method(mechanisms=(GroupSparsity(lambda_sp, mu, rho, eta),))


@method
def ewc_af1(
    lambda_sp: Strength,
    lambda_af: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af1_heads: DecayingHeads = "current",
) -> Method:
    """EWC with active forgetting AF-1: decay towards an empty network."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af, heads=af1_heads))
    return Method(fisher_named(fisher, accumulate), penalties)


@method
def ewc_af2(
    lambda_sp: Strength,
    lambda_af: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af2_validated: bool = True,
    af2_first: First = "learned",
) -> Method:
    """EWC with active forgetting AF-2 (AFEC): decay towards an expanded network."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af, af2_validated))
    return Method(fisher_named(fisher, accumulate), penalties, (_expanded(fisher, af2_first),))


@method
def mas_af1(
    lambda_sp: Strength,
    lambda_af: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af1_heads: DecayingHeads = "current",
    from_first: bool = False,
) -> Method:
    """MAS with active forgetting AF-1: from the second task on or, as published, `from_first`."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af, heads=af1_heads))
    return Method(mas_named(omega, accumulate), penalties, from_first=from_first)


@method
def mas_af2(
    lambda_sp: Strength,
    lambda_af: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af2_validated: bool = True,
    af2_first: First = "learned",
) -> Method:
    """MAS with active forgetting AF-2."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af, af2_validated))
    return Method(mas_named(omega, accumulate), penalties, (_expanded(omega, af2_first),))


@method
def mcl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Multiple continual learners on EWC, without active forgetting."""
    return Method(fisher_named(fisher, accumulate), (StabilityProtection(lambda_sp),), multi=True)


@method
def mcl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Multiple continual learners on MAS, without active forgetting."""
    return Method(mas_named(omega, accumulate), (StabilityProtection(lambda_sp),), multi=True)


@method
def caf_ewc(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af1: DecayRates = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
    af1_heads: DecayingHeads = "current",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on EWC."""
    return _caf(fisher_named(fisher, accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form, af1_heads)


@method
def caf_mas(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af1: DecayRates = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
    af1_heads: DecayingHeads = "current",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on MAS."""
    return _caf(mas_named(omega, accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form, af1_heads)
