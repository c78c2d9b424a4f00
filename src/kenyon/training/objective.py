"""The penalties of a method in one training, and the check that network, tasks and method fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kenyon.backends.layout import Rows
from kenyon.backends.triton.updates import Force
from kenyon.data.tasks import Stream
from kenyon.errors import ConfigError
from kenyon.methods.base import Method
from kenyon.methods.penalties.weights import Penalty, PredictionPenalty, Predictions, Weights, strength_of
from kenyon.models import Net, Outputs, Pictures
from kenyon.training.device import Runs
from kenyon.training.gradients import PredictionLoss


class Penalties:
    """The penalties of a method on the weights and predictions of one training."""

    def __init__(
        self,
        net: Net,
        method: Method,
        heads: Tensor,
        theta: Tensor,
        importance: Tensor,
        anchor: Tensor,
        shown: Sequence[Callable[[], dict[str, Tensor]]] = (),
        teacher: Tensor | None = None,
    ) -> None:
        """The tensors are the trainer's, and stay in place. `heads` (n,) are those in use; `shown` give the tensors
        that mechanisms show to penalties on weights. `teacher` (R, P): the network that the previous task left.
        """
        self.net, self.method, self.heads = net, method, heads
        self.theta, self.importance, self.anchor, self.shown = theta, importance, anchor, shown
        self.teacher = teacher
        self.earlier: Tensor | None = None  # (n,) heads of earlier tasks, if there are any and a penalty needs them
        self.active = False  # penalties on weights act in this phase
        self.first_task = True  # penalties on predictions do not adapt yet

    @property
    def needs_own(self) -> bool:
        """True if a penalty needs each learner's own prediction."""
        return "learner_outputs" in self.method.needs

    @property
    def validated(self) -> PredictionLoss | None:
        """The penalties on predictions that count in the validation loss; none needs learners' own outputs."""
        counting = [penalty for penalty in self.method.prediction_penalties if penalty.validated]
        return partial(self.on_predictions, counting) if counting else None

    def values(self) -> list[Tensor]:
        """Return the values (R,) of the penalties on weights that count in the validation loss."""
        if not self.active:
            return []
        weights = self._weights()
        counting = (p for p in self.method.parameter_penalties if getattr(p, "validated", True))
        return [_one_each(penalty, penalty.value(weights), (len(self.theta),)) for penalty in counting]

    def forces(self, gradient: Tensor) -> list[Force]:
        """Return the gradients of penalties on weights; those of their own learned parameters are added to
        `gradient`.
        """
        if not self.active:
            return []
        weights = self._weights()
        each = ((penalty, penalty.forces(weights, gradient)) for penalty in self.method.parameter_penalties)
        return [force for penalty, forces in each for force in _listed(penalty, forces)]

    def on_predictions(
        self,
        penalties: Sequence[PredictionPenalty],
        run: Runs,
        row: Rows,
        out: Outputs,
        weight: Tensor,
        images: Tensor | Pictures | None = None,
    ) -> Tensor:
        """Return the penalties on predictions, for samples with the given weights (..., B). `images` are for the
        teacher; the importance pass has none.
        """
        views = self.net.layout.views(row, frozenset(self.net.learned))
        seen = Predictions(
            log_p=out.logits.log_softmax(-1),
            own_log_p=None if out.own_logits is None else out.own_logits.log_softmax(-1),
            weight=weight,
            learned={name: views[name] for name in self.net.learned},
            first_task=self.first_task,
            earlier=out.earlier,
            teacher=None if out.earlier is None or images is None else self._taught(run, images),
        )
        values = [_one_each(penalty, penalty.value(seen), weight.shape[:-1]) for penalty in penalties]
        strengths = [strength_of(penalty.strength, run) for penalty in penalties]
        terms = [_repeated(strength, value) * value for strength, value in zip(strengths, values, strict=True)]
        return sum(terms[1:], terms[0])

    @torch.no_grad()
    def _taught(self, run: Runs, images: Tensor | Pictures) -> Tensor | None:
        """Return the teacher's logits of the heads of earlier tasks, (..., n, B, C)."""
        assert self.teacher is not None
        return self.net.forward(self.teacher[run], images, self.heads[:1], earlier=self.earlier).earlier

    def _weights(self) -> Weights:
        """Return what penalties on weights see."""
        of_mechanisms = {name: tensor for shown in self.shown for name, tensor in shown().items()}
        return Weights(self.net, self.theta, self.heads, self.importance, self.anchor, **of_mechanisms)


def _repeated(strength: float | Tensor, value: Tensor) -> float | Tensor:
    """Return the strength of every row, also where rows are several batches of each run."""
    if not isinstance(strength, Tensor) or strength.shape == value.shape:
        return strength
    return strength.repeat_interleave(len(value) // len(strength))


def _one_each(penalty: Penalty, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Check that a penalty gives one number a run: a user's penalty may sum over runs by mistake."""
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
        "kenyon.methods.penalties), empty where nothing does: return [QuadraticPull(...)]."
    )


def check_fit(net: Net, streams: Sequence[Stream], method: Method) -> None:
    """Check that network, streams and method fit. All streams are alike (see `Fleet`): the first is checked."""
    if not streams:
        raise ConfigError("There is no stream to learn from. Give one for every run: [source.stream(seed=0)].")
    stream = streams[0]
    counts = net.class_counts * net.tasks if net.shared else net.class_counts
    if counts != stream.class_counts:
        raise ConfigError(
            f"The network was made for tasks of {_counts_listed(counts)} classes, and those of {stream.name} have "
            f"{_counts_listed(stream.class_counts)}. Build it with Net(..., class_counts=stream.class_counts)."
        )
    if net.shared != (stream.heads == "shared"):
        there, wanted = ("one head", "a head a task") if net.shared else ("a head a task", "one head for all")
        raise ConfigError(
            f"The network has {there}, and the tasks of {stream.name} need {wanted}. Build it with "
            "Net(..., shared_head=stream.heads == 'shared')."
        )
    if net.input_shape != stream.input_shape:
        raise ConfigError(
            f"The network was made for samples of the shape {net.input_shape}, and those of {stream.name} have "
            f"{stream.input_shape}. Build it with Net(..., input_shape=stream.input_shape)."
        )
    learned = method.learned(net)
    if learned != net.learned:
        raise ConfigError(
            f"The method learns {_named(learned)} beside the weights, and the network has room for "
            f"{_named(net.learned)}. Build it with Net(..., learned=method.learned(bare)), where bare is the same "
            "network without it."
        )
    if "teacher" in method.needs and net.gate:
        raise ConfigError("The method distills the heads of earlier tasks, which have no task gates: set gate=false.")
    if method.active_column != (net.columns is not None):
        there, wanted = ("has an", "needs none") if net.columns is not None else ("has no", "needs one")
        raise ConfigError(
            f"The network {there} active column, and the method {wanted}. Build it with "
            "Net(..., active_column=method.active_column)."
        )


def _counts_listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def _named(learned: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in learned.items()) or "nothing"
