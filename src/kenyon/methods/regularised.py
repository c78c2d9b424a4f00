"""Methods that keep weights from changing, alone and in several learners, with and without active forgetting.

A new method is one more function of a few lines.
"""

from __future__ import annotations

from typing import Literal

from kenyon.errors import ConfigError, unknown
from kenyon.importance import (
    Accumulate,
    GradientImportance,
    Merge,
    fisher_core50,
    fisher_exact,
    fisher_large,
    fisher_published,
    mas_large,
)
from kenyon.importance import mas as mas_published
from kenyon.mechanisms import ExpandedNetwork, GroupSparsity
from kenyon.methods.registry import Method, method
from kenyon.penalties import ActiveForgetting1, ActiveForgetting2, Divergence, StabilityProtection, Strength
from kenyon.tracked import Importance
from kenyon.tracked import si as si_importance

Fisher = Literal["published", "exact", "large", "core50"]
Omega = Literal["published", "large"]
Adapt = Literal["adaptive", "uniform"]
Form = Literal["published", "paper"]


def fisher_named(variant: Fisher, accumulate: Merge | None = None) -> GradientImportance:
    makers = {"published": fisher_published, "exact": fisher_exact, "large": fisher_large, "core50": fisher_core50}
    if variant not in makers:
        raise unknown("fisher variant", variant, makers)
    return makers[variant]() if accumulate is None else makers[variant](accumulate)


def _mas(variant: Omega, accumulate: Accumulate) -> GradientImportance:
    makers = {"published": mas_published, "large": mas_large}
    if variant not in makers:
        raise unknown("omega variant", variant, makers)
    return makers[variant](accumulate)


def _expanded(variant: Fisher | Omega) -> ExpandedNetwork:
    """Measured by the Fisher information of the same scale, also where MAS protects."""
    return ExpandedNetwork(fisher_named("published" if variant == "exact" else variant))


def _adaptive(option: str, value: Adapt) -> bool:
    if value not in ("adaptive", "uniform"):
        raise ConfigError(f"{option} must be adaptive or uniform, not '{value}'.")
    return value == "adaptive"


def _divergence(gamma: Strength, afs: Adapt, form: Form) -> Divergence:
    if form not in ("published", "paper"):
        raise ConfigError(f"afs_form must be published or paper, not '{form}'.")
    return Divergence(gamma, _adaptive("afs", afs), form)


def _caf(
    importance: Importance,
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    af1: Adapt,
    afs: Adapt,
    afs_form: Form,
) -> Method:
    forgetting = ActiveForgetting1(lambda_af, _adaptive("af1", af1))
    penalties = (StabilityProtection(lambda_sp), forgetting, _divergence(gamma, afs, afs_form))
    return Method(importance, penalties, multi=True)


@method
def finetune() -> Method:
    """Train on task after task and protect nothing."""
    return Method()


@method
def joint() -> Method:
    """Train on all tasks at once: what continual learning is measured against."""
    return Method(schedule="joint")


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
    return Method(_mas(omega, accumulate), (StabilityProtection(lambda_sp),))


@method
def si(lambda_sp: Strength) -> Method:
    """Synaptic intelligence: protect weights by how much they lowered the loss along the way."""
    return Method(si_importance(), (StabilityProtection(lambda_sp, factor=1.0),))


@method
def agscl(lambda_sp: Strength, mu: Strength, rho: Strength, eta: Strength = 0.9) -> Method:
    """AGS-CL: freeze nodes that were active, keep the others sparse, and renew a share of them after every task."""
    return Method(mechanisms=(GroupSparsity(lambda_sp, mu, rho, eta),))


@method
def ewc_af1(
    lambda_sp: Strength, lambda_af: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with active forgetting AF-1: decay towards an empty network."""
    return Method(fisher_named(fisher, accumulate), (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af)))


@method
def ewc_af2(
    lambda_sp: Strength, lambda_af: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with active forgetting AF-2 (AFEC): decay towards an expanded network."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af))
    return Method(fisher_named(fisher, accumulate), penalties, (_expanded(fisher),))


@method
def mas_af1(
    lambda_sp: Strength, lambda_af: Strength, accumulate: Accumulate = "sum", omega: Omega = "published"
) -> Method:
    """MAS with active forgetting AF-1."""
    return Method(_mas(omega, accumulate), (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af)))


@method
def mas_af2(
    lambda_sp: Strength, lambda_af: Strength, accumulate: Accumulate = "sum", omega: Omega = "published"
) -> Method:
    """MAS with active forgetting AF-2."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af))
    return Method(_mas(omega, accumulate), penalties, (_expanded(omega),))


@method
def mcl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Multiple continual learners on EWC, without active forgetting."""
    return Method(fisher_named(fisher, accumulate), (StabilityProtection(lambda_sp),), multi=True)


@method
def mcl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Multiple continual learners on MAS, without active forgetting."""
    return Method(_mas(omega, accumulate), (StabilityProtection(lambda_sp),), multi=True)


@method
def caf_ewc(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af1: Adapt = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on EWC."""
    return _caf(fisher_named(fisher, accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form)


@method
def caf_mas(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af1: Adapt = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on MAS."""
    return _caf(_mas(omega, accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form)
