"""AF-2 as a plain loss: decay towards an expanded network that learns the new task alone (AFEC)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.importance import GradientImportance, fisher_published
from kenyon.strengths import check_strength
from kenyon.tools.batches import Predict, inputs_and_labels
from kenyon.tools.distance import distance
from kenyon.tools.measuring import measured
from kenyon.tools.parameters import Chosen, Excluded, check_shapes, like


class AF2:
    """strength / 2 * sum_m I_e,m (theta_m - theta_e,m)^2, as in `kenyon.penalties.ActiveForgetting2`.

        forgetting = AF2(model, strength=1.0, exclude="heads")
        ...                                    # one epoch of forgetting.network by an optimiser of its own, then
        forgetting.measure(loader)             # its Fisher information I_e, and an epoch of the model with
        loss = cross_entropy(model(x), y) + forgetting()

    `network` is a copy of the model as it is now, before the first task; it goes on from task to task. The loss is 0
    until it has been measured.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float,
        exclude: Excluded = (),
        importance: GradientImportance | None = None,
    ) -> None:
        """`importance`: of the expanded network, otherwise the published Fisher information."""
        check_strength("strength", strength)
        self.strength = strength
        self.chosen = Chosen(model, exclude)
        self.network = copy.deepcopy(self.chosen.model)
        self.definition = importance or fisher_published()
        self.importance: dict[str, Tensor] = {}  # by the parameter's name; none before the first measurement

    def __call__(self) -> Tensor:
        """The penalty on the model's weights as they are; 0 before the first measurement."""
        parameters = self.chosen.named()
        if not self.importance:
            return torch.zeros((), device=next(iter(parameters.values())).device)
        self.importance = like(self.importance, parameters)
        target = like({name: p.detach() for name, p in self._expanded().items()}, parameters)
        return self.strength * 0.5 * distance(parameters, target, self.importance)

    def measure(self, loader: Iterable[Any], predict: Predict = inputs_and_labels) -> None:
        """The expanded network has learned for an epoch: measure what matters to it, on the task's training data."""
        self.importance = measured(self.definition, self.network, self._expanded(), loader, predict)

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "importance": dict(self.importance)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not {"network", "importance"} <= set(state):
            raise ConfigError("This is no state of AF2. Give what its state_dict() gave.")
        importance = self.chosen.restored(state["importance"], "the saved importance") if state["importance"] else {}
        self.network.load_state_dict(state["network"])
        self.importance = importance

    def _expanded(self) -> dict[str, nn.Parameter]:
        """The expanded network's parameters that count."""
        found = {n: p for n, p in self.network.named_parameters() if n in self.chosen.shapes}
        check_shapes(self.chosen.shapes, {n: tuple(p.shape) for n, p in found.items()}, "the expanded network")
        return found
