"""The training regime of a benchmark, as data, and its learning rate schedules."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from kenyon.errors import ConfigError, expected, shown

OptimiserName = Literal["adam", "sgd"]
ScheduleName = Literal["plateau", "step"]
LARGEST = 3.4e38  # of numbers in single precision
MOST_EPOCHS = 2**31 - 1

_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
}


def check_fields(regime: Any) -> None:
    """Check that the fields of a regime have the types of their annotations."""
    for field in fields(regime):
        kind, words = _KINDS.get(str(field.type), (object, ""))
        value = getattr(regime, field.name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (Integral, Real)):
            raise expected(field.name, words, value)


@dataclass(frozen=True)
class Training:
    """The training regime of a benchmark. Defaults: CIFAR family (Supplementary Section 2.2).

    schedule plateau: a validation loss that does not improve for `patience` epochs divides the rate by `drop` and
    resets the optimizer; the weights with the best loss are kept. schedule step: the rate is divided by `drop` once,
    after `drop_epoch` epochs; nothing is validated and the final weights are kept.
    """

    epochs: int = 100  # of every task; final epochs that can change nothing are skipped (`Plateau`)
    batch: int = 256
    rate: float = 1e-3  # the learning rate at the start of every task
    patience: int = 5
    drop: float = 3.0
    validation: float = 0.1  # share of the training data held out; 0 with schedule step
    optimiser: OptimiserName = "adam"
    momentum: float = 0.9  # of sgd
    schedule: ScheduleName = "plateau"
    drop_epoch: int = 30
    carry: bool = False  # the optimizer's momentum is carried from task to task, except for that of task heads
    penalties_from: int = 2  # the first task, counted from 1, in which penalties on weights act
    # Importances are bounded by the stability limit of sgd (`backends.optimizers.bound`). Not published.
    bounded: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the settings; later additions are left out at their defaults: earlier files compare equal."""
        return {name: value for name, value in asdict(self).items() if name != "bounded" or value}

    def __post_init__(self) -> None:
        check_fields(self)
        whole = (("epochs", 1), ("batch", 1), ("patience", 1), ("drop_epoch", 1), ("penalties_from", 1))
        for name, least in whole:
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {shown(getattr(self, name))}.")
        if self.epochs > MOST_EPOCHS:
            raise ConfigError(f"epochs must be at most {MOST_EPOCHS:,}, not {shown(self.epochs)}.")
        for name in ("rate", "drop"):
            value = getattr(self, name)
            if not 0 < value <= LARGEST:  # nor NaN
                raise ConfigError(
                    f"{name} must be a finite number above 0 (below {LARGEST:.1g}), not {shown(value)}."
                )
            if isinstance(value, int) and value >= 2**63:
                object.__setattr__(self, name, float(value))  # PyTorch knows no whole numbers beyond
        for name, words in (("optimiser", OptimiserName), ("schedule", ScheduleName)):
            if getattr(self, name) not in get_args(words):
                raise ConfigError(f"{name} must be {' or '.join(get_args(words))}, not '{getattr(self, name)}'.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be 0 or larger and below 1, not {self.momentum}.")
        if self.schedule == "step":
            if self.validation != 0:
                raise ConfigError(
                    f"schedule step validates nothing: validation must be 0, not {self.validation}. "
                    "Set validation=0, or schedule=plateau."
                )
        elif not 0 < self.validation < 1:
            raise ConfigError(f"validation is a share between 0 and 1, not {self.validation}.")


# How far above its best a loss must be, relative to the change that is still possible, for a run to be settled.
SAFETY = 5.0


class Schedule:
    """How the learning rate falls within a task, and which of its weights the task leaves."""

    validates = False  # follows the validation loss after every epoch
    dropped: Tensor | None = None  # (R,) 1 for runs whose rate fell after the last epoch, if it follows the loss
    settled: Tensor | None = None  # (R,) 1 for runs whose best weights cannot change any more in this phase

    @property
    def settles(self) -> bool:
        """False if every epoch of a phase is trained."""
        return False

    def never_settle(self) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the state, which checkpoints save."""
        return {}

    def begin(self, theta: Tensor) -> None:
        """Start a phase."""

    def before_epoch(self, epoch: int, rate: Tensor) -> None: ...

    def follow(self, theta: Tensor, loss: Tensor, rate: Tensor) -> Tensor:
        """Take the validation losses (R,) of an epoch, and lower rates; return which fell, (R,) bool."""
        raise NotImplementedError(
            f"{type(self).__name__} follows no loss: a schedule that validates defines follow()."
        )

    def finish(self, theta: Tensor) -> None:
        """Put the weights that the phase leaves into theta (R, P)."""


class Plateau(Schedule):
    """Lowers the rate of a run when its validation loss stops improving, and keeps the best weights.

    A run is settled when no later epoch can bring better weights: its rate falls, and its loss is above the best by
    `SAFETY` times the change that is still possible. Later weights of a settled run are not kept, whichever runs
    train on. The change that is still possible: as long as the loss is not better, the rate falls every `patience`
    epochs, and the changes with it: patience * swing * (1 / drop + 1 / drop^2 + ...), where swing is the largest
    change from one epoch to the next at the previous rate.
    """

    validates = True
    dropped: Tensor
    settled: Tensor

    def __init__(self, training: Training, theta: Tensor) -> None:
        self.patience, self.drop = training.patience, training.drop
        # In swings; rates that do not fall never settle.
        self.reach = SAFETY * self.patience / (self.drop - 1) if self.drop > 1 else torch.inf
        self.best = theta.clone()  # (R, P) the weights with the lowest validation loss

        def zeros() -> Tensor:
            return torch.zeros(len(theta), device=theta.device)

        self.best_loss, self.waited, self.dropped = zeros(), zeros(), zeros()
        self.before, self.swing, self.settled = zeros(), zeros(), zeros()

    @property
    def settles(self) -> bool:
        return self.reach < torch.inf

    def never_settle(self) -> None:
        self.reach = torch.inf

    def tensors(self) -> dict[str, Tensor]:
        names = ("best", "best_loss", "waited", "before", "swing", "settled", "dropped")
        return {name: getattr(self, name) for name in names}

    def begin(self, theta: Tensor) -> None:
        self.best.copy_(theta)
        self.best_loss.fill_(torch.inf)
        self.swing.fill_(torch.inf)  # there is no rate before the first
        for tensor in (self.waited, self.before, self.settled):
            tensor.zero_()

    def follow(self, theta: Tensor, loss: Tensor, rate: Tensor) -> Tensor:
        better = (loss < self.best_loss) & (self.settled == 0)
        self.best_loss.copy_(torch.where(better, loss, self.best_loss))
        self.best.copy_(torch.where(better.unsqueeze(1), theta, self.best))
        self.waited.add_(1).masked_fill_(better, 0.0)
        self.swing.copy_(torch.maximum(self.swing, (loss - self.before).abs()))
        self.before.copy_(loss)
        fell = self.waited >= self.patience
        rate.copy_(torch.where(fell, rate / self.drop, rate))
        self.settled.masked_fill_(fell & (loss - self.best_loss > self.reach * self.swing), 1.0)
        self.waited.masked_fill_(fell, 0.0)
        self.swing.masked_fill_(fell, 0.0)
        self.dropped.copy_(fell)
        return fell

    def finish(self, theta: Tensor) -> None:
        theta.copy_(self.best)


class StepDecay(Schedule):
    """Lowers the rate once, after `drop_epoch` epochs; keeps the final weights."""

    def __init__(self, training: Training) -> None:
        self.drop, self.drop_epoch = training.drop, training.drop_epoch

    def before_epoch(self, epoch: int, rate: Tensor) -> None:
        if epoch == self.drop_epoch:
            rate.div_(self.drop)


def choose_schedule(training: Training, theta: Tensor) -> Schedule:
    return Plateau(training, theta) if training.schedule == "plateau" else StepDecay(training)
