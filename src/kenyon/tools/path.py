"""The path integral of synaptic intelligence, followed through the steps of a user's optimisers."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.tools.parameters import Chosen, like, precise
from kenyon.tracked import PathImportance


class Path:
    """Sums -gradient * change of every parameter over the steps of a task, as `kenyon.tracked` does for fleets."""

    def __init__(self, definition: PathImportance, chosen: Chosen) -> None:
        self.definition, self.chosen = definition, chosen
        self.followed: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.begin_task(chosen.named())

    def begin_task(self, parameters: dict[str, nn.Parameter]) -> None:
        self.steps = 0  # followed since the task began
        self.start = {name: p.detach().to(precise(p), copy=True) for name, p in parameters.items()}
        self.path = {name: torch.zeros_like(start) for name, start in self.start.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles follow nothing: an optimiser's hooks are no part of those."""
        return {name: value for name, value in self.__dict__.items() if name != "followed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, followed=WeakSet())

    def follow(self, optimiser: torch.optim.Optimizer) -> None:
        """From its next step on; asked twice, once."""
        if optimiser in self.followed:
            return
        mine = {id(p) for group in optimiser.param_groups for p in group["params"]}
        if not any(id(p) in mine for p in self.chosen.named().values()):
            if any(id(p) in mine for p in self.chosen.model.parameters()):
                return  # it moves excluded parts alone
            raise ConfigError(
                f"This {type(optimiser).__name__} moves none of the parameters that are protected: it was made for "
                "another model, or before this one was copied. Make one of this model's parameters and track that."
            )
        self.followed.add(optimiser)
        before: dict[str, Tensor] = {}  # the weights that the step at hand moves, as they were

        def before_step(*_: Any) -> None:
            # Without a look at the gradients: a step with a closure computes them only now.
            mine = {id(p) for group in optimiser.param_groups for p in group["params"]}
            before.clear()
            before.update({n: p.detach().clone() for n, p in self.chosen.named().items() if id(p) in mine})

        @torch.no_grad()
        def after_step(*_: Any) -> None:
            parameters = self.chosen.named()
            self.path = like(self.path, parameters)
            # A GradScaler leaves this with optimisers that skip a step by themselves, where gradients are infinite.
            skipped: Tensor | None = getattr(optimiser, "found_inf", None)
            for name, weights in before.items():
                gradient = parameters[name].grad
                if gradient is None:
                    continue
                if skipped is not None:
                    gradient = gradient.masked_fill(skipped > 0, 0.0)
                into = self.path[name]
                into.addcmul_(gradient.to(into.dtype), (parameters[name] - weights).to(into.dtype), value=-1)
            self.steps += 1

        optimiser.register_step_pre_hook(before_step)
        optimiser.register_step_post_hook(after_step)

    def estimate(self, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """The importance of every parameter for the task, when its last weights are known."""
        if not self.steps:
            raise ConfigError(
                f"{self.definition.name} is measured along the way, and no step was followed since the last task. "
                "Call track(optimiser) before training, for every optimiser that is made."
            )
        self.path, self.start = like(self.path, parameters), like(self.start, parameters)
        return {
            name: self.definition.weigh(self.path[name], p.detach() - self.start[name])
            for name, p in parameters.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "start": dict(self.start), "path": dict(self.path)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        start, path = (self.chosen.restored(state[kind], f"the saved {kind}") for kind in ("start", "path"))
        self.steps, self.start, self.path = state["steps"], start, path
