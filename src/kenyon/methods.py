"""Methods are values: a name, a number of learners, an importance and some penalties.

A function's name is the name on the command line (caf_ewc -> caf-ewc) and its keywords are the hyper-parameters
that `--set` takes. A new method is one more function of a few lines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from kenyon.errors import ConfigError, unknown
from kenyon.hooks import Mechanism
from kenyon.importance import Accumulate, Merge, fisher_exact, fisher_published
from kenyon.importance import mas as mas_importance
from kenyon.mechanisms import ActiveColumn, ExpandedNetwork
from kenyon.penalties import (
    ActiveForgetting1,
    ActiveForgetting2,
    Divergence,
    ParameterPenalty,
    Penalty,
    StabilityProtection,
    Strength,
)
from kenyon.stages import COMPRESS, LEARN, PROGRESS, Stage
from kenyon.tracked import Importance
from kenyon.tracked import si as si_importance

Fisher = Literal["published", "exact"]
Adapt = Literal["adaptive", "uniform"]
Form = Literal["published", "paper"]


@dataclass(frozen=True)
class Method:
    """How a network is kept from forgetting, and made to forget."""

    importance: Importance | None = None
    penalties: tuple[Penalty, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    stages: tuple[Stage, ...] = (LEARN,)  # one after another for every task
    multi: bool = False  # several learners (five, unless told otherwise) instead of one
    # sequential: task after task. joint: all tasks at once. restart: every task from the first weights.
    schedule: Literal["sequential", "joint", "restart"] = "sequential"

    @property
    def active_column(self) -> bool:
        """Whether the network needs a second column beside it."""
        return any(isinstance(mechanism, ActiveColumn) for mechanism in self.mechanisms)

    @property
    def parameter_penalties(self) -> tuple[ParameterPenalty, ...]:
        return tuple(p for p in self.penalties if not isinstance(p, Divergence))

    @property
    def prediction_penalties(self) -> tuple[Divergence, ...]:
        return tuple(p for p in self.penalties if isinstance(p, Divergence))


@dataclass(frozen=True)
class MethodSpec:
    name: str
    summary: str
    build: Callable[..., Method]

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.build).parameters)

    @property
    def required(self) -> tuple[str, ...]:
        """Those without a default: the published configurations give them."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)

    @property
    def strengths(self) -> tuple[str, ...]:
        """Those annotated as `Strength`: their values may differ between runs that train together."""
        try:
            hints = get_type_hints(self.build)
        except NameError:  # annotations that mean nothing at run time; such points train one after another
            return ()
        return tuple(name for name in self.hyperparameters if hints.get(name) == Strength)

    @property
    def multi(self) -> bool:
        """Whether the method has several learners, whatever its hyper-parameters."""
        return self.build(**dict.fromkeys(self.required, 0.0)).multi

    def __call__(self, hyper: Mapping[str, Any] | None = None) -> Method:
        given = dict(hyper or {})
        for name in given:
            if name not in self.hyperparameters:
                raise unknown(f"hyper-parameter of {self.name}", name, self.hyperparameters or ("none",))
        missing = [name for name in self.required if name not in given]
        if missing:
            raise ConfigError(f"{self.name} needs {', '.join(missing)}: give it with --set {missing[0]}=VALUE.")
        return self.build(**given)


METHODS: dict[str, MethodSpec] = {}


def method(build: Callable[..., Method]) -> Callable[..., Method]:
    name = build.__name__.replace("_", "-")
    METHODS[name] = MethodSpec(name, (inspect.getdoc(build) or "").splitlines()[0], build)
    return build


def find_method(name: str) -> MethodSpec:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def _fisher(variant: Fisher, accumulate: Merge | None) -> Importance:
    makers = {"published": fisher_published, "exact": fisher_exact}
    if variant not in makers:
        raise unknown("fisher variant", variant, makers)
    return makers[variant]() if accumulate is None else makers[variant](accumulate)


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
    return Method(_fisher(fisher, accumulate), (StabilityProtection(lambda_sp),))


@method
def mas(lambda_sp: Strength, accumulate: Accumulate = "sum") -> Method:
    """Memory-aware synapses: protect weights by how much the output depends on them."""
    return Method(mas_importance(accumulate), (StabilityProtection(lambda_sp),))


@method
def si(lambda_sp: Strength) -> Method:
    """Synaptic intelligence: protect weights by how much they lowered the loss along the way."""
    return Method(si_importance(), (StabilityProtection(lambda_sp, factor=1.0),))


@method
def ewc_af1(
    lambda_sp: Strength, lambda_af: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with active forgetting AF-1: decay towards an empty network."""
    return Method(_fisher(fisher, accumulate), (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af)))


@method
def ewc_af2(
    lambda_sp: Strength, lambda_af: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None
) -> Method:
    """EWC with active forgetting AF-2 (AFEC): decay towards an expanded network."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af))
    return Method(_fisher(fisher, accumulate), penalties, (ExpandedNetwork(),))


@method
def mas_af1(lambda_sp: Strength, lambda_af: Strength, accumulate: Accumulate = "sum") -> Method:
    """MAS with active forgetting AF-1."""
    return Method(mas_importance(accumulate), (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af)))


@method
def mas_af2(lambda_sp: Strength, lambda_af: Strength, accumulate: Accumulate = "sum") -> Method:
    """MAS with active forgetting AF-2."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting2(lambda_af))
    return Method(mas_importance(accumulate), penalties, (ExpandedNetwork(),))


@method
def pnc(
    lambda_sp: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    decay: float | None = None,
    reinit: bool = True,
) -> Method:
    """Progress & Compress: an active column learns the task and is distilled into the network under EWC.

    `decay` makes the EWC online, F <- F_t + decay F, as in Schwarz et al. (2018); without it importances are
    accumulated as by `ewc`, which is the scale of the published lambdas.
    """
    if decay is not None and accumulate is not None:
        raise ConfigError("decay and accumulate both say how importances are merged. Give one of them.")
    merge = accumulate if decay is None else float(decay)
    penalties = (StabilityProtection(lambda_sp),)
    return Method(_fisher(fisher, merge), penalties, (ActiveColumn(reinit),), (PROGRESS, COMPRESS))


@method
def mcl_ewc(lambda_sp: Strength, fisher: Fisher = "published", accumulate: Accumulate | None = None) -> Method:
    """Multiple continual learners on EWC, without active forgetting."""
    return Method(_fisher(fisher, accumulate), (StabilityProtection(lambda_sp),), multi=True)


@method
def mcl_mas(lambda_sp: Strength, accumulate: Accumulate = "sum") -> Method:
    """Multiple continual learners on MAS, without active forgetting."""
    return Method(mas_importance(accumulate), (StabilityProtection(lambda_sp),), multi=True)


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
    return _caf(_fisher(fisher, accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form)


@method
def caf_mas(
    lambda_sp: Strength,
    lambda_af: Strength,
    gamma: Strength,
    accumulate: Accumulate = "sum",
    af1: Adapt = "adaptive",
    afs: Adapt = "adaptive",
    afs_form: Form = "published",
) -> Method:
    """Collaborative continual learners with active forgetting (CAF) on MAS."""
    return _caf(mas_importance(accumulate), lambda_sp, lambda_af, gamma, af1, afs, afs_form)
