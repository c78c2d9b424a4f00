"""Stability protection as a plain loss: EWC, MAS and SI for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError, unknown
from kenyon.methods.importance import GradientImportance, Merge, accumulated, fisher_exact, fisher_published, mas
from kenyon.methods.path_importance import PathImportance, si
from kenyon.methods.penalties.strength import check_strength
from kenyon.methods.penalties.weights import square_distance
from kenyon.regularizers.measuring import Predict, check_batch, check_finite, inputs_and_labels, measured
from kenyon.regularizers.parameters import Chosen, Excluded, bare_optimizer, check_state, like, precise

Definition = GradientImportance | PathImportance


def distance(parameters: dict[str, nn.Parameter], target: dict[str, Tensor], importance: dict[str, Tensor]) -> Tensor:
    """Return sum_m importance_m (theta_m - target_m)^2 over all parameters."""
    found = [_SquareDistance.apply(p, target[name], importance[name]) for name, p in parameters.items()]  # type: ignore
    return torch.stack(found).sum()


class _SquareDistance(torch.autograd.Function):
    """`square_distance` with its gradient in closed form, which takes half as long as that of every operation."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, target: Tensor, importance: Tensor) -> Tensor:
        ctx.save_for_backward(theta, target, importance)
        return square_distance(*(tensor.unsqueeze(0) for tensor in (theta, target, importance))).squeeze(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        theta, target, importance = ctx.saved_tensors
        return ((theta - target) * importance * (2 * gradient)).to(theta.dtype), None, None


class Path:
    """The path integral of synaptic intelligence: sums of -gradient * change over the steps of a task."""

    def __init__(self, definition: PathImportance, chosen: Chosen) -> None:
        self.definition, self.chosen = definition, chosen
        self.followed: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.begin_task(chosen.named())

    def begin_task(self, parameters: dict[str, nn.Parameter]) -> None:
        self.steps = 0  # followed since the task began
        self.start = {name: p.detach().to(precise(p), copy=True) for name, p in parameters.items()}
        self.path = {name: torch.zeros_like(start) for name, start in self.start.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles follow no optimizer: hooks are not copied with it."""
        return {name: value for name, value in self.__dict__.items() if name != "followed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, followed=WeakSet())

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow an optimizer from its next step on. A second call has no effect."""
        if optimizer in self.followed:
            return
        moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in moved for p in self.chosen.named().values()):
            if any(id(p) in moved for p in self.chosen.model.parameters()):
                return  # it moves excluded parts alone
            raise ConfigError(
                f"This {type(optimizer).__name__} moves none of the parameters that are protected: it was made for "
                "another model, or before this one was copied. Make one of this model's parameters and track that."
            )
        self.followed.add(optimizer)
        before: dict[str, Tensor] = {}  # the weights that the current step moves, before it

        def before_step(*_: Any) -> None:
            # Does not look at gradients: a step with a closure computes them later.
            moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
            before.clear()
            before.update({n: p.detach().clone() for n, p in self.chosen.named().items() if id(p) in moved})

        @torch.no_grad()
        def after_step(*_: Any) -> None:
            parameters = self.chosen.named()
            self.path = like(self.path, parameters)
            # A GradScaler sets this on optimizers that skip a step themselves, where gradients are infinite.
            skipped: Tensor | None = getattr(optimizer, "found_inf", None)
            for name, weights in before.items():
                gradient = parameters[name].grad
                if gradient is None:
                    continue
                if skipped is not None:
                    gradient = gradient.masked_fill(skipped > 0, 0.0)
                into = self.path[name]
                self.definition.extend(into, gradient.to(into.dtype), (parameters[name] - weights).to(into.dtype))
            self.steps += 1

        optimizer.register_step_pre_hook(before_step)
        optimizer.register_step_post_hook(after_step)

    def estimate(self, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """Return the importance of every parameter for the task, from its final weights."""
        if not self.steps:
            raise ConfigError(
                f"{self.definition.name} is measured along the way, and no step was followed since the last task. "
                "Call track(optimiser) before training, for every optimiser that is made."
            )
        self.path, self.start = like(self.path, parameters), like(self.start, parameters)
        found = {
            name: self.definition.weigh(self.path[name], p.detach() - self.start[name])
            for name, p in parameters.items()
        }
        check_finite(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "start": dict(self.start), "path": dict(self.path)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        start, path = (self.chosen.restored(state[kind], f"the saved {kind}") for kind in ("start", "path"))
        self.steps, self.start, self.path = state["steps"], start, path


NAMED: dict[str, Callable[[], Definition]] = {
    "ewc": fisher_published,
    "ewc-exact": fisher_exact,
    "mas": mas,
    "si": si,
}


@singledispatch
def _definition(importance: object) -> Definition:
    raise ConfigError(f"importance is one of {', '.join(NAMED)} or a definition of one, not {importance!r}.")


@_definition.register
def _(importance: str) -> Definition:
    if importance not in NAMED:
        raise unknown("importance", importance, NAMED)
    return NAMED[importance]()


@_definition.register
def _(importance: GradientImportance) -> Definition:
    if importance.penalised:
        raise ConfigError(f"{importance.name} includes the gradient of penalties, which a plain loss does not know.")
    return importance


@_definition.register
def _(importance: PathImportance) -> Definition:
    return importance


def find_definition(importance: str | Definition, accumulate: Merge | None) -> Definition:
    """Return the definition of an importance that is named or given."""
    found = _definition(importance)
    return found if accumulate is None else replace(found, accumulate=accumulate)


class Protection:
    """factor * strength * sum_m importance_m (theta_m - anchor_m)^2, as `methods.penalties.StabilityProtection`.

        protection = Protection(model, "ewc", strength=1e4, exclude="head")
        loss = cross_entropy(model(x), y) + protection()      # 0 until the first task is consolidated
        protection.consolidate(loader)                        # when a task has been learned

    importance: ewc (the published Fisher of batches of 20, a running average over tasks), ewc-exact (of single
    samples, summed), mas, si, or a value of `kenyon.methods.importance`. factor is 1/2, and 1 for si.
    """

    def __init__(
        self,
        model: nn.Module,
        importance: str | Definition = "ewc",
        *,
        strength: float,
        exclude: Excluded = (),
        accumulate: Merge | None = None,
    ) -> None:
        """`exclude`: what is not protected, usually the heads. `accumulate`: over tasks, average, sum, last or a
        number from 0 to 1 by which earlier importances decay; by default as the importance is published.
        """
        check_strength("strength", strength)
        self.definition = find_definition(importance, accumulate)
        self.chosen = Chosen(model, exclude)
        self.strength = strength
        self.tasks = 0  # that were consolidated
        self.importance: dict[str, Tensor] = {}  # by the parameter's name; none before the first consolidation
        self.anchor: dict[str, Tensor] = {}
        tracked = isinstance(self.definition, PathImportance)
        self.path = Path(self.definition, self.chosen) if tracked else None  # type: ignore[arg-type]

    def __call__(self) -> Tensor:
        """Return the penalty on the current weights, to add to the loss; 0 before the first consolidation."""
        parameters = self.chosen.named()
        if not self.importance:
            return torch.zeros((), device=next(iter(parameters.values())).device)
        self.importance, self.anchor = like(self.importance, parameters), like(self.anchor, parameters)
        return self.strength * self.definition.factor * distance(parameters, self.anchor, self.importance)

    def track(self, *optimizers: torch.optim.Optimizer) -> None:
        """Follow every step of these optimizers, for si. Other importances do not need it."""
        if self.path is None:
            return
        for optimizer in map(bare_optimizer, optimizers):
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise ConfigError(f"track takes optimizers of torch.optim, not a {type(optimizer).__name__}.")
            self.path.follow(optimizer)

    def consolidate(self, loader: Iterable[Any] | None = None, predict: Predict = inputs_and_labels) -> None:
        """Measure importance on the training data of the finished task, and anchor the weights where they are.

        `predict` returns logits and labels of a batch, where the loader's batches are not (inputs, labels) or the
        model needs more than the inputs. si needs no loader.
        """
        parameters = self.chosen.named()
        if self.path is not None:
            found = self.path.estimate(parameters)
        elif loader is None:
            raise ConfigError(f"{self.definition.name} is measured on the task's training data: consolidate(loader).")
        else:
            found = measured(self.definition, self.chosen.model, parameters, loader, predict)  # type: ignore[arg-type]
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
        """Refuse a batch that `consolidate` could not measure importance on. Call it before training."""
        if self.path is None:
            check_batch(self.definition, self.chosen.model, batch, predict)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the settings, for a checkpoint."""
        tensors = {"importance": dict(self.importance), "anchor": dict(self.anchor)}
        path = {} if self.path is None else {"path": self.path.state_dict()}
        return {"definition": self.definition.name, "tasks": self.tasks, **tensors, **path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The settings and the model's parameters must be those of its origin."""
        check_state(state, "a Protection", "definition", "tasks", "importance", "anchor")
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
