"""What a method is, and the methods by name.

A method is a value: a number of learners, an importance and some penalties. A function that returns one is a method
on the command line: its name is the method's (caf_ewc -> caf-ewc) and its keywords are the hyper-parameters that
`--set` takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from kenyon.errors import ConfigError, unknown
from kenyon.hooks import Mechanism
from kenyon.mechanisms import ActiveColumn
from kenyon.penalties import ParameterPenalty, Penalty, PredictionPenalty, Strength
from kenyon.replay import Replay
from kenyon.stages import LEARN, Stage
from kenyon.tracked import Importance

if TYPE_CHECKING:
    from kenyon.nets import Net

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

    @property
    def active_column(self) -> bool:
        """Whether the network needs a second column beside it."""
        return any(isinstance(mechanism, ActiveColumn) for mechanism in self.mechanisms)

    def learned(self, bare: Net) -> dict[str, tuple[int, ...]]:
        """What its penalties learn beside the weights of a network, and in which shapes: for `Net(learned=...)`."""
        return {name: shape for penalty in self.penalties for name, shape in penalty.learned(bare).items()}

    @property
    def parameter_penalties(self) -> tuple[ParameterPenalty, ...]:
        return tuple(p for p in self.penalties if not isinstance(p, PredictionPenalty))

    @property
    def prediction_penalties(self) -> tuple[PredictionPenalty, ...]:
        return tuple(p for p in self.penalties if isinstance(p, PredictionPenalty))


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
        return self.example.multi

    @property
    def learners(self) -> int:
        """How many it has, unless told otherwise."""
        return LEARNERS if self.multi else 1

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
        """The method at some strengths, for what does not depend on them."""
        return self.build(**dict.fromkeys(self.required, 0.0))

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
