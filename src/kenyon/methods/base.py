"""A method as a value: its importance, penalties, mechanisms, learners, and passes over the data of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from kenyon.backends.triton.losses import weighted_cross_entropy
from kenyon.errors import ConfigError
from kenyon.methods.mechanism import Mechanism
from kenyon.methods.penalties.predictions import NEEDS, PredictionPenalty, needs_of
from kenyon.methods.penalties.weights import ParameterPenalty, Penalty

if TYPE_CHECKING:
    from kenyon.methods.path_importance import Importance
    from kenyon.models import Net, Outputs

ReplayForm = Literal["published", "mixed"]
LEARNERS = 5  # of a multi-learner method, like the five compartments


@dataclass(frozen=True)
class Replay:
    """Training samples of earlier tasks that are stored and trained on again.

    When a task ends, `memory` samples of every class are drawn at random and kept. From the second task on, every
    step adds the loss of some of them, each through the head of its own task:

    published: `batch` samples of every earlier task; the loss is CE(new batch) + sum over earlier tasks t of CE(t's).
    mixed:     `batch` samples of all earlier tasks together; the loss is CE(new batch) + CE(old batch).

    CE is the mean cross-entropy. Where fewer samples are kept than a step asks for, it uses all of them.
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
    """A pass over the data of a task: what is computed of a batch, and its loss.

    Only what the loss depends on is trained: `forward` detaches the parts of the network that stay fixed.
    """

    name: str
    forward: Callable[..., Outputs]  # as Net.forward, with the net as its first argument
    # (outputs, targets, weights of samples (..., B)) -> the weighted sum over samples, (...). Targets are the labels
    # (..., B), or the logits of a teacher (..., B, C).
    loss: Callable[[Outputs, Tensor, Tensor], Tensor]
    # As `forward`, without noise. Nothing that the stage trains changes its predictions.
    teacher: Callable[..., Outputs] | None = None
    active_column: bool = False  # needs a network with a second column


def cross_entropy(out: Outputs, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum of the samples' cross-entropies, (...)."""
    return weighted_cross_entropy(out.logits, labels, weight)


def whole_network(net: Net, *args: Any, **options: Any) -> Outputs:
    """Run the forward pass of the network itself."""
    return net.forward(*args, **options)


LEARN = Stage("learn", whole_network, cross_entropy)


@dataclass(frozen=True)
class Method:
    """A continual learning method: how a network is kept from forgetting, and made to forget."""

    importance: Importance | None = None
    penalties: tuple[Penalty, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    stages: tuple[Stage, ...] = (LEARN,)  # for every task, in this order
    replay: Replay | None = None
    multi: bool = False  # several learners (five by default) instead of one
    apart: bool = False  # learners are independent, each with its own heads; tests average their predictions
    # sequential: task after task. joint: all tasks at once. restart: every task from the first weights.
    # discrete: every task by a learner of its own.
    schedule: Literal["sequential", "joint", "restart", "discrete"] = "sequential"
    from_first: bool = False  # penalties act, and adapt, from the first task on, whatever the regime says

    def __post_init__(self) -> None:
        for penalty in self.penalties:
            members = ("learned", "value", *(() if _on_weights(penalty) else ("strength", "validated")))
            if not all(hasattr(penalty, name) for name in members):
                raise ConfigError(
                    f"{penalty!r} is no penalty. One on weights has learned, value and forces; one on predictions "
                    "has strength, validated, learned and value (see kenyon.methods.penalties)."
                )
        if unknown := sorted(self.needs - NEEDS):
            raise ConfigError(f"A penalty needs {unknown[0]!r}. It may need {' and '.join(sorted(NEEDS))}.")

    @property
    def learners(self) -> int:
        """The default number of learners."""
        return LEARNERS if self.multi else 1

    @property
    def active_column(self) -> bool:
        """True if the network needs a second column."""
        return any(stage.active_column for stage in self.stages)

    def learned(self, bare: Net) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters that penalties learn themselves, for `Net(learned=...)`."""
        return {name: shape for penalty in self.penalties for name, shape in penalty.learned(bare).items()}

    @cached_property  # every step asks
    def parameter_penalties(self) -> tuple[ParameterPenalty, ...]:
        """Penalties on weights."""
        return tuple(p for p in self.penalties if _on_weights(p))  # type: ignore[misc]

    @cached_property  # every step asks
    def prediction_penalties(self) -> tuple[PredictionPenalty, ...]:
        """Penalties on predictions."""
        return tuple(p for p in self.penalties if not _on_weights(p))  # type: ignore[misc]

    @cached_property  # every step asks
    def needs(self) -> frozenset[str]:
        """The needs of penalties on predictions besides the joint prediction, some of `NEEDS`."""
        return frozenset().union(*(needs_of(penalty) for penalty in self.prediction_penalties))


def _on_weights(penalty: Penalty) -> bool:
    return hasattr(penalty, "forces")
