"""What a method adds to a loss: its penalties on predictions and on weights, for the fleet at work."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.forces import Force
from kenyon.hooks import Hooks
from kenyon.methods import Method
from kenyon.nets import Net, Outputs
from kenyon.nets.layout import Rows
from kenyon.penalties import Penalty, PredictionPenalty, Predictions, Weights, strength_of
from kenyon.train.device import Runs


class Terms:
    def __init__(
        self,
        net: Net,
        method: Method,
        heads: Tensor,
        theta: Tensor,
        importance: Tensor,
        anchor: Tensor,
        hooks: Sequence[Hooks],
    ) -> None:
        """The tensors are the trainer's, and stay in place. `heads` (n,) are those in use."""
        self.net, self.method, self.heads = net, method, heads
        self.theta, self.importance, self.anchor, self.hooks = theta, importance, anchor, hooks
        self.penalised = False  # whether penalties on the weights act in this phase
        self.first_task = True  # whether penalties on predictions do not adapt yet

    @property
    def needs_own(self) -> bool:
        """Whether each learner's own prediction is looked at."""
        return any(penalty.needs_own for penalty in self.method.prediction_penalties)

    def values(self) -> list[Tensor]:
        """What the penalties on weights amount to, (R,) each, of those that count in the validation loss."""
        if not self.penalised:
            return []
        weights = self._weights()
        counting = (p for p in self.method.parameter_penalties if getattr(p, "validated", True))
        return [_one_each(penalty, penalty.value(weights), (len(self.theta),)) for penalty in counting]

    def forces(self, gradient: Tensor) -> list[Force]:
        """The gradients of the penalties on weights; what these have learned gets its own in `gradient`."""
        if not self.penalised:
            return []
        weights = self._weights()
        each = ((penalty, penalty.forces(weights, gradient)) for penalty in self.method.parameter_penalties)
        return [force for penalty, forces in each for force in _listed(penalty, forces)]

    def said(
        self, penalties: Sequence[PredictionPenalty], run: Runs, row: Rows, out: Outputs, weight: Tensor
    ) -> Tensor:
        """Penalties on predictions, of samples that count with the given weights (..., B)."""
        views = self.net.layout.views(row, frozenset(self.net.learned))
        seen = Predictions(
            log_p=out.logits.log_softmax(-1),
            own_log_p=None if out.own_logits is None else out.own_logits.log_softmax(-1),
            weight=weight,
            learned={name: views[name] for name in self.net.learned},
            first_task=self.first_task,
        )
        values = [_one_each(penalty, penalty.value(seen), weight.shape[:-1]) for penalty in penalties]
        strengths = [strength_of(penalty.strength, run) for penalty in penalties]
        terms = [_repeated(strength, value) * value for strength, value in zip(strengths, values, strict=True)]
        return sum(terms[1:], terms[0])

    def _weights(self) -> Weights:
        """What penalties on weights look at."""
        of_hooks = {name: tensor for hook in self.hooks for name, tensor in hook.shown().items()}
        return Weights(self.net, self.theta, self.heads, self.importance, self.anchor, **of_hooks)


def _repeated(strength: float | Tensor, value: Tensor) -> float | Tensor:
    """For every row, also where several batches of each run lie side by side."""
    if not isinstance(strength, Tensor) or strength.shape == value.shape:
        return strength
    return strength.repeat_interleave(len(value) // len(strength))


def _one_each(penalty: Penalty, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Somebody's own penalty may sum over runs too, and each would then count those beside it."""
    if isinstance(value, Tensor) and value.shape == shape:
        return value
    found = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise ConfigError(
        f"The value of {type(penalty).__name__} is {found}. It must be one number a run, here of the shape "
        f"{tuple(shape)}: sum over what belongs to a run, and not over runs."
    )


def _listed(penalty: Penalty, forces: list[Force]) -> list[Force]:
    whole = forces if isinstance(forces, (list, tuple)) else [forces]
    strange = [type(force).__name__ for force in whole if not isinstance(force, Force)]
    if whole is forces and not strange:
        return list(forces)
    found = f"a list with {strange[0]} in it" if whole is forces else f"no list but {type(forces).__name__}"
    raise ConfigError(
        f"The forces of {type(penalty).__name__} are {found}. They must be a list of what pulls on the weights (see "
        "kenyon.forces), empty where nothing does: return [Pull(...)]."
    )
