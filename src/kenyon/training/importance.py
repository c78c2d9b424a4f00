"""The importance pass: gradients of small batches of a phase's training data, many at once where the executor can.

The definitions are in `methods.importance`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kenyon.backends.layout import Rows
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.groups import Sums
from kenyon.backends.triton.updates import Force, sorted_forces
from kenyon.methods.importance import GradientImportance
from kenyon.models import Net, Outputs
from kenyon.random import Noise, Purpose, key
from kenyon.training.batches import Batch, Fleet, Loader
from kenyon.training.checkpoint import Position
from kenyon.training.device import Lanes, Runs
from kenyon.training.evaluation import chunk_of
from kenyon.training.gradients import PredictionLoss, RunLoss, grouped_gradients, stacked_gradients
from kenyon.utils.determinism import per_run
from kenyon.utils.threads import for_each_chunk


class Draws:
    """The random numbers of a pass over a phase's data: dropout and augmentation of all runs.

    Every number is a function of the run's seed, the phase, the epoch and its purpose: nothing is consumed or saved.
    Tensors stay in place, so that captured steps can read them.
    """

    def __init__(self, seeds: Sequence[int], steps: int, device: torch.device, *, windows: bool) -> None:
        """`steps`: the most that a pass has; `windows`: images are augmented."""
        self.seeds, self.device = tuple(seeds), device
        self.keys = torch.zeros(len(seeds), dtype=torch.long, device=device)  # of the dropout of this pass
        self.every_step = torch.arange(steps, device=device).unsqueeze(1)
        self.noise = Noise.at(self.keys, self.every_step)  # of all steps
        self.windows = Noise.at(self.keys, self.every_step) if windows else None

    def keys_at(self, at: Position, *words: int) -> Tensor:
        """Return a key a run, (R,), for the purpose given by `words`."""
        return torch.tensor([key(seed, *words, at.phase, at.epoch) for seed in self.seeds]).to(self.device)

    def begin(self, at: Position, *words: int) -> None:
        """Start a pass, identified by `words`."""
        self.keys.copy_(self.keys_at(at, *words))
        self._fill(self.noise, self.keys)
        if self.windows is not None:
            self._fill(self.windows, self.keys_at(at, Purpose.AUGMENTATION, *words))

    def _fill(self, noise: Noise, keys: Tensor) -> None:
        drawn = Noise.at(keys, self.every_step)
        noise.first.copy_(drawn.first)
        noise.second.copy_(drawn.second)


class Workplace(Protocol):
    """The part of an engine that the importance pass needs."""

    net: Net
    device: torch.device
    fleet: Fleet
    most: int  # samples that a run may have in a phase
    heads: Tensor  # (n,) in use
    draws: Draws
    gradient: Tensor  # (R, P)
    train_sizes: Tensor  # (R,)
    lanes: Lanes

    @property
    def live(self) -> list[int]: ...

    def tested_gradients(
        self, theta: Tensor, loader: Loader, loss: RunLoss, *, dropout: bool, learns: bool
    ) -> None: ...

    def repeat(self, work: Callable[[], None], *which: Hashable) -> None: ...

    def seed_dropout(self, *words: int) -> None: ...


class Measuring:
    """Measures importances of the current phase, into `estimate`."""

    def __init__(self, engine: Workplace, measured: Sequence[GradientImportance], *, joint: bool, wrap: bool) -> None:
        """`joint`, `wrap`: as in `Loader`."""
        self.engine, net, fleet = engine, engine.net, engine.fleet
        self.loaders = {
            n: Loader(fleet, n, engine.most, joint=joint, together=self.at_once(n), wrap=wrap)
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
        """Measure the importance of `theta` for the phase's training data, into `estimate`.

        `forces` (as `Penalties.forces`) and `penalties` on predictions count in importances that include them.
        """
        engine, loader = self.engine, self.loaders[importance.batch]
        forces, penalties = (forces, penalties) if importance.penalised else (None, None)

        def loss(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            found = importance.objective(out.logits, batch.labels, batch.valid)
            if penalties is not None:
                found = found + penalties(run, row, out, batch.valid / batch.valid.sum(-1, keepdim=True).clamp(min=1))
            return found

        count = self.at_once(importance.batch)

        def stacked_batches() -> None:
            self._stacked(importance, theta, loader, loss, forces, count)

        def grouped_batches() -> None:
            self._grouped(importance, theta, loader, penalties, forces, count)

        def one_batch() -> None:
            engine.tested_gradients(theta, loader, loss, dropout=importance.dropout, learns=False)
            share = loader.present() / engine.train_sizes  # a run without a batch adds nothing
            pushing = () if forces is None else forces(engine.gradient)
            add_importance(importance, self.estimate, engine.gradient, theta, share, pushing)
            loader.step.add_(1)

        place = theta.data_ptr()  # captured work is bound to its network: another has its own
        self.estimate.zero_()
        loader.step.zero_()
        engine.seed_dropout(Purpose.IMPORTANCE, purpose)
        work = one_batch if count == 1 else stacked_batches if engine.net.together else grouped_batches
        for _ in range(-(-loader.steps // count)):
            engine.repeat(work, importance, purpose, place)

    def at_once(self, batch: int) -> int:
        """Return how many batches are measured together."""
        engine, net = self.engine, self.engine.net
        if net.gate and not net.together:
            return 1
        return net.executor.batches_at_once(batch, len(engine.fleet), chunk_of(net.input_shape) // 2)

    def _stacked(
        self,
        importance: GradientImportance,
        theta: Tensor,
        loader: Loader,
        loss: RunLoss,
        forces: Callable[[Tensor], list[Force]] | None,
        count: int,
    ) -> None:
        """Add the next batches, each as one more run with the same weights."""
        engine = self.engine
        noise = engine.draws.noise if importance.dropout else None
        found = stacked_gradients(engine.net, theta, loader, engine.heads, loss, noise, count)  # (R, count, Pp)
        if forces is not None:
            found = found + _pushed(theta, forces)[:, : found.shape[2]].unsqueeze(1)
        share = self._shares(loader, count).unsqueeze(2)
        found = importance.reduce(found).mul_(share)
        self.estimate.add_(per_run(lambda part: part.sum(1), 1, found))
        loader.step.add_(count)

    def _grouped(
        self,
        importance: GradientImportance,
        theta: Tensor,
        loader: Loader,
        penalties: PredictionLoss | None,
        forces: Callable[[Tensor], list[Force]] | None,
        count: int,
    ) -> None:
        """Add the next batches of a run, all in one pass through the network, layer by layer each by itself."""
        engine, layout = self.engine, self.engine.net.layout
        pushed = None if forces is None else _pushed(theta, forces)
        shares = importance.numerator * self._shares(loader, count)
        protected = frozenset(engine.net.backbone_names)
        sums = [
            Sums(
                {name: layout.view(self.estimate[run], name) for name in protected},
                None if pushed is None else {name: layout.view(pushed[run], name) for name in protected},
                shares[run],
                importance.square,
            )
            for run in range(len(theta))
        ]

        def loss(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            logits, labels, valid = (x.unflatten(0, (count, -1)) for x in (out.logits, batch.labels, batch.valid))
            found = importance.objective(logits, labels, valid).sum()
            if penalties is not None:
                found = found + penalties(run, row, out, batch.weight)
            return found

        noise = engine.draws.noise if importance.dropout else None
        what = (engine.net, theta, loader, engine.heads, loss, noise, sums)
        grouped_gradients(*what, lanes=engine.lanes, runs=engine.live)
        loader.step.add_(count)

    def _shares(self, loader: Loader, count: int) -> Tensor:
        """Return the weight of each of the next batches, (R, count); 0 for a run without a batch."""
        present = loader.there.index_select(1, loader.steps_ahead(count))
        return present / self.engine.train_sizes.unsqueeze(1)


def _pushed(theta: Tensor, forces: Callable[[Tensor], list[Force]]) -> Tensor:
    """Return the gradients of penalties on weights (R, P), summed."""
    found = torch.zeros_like(theta)
    for force in forces(found):
        force.add_to(found, theta)
    return found


def add_importance(
    importance: GradientImportance,
    estimate: Tensor,
    gradient: Tensor,
    theta: Tensor,
    share: Tensor,
    forces: Sequence[Force] = (),
) -> None:
    """Add the gradient (R, P) of one batch, with the forces on theta (R, P), reduced and times share (R,), to the
    estimate (R, Pp): in one pass over the rows on a GPU. The gradient is overwritten.
    """
    ordered = sorted_forces(forces, len(theta))
    if passes.available(theta) and ordered.fit:
        rows, factor, square = (estimate, gradient, theta), importance.numerator, importance.square
        passes.add_importance(*rows, share, ordered.pulls, ordered.decay, factor=factor, square=square)
        return

    def add(part: slice) -> None:
        slope = gradient[:, part]
        for force in forces:
            force.within(part).add_to(slope, theta[:, part])
        estimate[:, part].addcmul_(importance.reduce(slope), share.unsqueeze(1))

    for_each_chunk(estimate, add)
