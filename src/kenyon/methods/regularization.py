"""Methods that keep important weights from changing: EWC, MAS, SI, RWalk, and CPR on top of them.

Default strengths: lambda_sp on EWC and on MAS lies where three small streams (digits, a table, a signal; seeds 100 to
103) and the paper's CIFAR tasks meet: on none of them was another power of ten better by more than 0.4 points. All
other defaults, here and in other families, are the geometric mean of what serves digits and R-CIFAR-100. Tune them
for your own data.

Definitions: the paper's equations have the exact Fisher information and plain sums over tasks. The authors' code has
the forms that results are published in.
"""

from __future__ import annotations

from typing import Literal

from kenyon.errors import unknown
from kenyon.methods.base import Method
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
from kenyon.methods.path_importance import Importance, WalkForm
from kenyon.methods.path_importance import rwalk as rwalk_importance
from kenyon.methods.path_importance import si as si_importance
from kenyon.methods.penalties import Confidence, Penalty, StabilityProtection, Strength
from kenyon.methods.registry import method

Fisher = Literal["published", "exact", "large", "core50"]
Omega = Literal["published", "large", "core50"]
FISHERS = {"published": fisher_published, "exact": fisher_exact, "large": fisher_large, "core50": fisher_core50}
OMEGAS = {"published": mas_published, "large": mas_large, "core50": mas_core50}

EWC_DEFAULTS, MAS_DEFAULTS = {"lambda_sp": 1e4}, {"lambda_sp": 3.0}
EWC_PAPER = {"fisher": "exact", "accumulate": "sum"}
MAS_PAPER = {"omega": "published", "accumulate": "sum"}  # the paper has no equation of the importance itself
FAMILY = "regularization"


def fisher_information(variant: Fisher, accumulate: Merge | None = None) -> GradientImportance:
    """Return a Fisher information by name, accumulated over tasks as given or as the variant is."""
    if variant not in FISHERS:
        raise unknown("fisher variant", variant, FISHERS)
    return FISHERS[variant]() if accumulate is None else FISHERS[variant](accumulate)


def mas_importance(variant: Omega, accumulate: Accumulate) -> GradientImportance:
    """Return an importance of MAS by name."""
    if variant not in OMEGAS:
        raise unknown("omega variant", variant, OMEGAS)
    return OMEGAS[variant](accumulate)


def protected(importance: Importance, lambda_sp: Strength, *penalties: Penalty, multi: bool = False) -> Method:
    """Return a method that protects weights by an importance, with further penalties."""
    return Method(importance, (StabilityProtection(lambda_sp, importance.factor), *penalties), multi=multi)


@method(family=FAMILY, cite="Zenke et al., ICML 2017", defaults={"lambda_sp": 3.0}, color="#8d69b8", hue="purple")
def si(lambda_sp: Strength) -> Method:
    """Synaptic intelligence: protect weights by their contribution to the decrease of the loss."""
    return protected(si_importance(), lambda_sp)


@method(
    family=FAMILY,
    cite="Chaudhry et al., ECCV 2018",
    defaults={"lambda_sp": 4.0},
    definitions={"paper": {"rwalk_form": "paper"}, "authors": {}},
    color="#b79fd3",
)
def rwalk(lambda_sp: Strength, rwalk_form: WalkForm = "published") -> Method:
    """Riemannian walk: protect weights by an averaged Fisher information and the loss decrease on their path."""
    return protected(rwalk_importance(rwalk_form), lambda_sp)


@method(
    family=FAMILY,
    cite="Aljundi et al., ECCV 2018",
    defaults=MAS_DEFAULTS,
    definitions={"paper": MAS_PAPER, "authors": {}},
    color="#519e3e",
    hue="green",
)
def mas(lambda_sp: Strength, accumulate: Accumulate = "sum", omega: Omega = "published") -> Method:
    """Memory-aware synapses: protect weights by how much the output depends on them."""
    return protected(mas_importance(omega, accumulate), lambda_sp)


@method(
    family=FAMILY,
    cite="Kirkpatrick et al., PNAS 2017",
    defaults=EWC_DEFAULTS,
    definitions={"paper": EWC_PAPER, "authors": {}},
    color="#3b75af",
    hue="blue",
)
def ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Elastic weight consolidation: protect weights by their Fisher information."""
    return protected(fisher_information(fisher, accumulate), lambda_sp)


@method(
    family=FAMILY,
    cite="Cha et al., ICLR 2021",
    defaults=MAS_DEFAULTS | {"lambda_cpr": 0.9},
    definitions={"paper": MAS_PAPER, "authors": {}},
    color="#2f6b22",
)
def cpr_mas(
    lambda_sp: Strength, lambda_cpr: Strength, accumulate: Accumulate = "sum", omega: Omega = "published"
) -> Method:
    """MAS with less confident predictions (CPR)."""
    return protected(mas_importance(omega, accumulate), lambda_sp, Confidence(lambda_cpr))


@method(
    family=FAMILY,
    cite="Cha et al., ICLR 2021",
    defaults=EWC_DEFAULTS | {"lambda_cpr": 0.4},
    definitions={"paper": EWC_PAPER, "authors": {}},
    color="#1f4e79",
)
def cpr_ewc(
    lambda_sp: Strength, lambda_cpr: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with less confident predictions (CPR), whose minima are wider."""
    return protected(fisher_information(fisher, accumulate), lambda_sp, Confidence(lambda_cpr))
