"""Replay: old samples that are kept and met again. Every other kind of method does without them.

The passes that a method makes over each task's data. Most make one: they learn the task.

What a method is, and the methods by name.

A method is a value: a number of learners, an importance and some penalties. A function that returns one is a method
on the command line: its name is the method's (caf_ewc -> caf-ewc) and its keywords are the hyper-parameters that
`--set` takes; their annotations say which values they may have (float and `Strength`, int, bool, or words).

Values to begin with on data that nobody has tuned on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from kenyon.backends.layout import Rows
from kenyon.backends.triton.losses import weighted_cross_entropy
from kenyon.errors import ConfigError, shown, unknown
from kenyon.methods.mechanism import Mechanism
from kenyon.methods.path_importance import Importance
from kenyon.methods.penalties.weights import ParameterPenalty, Penalty, PredictionPenalty, Strength
from kenyon.models import Net, Outputs, Pictures
from kenyon.random import Noise
from kenyon.utils.user_code import import_file

if TYPE_CHECKING:
    from kenyon.models import Net

ReplayForm = Literal["published", "mixed"]


@dataclass(frozen=True)
class Replay:
    """`memory` training samples of every class are kept when its task ends, drawn at random. From the second task on,
    every step meets some of them beside its batch of the new task, each through the head of its own task:

    published: `batch` of every task before, and the loss is CE(new batch) + sum over the tasks t before of CE(t's).
    mixed:     `batch` of all tasks before together, and the loss is CE(new batch) + CE(old batch).

    CE is the mean cross-entropy. Where fewer samples are kept than a step asks for, it gets all of them.
    """

    memory: int = 20
    batch: int = 64
    form: ReplayForm = "published"

    def __post_init__(self) -> None:
        for name, value in (("memory", self.memory), ("replay_batch", self.batch)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}.")
        if self.form not in ("published", "mixed"):
            raise ConfigError(f"replay must be published or mixed, not '{self.form}'.")


@dataclass(frozen=True)
class Stage:
    """What is computed of a batch, and its loss.

    Only what the loss depends on is trained: to hold a part of the network still, `forward` detaches it.
    """

    name: str
    forward: Callable[..., Outputs]  # as Net.forward, with the net as its first argument
    # (outputs, what they should be, weights of samples (..., B)) -> the weighted sum over samples, (...). They should
    # be the labels (..., B), or what a teacher says, its logits (..., B, C).
    loss: Callable[[Outputs, Tensor, Tensor], Tensor]
    # As `forward`, without noise. Nothing that the stage trains changes what it says of an image.
    teacher: Callable[..., Outputs] | None = None
    active_column: bool = False  # needs a network that has one


def _surprise(out: Outputs, labels: Tensor, weight: Tensor) -> Tensor:
    return weighted_cross_entropy(out.logits, labels, weight)


def _active_column(
    net: Net,
    row: Rows,
    images: Tensor | Pictures,
    heads: Tensor,
    member: Tensor | None = None,
    *,
    noise: Tensor | Noise | None = None,
    own: bool = False,
) -> Outputs:
    return Outputs(net.active_logits(row, images, heads, noise), None)


def _imitation(out: Outputs, said: Tensor, weight: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher || prediction), both softened: logits / T. A class that is not there counts 0 * 0."""
    log_p, log_q = (said / temperature).log_softmax(-1), (out.logits / temperature).log_softmax(-1)
    return temperature**2 * ((log_p.exp() * (log_p - log_q)).sum(-1) * weight).sum(-1)


LEARN = Stage("learn", Net.forward, _surprise)

# Progress & Compress: the active column learns the task while the knowledge base, which is the network itself, is
# held still; then the knowledge base, with dropout, learns from the column's predictions without, which stay as they
# are.
PROGRESS = Stage("progress", _active_column, _surprise, active_column=True)


@cache
def compress(temperature: float = 1.0) -> Stage:
    loss = _imitation if temperature == 1 else partial(_imitation, temperature=temperature)
    return Stage("compress", Net.forward, loss, teacher=_active_column, active_column=True)


LEARNERS = 5  # of a multi-learner method, like the five compartments


@dataclass(frozen=True)
class Method:
    """How a network is kept from forgetting, and made to forget."""

    importance: Importance | None = None
    penalties: tuple[Penalty, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    stages: tuple[Stage, ...] = (LEARN,)  # one after another for every task
    replay: Replay | None = None
    multi: bool = False  # several learners (five, unless told otherwise) instead of one
    apart: bool = False  # they learn independently, each with heads of its own, and tests average their predictions
    # sequential: task after task. joint: all tasks at once. restart: every task from the first weights.
    # discrete: every task by a learner of its own.
    schedule: Literal["sequential", "joint", "restart", "discrete"] = "sequential"
    from_first: bool = False  # penalties act, and adapt, from the first task on, whatever the regime says

    def __post_init__(self) -> None:
        for penalty in self.penalties:
            if not isinstance(penalty, ParameterPenalty | PredictionPenalty):
                raise ConfigError(
                    f"{penalty!r} is no penalty. One on weights has learned, value and forces; one on predictions "
                    "has strength, needs_own, validated, learned and value (see kenyon.methods.penalties.weights)."
                )

    @property
    def learners(self) -> int:
        """How many it has, unless told otherwise."""
        return LEARNERS if self.multi else 1

    @property
    def active_column(self) -> bool:
        """Whether the network needs a second column beside it."""
        return any(stage.active_column for stage in self.stages)

    def learned(self, bare: Net) -> dict[str, tuple[int, ...]]:
        """What its penalties learn beside the weights of a network, and in which shapes: for `Net(learned=...)`."""
        return {name: shape for penalty in self.penalties for name, shape in penalty.learned(bare).items()}

    @cached_property  # every step asks
    def parameter_penalties(self) -> tuple[ParameterPenalty, ...]:
        """Those on weights."""
        return tuple(p for p in self.penalties if isinstance(p, ParameterPenalty))

    @cached_property  # every step asks
    def prediction_penalties(self) -> tuple[PredictionPenalty, ...]:
        """Those on what the learners say of a batch."""
        return tuple(p for p in self.penalties if isinstance(p, PredictionPenalty))


UNTOLD = Method(multi=True)  # of which nothing is known: it may have several learners, and is ordinary otherwise


@dataclass(frozen=True)
class MethodSpec:
    """A method by name, and what can be said of it before its hyper-parameters are known."""

    name: str
    summary: str
    build: Callable[..., Method]

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.build).parameters)

    @property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.build)
        except NameError:  # annotations that mean nothing at run time: no strengths, and numbers only
            return {}

    @property
    def required(self) -> tuple[str, ...]:
        """Those without a default: the published configurations give them."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)

    @property
    def strengths(self) -> tuple[str, ...]:
        """Those annotated as `Strength`: their values may differ between runs that train together."""
        return tuple(name for name in self.hyperparameters if self._hints.get(name) == Strength)

    @property
    def kinds(self) -> dict[str, type]:
        """What a value of each hyper-parameter is: str, bool, int or, without an annotation that says so, float."""
        return {name: _kind(hint) for name, hint in self._hints.items() if name in self.hyperparameters}

    @property
    def multi(self) -> bool:
        """Whether the method has several learners; also where that depends on values which are not known."""
        return self.example.multi

    @property
    def learners(self) -> int:
        """How many it has, unless told otherwise."""
        return self.example.learners

    @property
    def apart(self) -> bool:
        """Whether its learners learn independently."""
        return self.example.apart

    @property
    def schedule(self) -> str:
        return self.example.schedule

    @property
    def keeps_samples(self) -> bool:
        """Whether the method keeps samples of the tasks before."""
        return self.example.replay is not None

    @property
    def example(self) -> Method:
        """The method at some values, for what does not depend on them: where its own are known, make it of them."""
        hints = self._hints
        try:
            return self({name: _made_up(hints.get(name)) for name in self.required})
        except Exception:  # somebody's own function, and values that nobody chose
            if not self.required:
                raise
            return UNTOLD

    def __call__(self, hyper: Mapping[str, Any] | None = None) -> Method:
        given = dict(hyper or {})
        for name in given:
            if name not in self.hyperparameters:
                raise unknown(f"hyper-parameter of {self.name}", name, self.hyperparameters or ("none",))
        missing = [name for name in self.required if name not in given]
        if missing:
            given_with = " ".join(f"--set {name}=VALUE" for name in missing)
            raise ConfigError(f"{self.name} needs {', '.join(missing)}: give {given_with}.")
        made = self.build(**given)
        if not isinstance(made, Method):
            raise ConfigError(
                f"The function of the method {self.name} gives {shown(made)}. It must return a Method: "
                "return Method(importance, penalties)."
            )
        return made


METHODS: dict[str, MethodSpec] = {}


def method(build: Callable[..., Method]) -> Callable[..., Method]:
    """Makes the function a method by its name. Those of Kenyon keep theirs: results know methods by name alone."""
    name = build.__name__.replace("_", "-")
    if name in METHODS and METHODS[name].build.__module__ != build.__module__:
        raise ConfigError(f"There is a method {name} already. Give the function {build.__name__} another name.")
    METHODS[name] = MethodSpec(name, next(iter((inspect.getdoc(build) or "").splitlines()), ""), build)
    return build


def find_method(name: str) -> MethodSpec:
    """The method of that name; otherwise an error that names the nearest ones."""
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(f"{unknown('method', name, METHODS)} One of your own goes by its file: --method mine.py.")
    return METHODS[name]


def load_method_file(path: Path) -> list[str]:
    """Import a user's file and give the names of the methods in it."""
    module = import_file(path, "method")
    names = [name for name, spec in METHODS.items() if spec.build.__module__ == module.__name__]
    if not names:
        raise ConfigError(f"{path} must define at least one function with @method; it defines none.")
    return names


def _first(hint: Any) -> Any:
    """Of alternatives the first counts; None is always allowed."""
    return get_args(hint)[0] if get_origin(hint) in (Union, UnionType) else hint


def _kind(hint: Any) -> type:
    first = _first(hint)
    if get_origin(first) is Literal:
        return str
    return first if first in (str, bool, int) else float


def _made_up(hint: Any) -> Any:
    """A value of that kind which few methods refuse: the first word, False, 1, or a strength of 0."""
    first = _first(hint)
    if get_origin(first) is Literal:
        return get_args(first)[0]
    return {str: "", bool: False, int: 1}.get(first, 0.0)


# lambda_sp on EWC and on MAS lies where three small streams (digits, a table, a signal; seeds 100 to 103) and the
# paper's CIFAR tasks meet: on none of them was another power of ten better by more than 0.4 points. All else is the
# geometric mean of what serves digits and R-CIFAR-100, but for AGS-CL, which has the values of digits. Tune it for
# your own data.
_EWC, _MAS = {"lambda_sp": 1e4}, {"lambda_sp": 3.0}
_AF1, _CAF = {"lambda_af": 1e-6}, {"lambda_af": 1e-7, "gamma": 0.02}
DEFAULTS: dict[str, dict[str, float]] = {
    "ewc": _EWC,
    "mas": _MAS,
    "si": {"lambda_sp": 3.0},
    "rwalk": {"lambda_sp": 4.0},
    "cpr-ewc": _EWC | {"lambda_cpr": 0.4},
    "cpr-mas": _MAS | {"lambda_cpr": 0.9},
    "agscl": {"lambda_sp": 5.0, "mu": 1.0, "rho": 0.5},
    "pnc": {"lambda_sp": 4e6},
    "ewc-af1": _EWC | _AF1,
    "mas-af1": _MAS | _AF1,
    "ewc-af2": _EWC | {"lambda_af": 1.0},
    "mas-af2": _MAS | {"lambda_af": 1.0},
    "mcl-ewc": _EWC,
    "mcl-mas": _MAS,
    "icl-ewc": _EWC,
    "icl-mas": _MAS,
    "caf-ewc": _EWC | _CAF,
    "caf-mas": _MAS | _CAF,
}
