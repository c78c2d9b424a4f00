"""Stability protection as a plain loss: EWC, MAS and SI for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError, unknown
from kenyon.importance import GradientImportance, Merge, accumulated, fisher_exact, fisher_published, mas
from kenyon.strengths import check_strength
from kenyon.tools.batches import Predict, inputs_and_labels
from kenyon.tools.distance import distance
from kenyon.tools.measuring import check_batch, check_finite, measured
from kenyon.tools.parameters import Chosen, Excluded, bare_optimizer, like, precise
from kenyon.tools.path import Path
from kenyon.tracked import PathImportance, si

NAMED: dict[str, Callable[[], GradientImportance | PathImportance]] = {
    "ewc": fisher_published,
    "ewc-exact": fisher_exact,
    "mas": mas,
    "si": si,
}


class Protection:
    """factor * strength * sum_m importance_m (theta_m - anchor_m)^2, as in `kenyon.penalties.StabilityProtection`.

        protection = Protection(model, "ewc", strength=1e4, exclude="head")
        loss = cross_entropy(model(x), y) + protection()      # 0 until the first task is consolidated
        protection.consolidate(loader)                        # when a task has been learned

    importance: ewc (the published Fisher of batches of 20, a running average over tasks), ewc-exact (of single
    samples, summed), mas, si, or a value of `kenyon.importance` or `kenyon.tracked.si`. factor is 1/2, and 1 for si.
    """

    def __init__(
        self,
        model: nn.Module,
        importance: str | GradientImportance | PathImportance = "ewc",
        *,
        strength: float,
        exclude: Excluded = (),
        accumulate: Merge | None = None,
    ) -> None:
        """`exclude`: what is not protected, usually the heads. `accumulate`: over tasks, average, sum, last or a
        number from 0 to 1 by which what was before decays; otherwise as the importance is published.
        """
        check_strength("strength", strength)
        self.definition = find_definition(importance, accumulate)
        self.chosen = Chosen(model, exclude)
        self.strength = strength
        self.factor = 1.0 if isinstance(self.definition, PathImportance) else 0.5
        self.tasks = 0  # that were consolidated
        self.importance: dict[str, Tensor] = {}  # by the parameter's name; none before the first consolidation
        self.anchor: dict[str, Tensor] = {}
        self.path: Path | None = None
        if isinstance(self.definition, PathImportance):
            self.path = Path(self.definition, self.chosen)

    def __call__(self) -> Tensor:
        """The penalty on the weights as they are: a number to add to the loss; 0 before the first consolidation."""
        parameters = self.chosen.named()
        if not self.importance:
            return torch.zeros((), device=next(iter(parameters.values())).device)
        self.importance, self.anchor = like(self.importance, parameters), like(self.anchor, parameters)
        return self.strength * self.factor * distance(parameters, self.anchor, self.importance)

    def track(self, *optimisers: torch.optim.Optimizer) -> None:
        """Follow every step of these optimisers. For si, which is measured along the way; others need it not."""
        if self.path is None:
            return
        for optimiser in map(bare_optimizer, optimisers):
            if not isinstance(optimiser, torch.optim.Optimizer):
                raise ConfigError(f"track takes optimisers of torch.optim, not a {type(optimiser).__name__}.")
            self.path.follow(optimiser)

    def consolidate(self, loader: Iterable[Any] | None = None, predict: Predict = inputs_and_labels) -> None:
        """A task has been learned: weigh the weights on its training data, and hold them where they are.

        `predict` gives logits and labels of a batch, where the loader's batches are not (inputs, labels) or the model
        needs more than the inputs. si needs no loader.
        """
        parameters = self.chosen.named()
        if self.path is not None:
            found = self.path.estimate(parameters)
            check_finite(found)
        elif loader is None:
            raise ConfigError(f"{self.definition.name} is measured on the task's training data: consolidate(loader).")
        else:
            assert isinstance(self.definition, GradientImportance)
            found = measured(self.definition, self.chosen.model, parameters, loader, predict)
        before = like(self.importance, parameters)
        self.importance = {
            name: accumulated(before.get(name, torch.zeros_like(new)), new, self.tasks, self.definition.accumulate)
            for name, new in found.items()
        }
        self.anchor = {name: p.detach().to(precise(p), copy=True) for name, p in parameters.items()}
        self.tasks += 1
        if self.path is not None:
            self.path.begin_task(parameters)

    def check(self, batch: Any, predict: Predict = inputs_and_labels) -> None:
        """Refuse a batch that `consolidate` could not measure importance on: to be called before training."""
        if isinstance(self.definition, GradientImportance):
            check_batch(self.definition, self.chosen.model, batch, predict)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings, for the checkpoint of the loop around it."""
        tensors = {"importance": dict(self.importance), "anchor": dict(self.anchor)}
        path = {} if self.path is None else {"path": self.path.state_dict()}
        return {"definition": self.definition.name, "tasks": self.tasks, **tensors, **path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave. The settings and the model's parameters must be those of then."""
        if not isinstance(state, dict) or not {"definition", "tasks", "importance", "anchor"} <= set(state):
            raise ConfigError("This is no state of a Protection. Give what its state_dict() gave.")
        if state["definition"] != self.definition.name:
            raise ConfigError(
                f"The state is one of {state['definition']}, and this protection measures {self.definition.name}. "
                "Make it with the same importance."
            )
        importance, anchor = (
            self.chosen.restored(state[kind], f"the saved {kind}") if state["tasks"] else {}
            for kind in ("importance", "anchor")
        )
        if self.path is not None:
            self.path.load_state_dict(state["path"])
        self.tasks, self.importance, self.anchor = state["tasks"], importance, anchor


def find_definition(
    importance: str | GradientImportance | PathImportance, accumulate: Merge | None
) -> GradientImportance | PathImportance:
    """Of an importance that is named or given."""
    if isinstance(importance, str):
        if importance not in NAMED:
            raise unknown("importance", importance, NAMED)
        importance = NAMED[importance]()
    if not isinstance(importance, (GradientImportance, PathImportance)):
        raise ConfigError(f"importance is one of {', '.join(NAMED)} or a definition of one, not {importance!r}.")
    if isinstance(importance, GradientImportance) and importance.penalised:
        raise ConfigError(f"{importance.name} includes the gradient of penalties, which a plain loss does not know.")
    if accumulate is None:
        return importance
    return replace(importance, accumulate=float(accumulate) if isinstance(accumulate, int) else accumulate)
