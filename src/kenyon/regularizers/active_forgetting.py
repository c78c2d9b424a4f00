"""Active forgetting as plain losses, AF-1, AF-2 and AF-S, and several learners with a shared head as a module."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.methods.importance import GradientImportance, fisher_published
from kenyon.methods.penalties.predictions import Divergence, DivergenceForm, Predictions
from kenyon.methods.penalties.strength import check_strength
from kenyon.methods.penalties.weights import weighed
from kenyon.regularizers.measuring import Predict, inputs_and_labels, measured
from kenyon.regularizers.parameters import Chosen, Excluded, Learned, check_shapes, check_state, like, precise
from kenyon.regularizers.protection import distance


class Collaborative(nn.Module):
    """K learners whose output vectors are summed for the head; the head of one vector is a learner's own prediction.

    It is `kenyon.models.Net` for modules of any kind. Initialize learners one by one: copies start equal.
    """

    def __init__(self, backbones: Sequence[nn.Module], heads: nn.Module | Sequence[nn.Module]) -> None:
        """Each backbone maps a batch to vectors (B, F); `heads` map those to logits: one, or one a task."""
        super().__init__()
        if len(backbones) < 1:
            raise ConfigError("There must be at least one backbone.")
        if len({id(backbone) for backbone in backbones}) < len(backbones):
            raise ConfigError(
                "A backbone is given twice: these learners would share their weights. Give each learner its own."
            )
        self.backbones = nn.ModuleList(backbones)
        if isinstance(heads, nn.Module) and not isinstance(heads, nn.ModuleList):
            heads = [heads]
        self.heads = nn.ModuleList(heads)

    @property
    def learners(self) -> int:
        return len(self.backbones)

    @overload
    def forward(self, x: Tensor, task: int = 0, *, own: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, task: int = 0, *, own: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, task: int = 0, *, own: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return the joint logits (B, C); with `own`, also those of each learner alone, (K, B, C)."""
        each = [backbone(x) for backbone in self.backbones]
        if any(vector.shape[-1] != each[0].shape[-1] for vector in each):
            widths = ", ".join(str(vector.shape[-1]) for vector in each)
            raise ConfigError(f"Backbones must give vectors of one length, to be summed, and these give {widths}.")
        vectors = torch.stack(each)  # (K, B, F)
        if not 0 <= task < len(self.heads):
            raise ConfigError(f"There is no head {task}: there are {len(self.heads)}, counted from 0.")
        head = self.heads[task]
        logits = head(vectors.sum(0))
        if not own:
            return logits
        return logits, head(vectors.flatten(0, 1)).unflatten(0, (self.learners, -1))


class AF1(Learned):
    """strength / 2 * sum of theta^2, as in `kenyon.methods.penalties.weights.ActiveForgetting1`.

        forgetting = AF1(model, strength=1e-6, exclude="heads")
        loss = cross_entropy(model(x, task), y) + forgetting(model.heads[task])     # from the second task on

    adaptive: of a `Collaborative` model, every parameter tensor l weighs its K learners by K * softmax(a_l), with a_l
    learned: pass `forgetting.parameters()` to the optimizer as well. All other parameters have weight 1.
    """

    def __init__(self, model: nn.Module, *, strength: float, adaptive: bool = False, exclude: Excluded = ()) -> None:
        """`exclude`: what does not decay, usually the heads; calls name the head in use."""
        check_strength("strength", strength)
        chosen = Chosen(model, exclude)
        tensors = _by_learner(chosen) if adaptive else []
        super().__init__((len(tensors), len(tensors[0])) if adaptive else None)
        self.chosen, self.strength = chosen, strength
        self.tensors = tensors  # that are weighed: L lists of the K learners' names
        self.to(next(iter(chosen.named().values())).device)

    def forward(self, *heads: nn.Module) -> Tensor:
        """Return the penalty on everything that is not excluded, and on these modules."""
        parameters = self.chosen.named()
        a, sums = self.averaged(), {name: _square_sum(p) for name, p in parameters.items()}
        there = {id(p) for p in parameters.values()}
        used = [_square_sum(p) for head in heads for p in head.parameters() if id(p) not in there]
        total = torch.stack([*sums.values(), *used]).sum() if a is None else self._adapted(sums, used, a)
        return self.strength * 0.5 * total

    def _adapted(self, sums: dict[str, Tensor], used: list[Tensor], a: Tensor) -> Tensor:
        norms = torch.stack([torch.stack([sums[name] for name in names]) for names in self.tensors])  # (L, K)
        inside = {name for names in self.tensors for name in names}
        rest = [value for name, value in sums.items() if name not in inside]
        return sum([*rest, *used], weighed(norms, a).sum())


def _by_learner(chosen: Chosen) -> list[list[str]]:
    model = next((module for module in chosen.model.modules() if isinstance(module, Collaborative)), None)
    if model is None:
        raise ConfigError(
            f"Adaptive AF-1 weighs learners against each other, and {type(chosen.model).__name__} has no "
            "Collaborative module in it. Put its learners into one, or leave adaptive=False."
        )
    names = {id(parameter): name for name, parameter in chosen.named().items()}
    learners = [dict(backbone.named_parameters()) for backbone in model.backbones]
    if any(list(learner) != list(learners[0]) for learner in learners):
        raise ConfigError("Adaptive AF-1 weighs equal tensors of learners: all backbones need the same parameters.")
    tensors = [[names.get(id(learner[own])) for learner in learners] for own in learners[0]]
    found = [[name for name in same if name is not None] for same in tensors]
    if any(0 < len(same) < len(learners) for same in found) or not any(found):
        raise ConfigError("Adaptive AF-1 weighs equal tensors of learners. Exclude a tensor of all or of none.")
    return [same for same in found if same]


def _square_sum(parameter: Tensor) -> Tensor:
    return parameter.square().sum(dtype=precise(parameter))


class AF2:
    """strength / 2 * sum_m I_e,m (theta_m - theta_e,m)^2, as in `kenyon.methods.penalties.weights.ActiveForgetting2`.

        forgetting = AF2(model, strength=1.0, exclude="heads")
        ...                                    # one epoch of forgetting.network by an optimizer of its own, then
        forgetting.measure(loader)             # its Fisher information I_e, and an epoch of the model with
        loss = cross_entropy(model(x), y) + forgetting()

    `network` is a copy of the model before the first task, and is trained from task to task. The loss is 0 until it
    has been measured.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float,
        exclude: Excluded = (),
        importance: GradientImportance | None = None,
    ) -> None:
        """`importance`: that of the expanded network, by default the published Fisher information."""
        check_strength("strength", strength)
        self.strength = strength
        self.chosen = Chosen(model, exclude)
        self.network = copy.deepcopy(self.chosen.model)
        self.definition = importance or fisher_published()
        self.importance: dict[str, Tensor] = {}  # by the parameter's name; none before the first measurement

    def __call__(self) -> Tensor:
        """Return the penalty on the current weights; 0 before the first measurement."""
        parameters = self.chosen.named()
        if not self.importance:
            return torch.zeros((), device=next(iter(parameters.values())).device)
        self.importance = like(self.importance, parameters)
        target = like({name: p.detach() for name, p in self._expanded().items()}, parameters)
        return self.strength * 0.5 * distance(parameters, target, self.importance)

    def measure(self, loader: Iterable[Any], predict: Predict = inputs_and_labels) -> None:
        """Measure the importance of the expanded network on the task's training data, after an epoch of it."""
        self.importance = measured(self.definition, self.network, self._expanded(), loader, predict)

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "importance": dict(self.importance)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, "AF2", "network", "importance")
        importance = self.chosen.restored(state["importance"], "the saved importance") if state["importance"] else {}
        self.network.load_state_dict(state["network"])
        self.importance = importance

    def _expanded(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the expanded network that are not excluded."""
        found = {n: p for n, p in self.network.named_parameters() if n in self.chosen.shapes}
        check_shapes(self.chosen.shapes, {n: tuple(p.shape) for n, p in found.items()}, "the expanded network")
        return found


class AFS(Learned):
    """strength * sum over pairs of learners of w * KL, mean over the batch, as `kenyon.methods.penalties.Divergence`.

        learning = AFS(learners=5, strength=0.02)
        logits, own = model(x, task, own=True)            # of a `Collaborative`
        loss = cross_entropy(logits, y) + learning(own)

    adaptive: the weights w are learned: pass `learning.parameters()` to the optimizer as well, and call
    `begin_task()` when a task begins. They are 1 on the first task.
    """

    def __init__(
        self,
        learners: int,
        *,
        strength: float,
        adaptive: bool = False,
        form: DivergenceForm = "published",
    ) -> None:
        check_strength("strength", strength)
        if learners < 2:
            raise ConfigError(f"AF-S compares learners: there must be at least 2, not {learners}.")
        super().__init__((learners, learners) if adaptive else None)
        self.learners, self.strength = learners, strength
        self.divergence = Divergence(1.0, adaptive, form)

    def forward(self, own_logits: Tensor) -> Tensor:
        """Return the penalty for the logits of each learner alone, (K, B, C)."""
        if own_logits.ndim != 3 or own_logits.shape[0] != self.learners or own_logits.shape[1] == 0:
            raise ConfigError(
                f"AF-S takes the logits of each of {self.learners} learners alone, ({self.learners}, samples, "
                f"classes), not {tuple(own_logits.shape)}. A Collaborative gives them with own=True."
            )
        # In float32 at least: these are differences of sums of logarithms.
        with torch.autocast(own_logits.device.type, enabled=False):
            own = own_logits.to(precise(own_logits)).log_softmax(-1)
            samples, b = own.shape[1], self.averaged()
            seen = Predictions(
                log_p=own[0],  # not used
                own_log_p=own,
                weight=own.new_full((samples,), 1 / samples),
                learned={} if b is None else {"afs": b},
                first_task=self.tasks_begun < 2,
            )
            return self.strength * self.divergence.value(seen)
