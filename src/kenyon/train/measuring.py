"""Importance of a network for the training data of the phase at hand, from gradients of small batches.

What it is made of is in `importance`; here is how a fleet gets it, many batches at once where the net can.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kenyon import passes
from kenyon.forces import Force, sorted_forces
from kenyon.importance import GradientImportance
from kenyon.nets import Net, Outputs
from kenyon.nets.layout import Rows
from kenyon.random import Noise, Purpose
from kenyon.steady import USUAL_RUNS, is_steady, of_each_run
from kenyon.train.device import Runs
from kenyon.train.fleet import Batch, Fleet, Loader
from kenyon.train.gradients import RunLoss, stacked_gradients

STACKED = 80  # runs that fill a GPU with batches of 20

# (run, its row (P,), outputs, weights of the samples (B,)) -> scalar; or all runs, with a leading run axis
PredictionLoss = Callable[[Runs, Rows, Outputs, Tensor], Tensor]


class Workplace(Protocol):
    """What it takes of an engine."""

    net: Net
    device: torch.device
    fleet: Fleet
    most: int  # samples of a phase that a run may have
    heads: Tensor  # in use
    noise: Noise  # of all steps of a pass
    gradient: Tensor  # (R, P)
    train_sizes: Tensor  # (R,)

    def tested_gradients(
        self, theta: Tensor, loader: Loader, loss: RunLoss, *, dropout: bool, learns: bool
    ) -> None: ...

    def repeat(self, work: Callable[[], None], *which: Hashable) -> None: ...

    def seed_dropout(self, *words: int) -> None: ...


class Measuring:
    def __init__(self, engine: Workplace, measured: Sequence[GradientImportance], *, joint: bool, wrap: bool) -> None:
        """`joint`, `wrap`: as `Loader` has them."""
        self.engine, net, fleet = engine, engine.net, engine.fleet
        # Small batches of one run are measured at once, so many that they are a fleet of usual size.
        shared_by = USUAL_RUNS if is_steady() else len(fleet)
        self.at_once = max(1, STACKED // shared_by) if net.together and not net.small else 1
        self.loaders = {
            n: Loader(fleet, n, engine.most, joint=joint, together=self.at_once, wrap=wrap)
            for n in {importance.batch for importance in measured}
        }
        self.estimate = torch.zeros(len(fleet), net.layout.protected, device=engine.device)

    def __call__(
        self,
        importance: GradientImportance,
        theta: Tensor,
        purpose: Purpose,
        *,
        forces: Callable[[Tensor], list[Force]] | None = None,
        penalties: PredictionLoss | None = None,
    ) -> None:
        """Importance of `theta` for the phase's training data, into `estimate`.

        For an importance that includes them, `forces` are those of penalties on weights, as `Objective.forces` has
        them, and `penalties` are those on predictions.
        """
        engine, loader = self.engine, self.loaders[importance.batch]
        forces, penalties = (forces, penalties) if importance.penalised else (None, None)

        def loss(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            found = importance.objective(out.logits, batch.labels, batch.valid)
            if penalties is not None:
                found = found + penalties(run, row, out, batch.valid / batch.valid.sum(-1, keepdim=True).clamp(min=1))
            return found

        def several_batches() -> None:
            self._several(importance, theta, loader, loss, forces)

        def one_batch() -> None:
            engine.tested_gradients(theta, loader, loss, dropout=importance.dropout, learns=False)
            share = loader.present() / engine.train_sizes  # a run out of batches adds nothing
            pushing = () if forces is None else forces(engine.gradient)
            add_importance(importance, self.estimate, engine.gradient, theta, share, pushing)
            loader.step.add_(1)

        place = theta.data_ptr()  # captured work goes on with the network it began with: another needs its own
        self.estimate.zero_()
        loader.step.zero_()
        engine.seed_dropout(Purpose.IMPORTANCE, purpose)
        for _ in range(-(-loader.steps // self.at_once)):
            engine.repeat(several_batches if self.at_once > 1 else one_batch, importance, purpose, place)

    def _several(
        self,
        importance: GradientImportance,
        theta: Tensor,
        loader: Loader,
        loss: RunLoss,
        forces: Callable[[Tensor], list[Force]] | None,
    ) -> None:
        """What the next batches say, each as one more run with the same weights."""
        engine, count = self.engine, self.at_once
        noise = engine.noise if importance.dropout else None
        found = stacked_gradients(engine.net, theta, loader, engine.heads, loss, noise, count)  # (R, count, P)
        if forces is not None:
            pushed = torch.zeros_like(theta)
            for force in forces(pushed):
                force.add_to(pushed, theta)
            found = found + pushed.unsqueeze(1)
        present = loader.valid.index_select(1, loader.steps_ahead(count)).amax(2)
        share = (present / engine.train_sizes.unsqueeze(1)).unsqueeze(2)
        found = importance.reduce(found[..., : self.estimate.shape[1]]).mul_(share)
        self.estimate.add_(of_each_run(lambda part: part.sum(1), 1, found))
        loader.step.add_(count)


def add_importance(
    importance: GradientImportance,
    estimate: Tensor,
    gradient: Tensor,
    theta: Tensor,
    share: Tensor,
    forces: Sequence[Force] = (),
) -> None:
    """Add to the estimate (R, Pp) what the gradient (R, P) of one batch says, with the forces on theta (R, P), times
    share (R,): in one pass over the rows where there is a GPU. The gradient is lost.
    """
    ordered = sorted_forces(forces)
    if passes.available(theta) and ordered.fit:
        rows, factor, square = (estimate, gradient, theta), importance.numerator, importance.square
        passes.add_importance(*rows, share, ordered.pulls, ordered.decay, factor=factor, square=square)
        return
    for force in forces:
        force.add_to(gradient, theta)
    estimate.addcmul_(importance.reduce(gradient[:, : estimate.shape[1]]), share.unsqueeze(1))
