"""Passes over the data of a phase: batches of every run through the network, with random numbers of each run's own.

Everything here is work space: rebuilt at any time, never saved. Tensors stay in place, so that steps can be captured
as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kenyon.backends.layout import Factors, Rows
from kenyon.backends.triton.losses import weighted_cross_entropy
from kenyon.data.tasks import Stream
from kenyon.errors import ConfigError
from kenyon.methods.base import LEARN, Replay, Stage
from kenyon.methods.importance import GradientImportance
from kenyon.models import Net, Outputs
from kenyon.models.nodes import Nodes
from kenyon.random import Noise, Purpose, shuffled
from kenyon.training.batches import Batch, Fleet, Loader, Samples
from kenyon.training.checkpoint import Position
from kenyon.training.device import Captured, Lanes, Runs, require_memory
from kenyon.training.gradients import PredictionLoss, RunLoss, data_gradients, factors_of_layers
from kenyon.training.importance import Draws, Measuring
from kenyon.training.regime import Training
from kenyon.training.replay import Memory

CHUNK = 128


@torch.no_grad()
def mean_activations(
    nodes: Nodes,
    theta: Tensor,
    fleet: Fleet,
    samples: Samples,
    lanes: Lanes,
    runs: Sequence[int],
    *,
    dropout: Tensor,
    windows: Tensor,
) -> Tensor:
    """Return the mean |activation| of every node, (R, N), as in training: with dropout and augmentation, each drawn
    from keys (R,). Runs left out have 0.

    Run by run and layer by layer in float32, whichever executor the network has: it is done once a task.
    """
    found = torch.zeros(len(theta), nodes.count, device=theta.device)
    names, channels = nodes.net.backbone_names, fleet.streams[0].input_shape[0]
    sizes = samples.sizes.tolist()

    def of_run(run: int) -> None:
        params = nodes.net.layout.views(theta[run], frozenset(names))
        for number, start in enumerate(range(0, sizes[run], CHUNK)):
            index = samples.index[run, start : min(start + CHUNK, sizes[run])]
            step = torch.tensor([number], device=theta.device)
            drop, shown = (Noise.at(keys[run : run + 1], step) for keys in (dropout, windows))
            images = fleet.images(run, index, None if fleet.augmentation is None else shown)
            assert isinstance(images, Tensor)
            found[run] += nodes.activations(params, images[:, :channels], drop)
        found[run] /= sizes[run]

    def work(some: Runs) -> None:
        for run in runs if isinstance(some, slice) else (some,):
            of_run(run)

    lanes.each(runs, work)
    return found


STATES = 6  # numbers that a training keeps of each weight, at least
PLACES = 32  # bytes that it keeps of each sample of a batch


class Engine:
    """The data of the current phase on the device, gradient buffers, and captured work."""

    def __init__(
        self,
        net: Net,
        streams: Sequence[Stream],
        training: Training,
        phases: Sequence[tuple[int, ...]],
        measured: Sequence[GradientImportance],
        replay: Replay | None = None,
        members: int = 1,
    ) -> None:
        """`phases`: the tasks that are learned together, phase by phase; `measured`: the importances that `measuring`
        is called with; `members`: consecutive rows that are networks of one run.
        """
        self.net, self.device = net, net.device
        rows = len(streams)
        # Weights, gradient, and the state of optimizer, schedule and importance; positions of a batch's samples. No
        # batch is larger than all the data, of which every run has as much.
        self.batch = min(training.batch, max(len(stream.pool) for stream in streams))
        require_memory(net.device, rows * (STATES * 4 * net.layout.size + self.batch * PLACES))
        execute = net.executor
        if net.together and not net.small and not streams[0].in_place:
            raise ConfigError(
                "This network reads images where they lie in their pool, and these samples are shown by views. Build "
                "it with Net(..., in_place=stream.in_place)."
            )
        self.fleet = Fleet(
            streams, net.device, execute.input_channels, frame=execute.frame, by_reference=not net.small
        )
        self.members = members
        self.position = Position(diverged=[None] * (len(streams) // members))
        R, joint = len(streams), len(net.heads_of(phases[0])) > 1
        self.lanes = Lanes(self.device, R, together=net.together, threads=net.executor.threads)
        train, held_out = (self.fleet.largest(part, phases) for part in ("train", "validation"))
        self.most = train
        # Batch normalization needs samples also where a batch is filled up.
        wrap = bool(net.statistics)
        if wrap and replay is not None:
            raise ConfigError(
                "Replay shows samples of several tasks in one batch, and nn.BatchNorm would mix their statistics. "
                "Use nn.GroupNorm or nn.LayerNorm, or a method without replay."
            )
        self.loader = Loader(self.fleet, self.batch, train, joint=joint, wrap=wrap)
        self.memory = None if replay is None else Memory(self.fleet, replay)
        # As large as a training batch, whatever the runs: sums over equally many terms round alike.
        self.validation = Loader(self.fleet, self.batch, held_out, joint=joint)
        self.measuring = Measuring(self, measured, joint=joint, wrap=wrap)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=self.device)

        self.gradient, self.loss = zeros(R, net.layout.size), zeros(R)
        self.factors: dict[str, Factors] = {}  # of weights whose gradients are not in `gradient`
        self.train_sizes = zeros(R)
        self.heads = net.heads_of(phases[0])  # of the current phase
        loaders = (self.loader, *self.measuring.loaders.values())
        most, shown = max(loader.capacity for loader in loaders), self.fleet.augmentation is not None
        self.draws = Draws(self.fleet.seeds, most, self.device, windows=shown)
        for loader in loaders:
            loader.windows = self.draws.windows
        # Of the current phase; `enter` lays out its data.
        self.stage, self.first = LEARN, phases[0][0]  # the first of its tasks
        self.samples = self.fleet.samples("train", phases[0])
        self.captured: dict[Hashable, Captured] = {}
        self.variant: Hashable = None  # of the phase: work captured in one variant is not replayed in another

    def keep_factors(self) -> None:
        """Keep the gradients of large dense layers as `factors` from the next step on, where that is faster."""
        self.factors = factors_of_layers(self.net, len(self.fleet), self.loader.size + self.loader.memory_size)

    @property
    def live(self) -> list[int]:
        """The rows of runs whose loss has stayed finite."""
        return [row for row in range(len(self.fleet)) if self.position.diverged[row // self.members] is None]

    def heads_of(self, loader: Loader) -> Tensor:
        """Return the heads that its batches use, (n,)."""
        return self.heads if loader.heads is None else loader.heads

    def enter(self, tasks: tuple[int, ...], stage: Stage, variant: Hashable, theta: Tensor) -> None:
        """Lay out the data of a phase, with the logits of the teacher in `theta`; also after a restart."""
        self.stage, self.variant, self.first = stage, variant, tasks[0]
        if self.memory is not None:  # the more tasks, the larger the batches
            self.loader = self.memory.loader(self.batch, self.most, self.first)
            self.loader.windows = self.draws.windows
            self.captured.clear()
            if self.factors:
                self.keep_factors()
        self.heads.copy_(self.net.heads_of(tasks))
        self.samples = self._with_teacher(self.fleet.samples("train", tasks), self.loader, theta)
        self.train_sizes.copy_(self.samples.sizes)
        if self.validation.capacity:
            held_out = self.fleet.samples("validation", tasks)
            self.validation.fill(self._with_teacher(held_out, self.validation, theta))
        for loader in self.measuring.loaders.values():
            loader.fill(self.samples)

    @torch.no_grad()
    def _with_teacher(self, samples: Samples, loader: Loader, theta: Tensor) -> Samples:
        """Return the samples with the teacher's logits. With augmentation or replay they are computed in every step
        instead.
        """
        if self.stage.teacher is None or self.draws.windows is not None or self.memory is not None:
            return samples
        loader.fill(samples)
        logits = theta.new_zeros(len(theta), loader.steps, loader.size, max(self.net.class_counts))

        def work(run: Runs) -> None:
            for step in range(loader.steps):
                batch = loader.batch(run, step)
                logits[run, step] = self._teacher(theta[run], batch)

        self.lanes.each(self.live, work)
        return replace(samples, teacher_logits=logits.flatten(1, 2)[:, : samples.index.shape[1]])

    def _teacher(self, row: Rows, batch: Batch) -> Tensor:
        assert self.stage.teacher is not None
        with torch.no_grad():
            return self.stage.teacher(self.net, row, batch.images, self.heads, batch.member).logits

    def _targets(self, row: Rows, batch: Batch) -> Tensor:
        """Return the targets of the stage's loss: labels, or the teacher's logits."""
        if self.stage.teacher is None:
            return batch.labels
        return self._teacher(row, batch) if batch.teacher_logits is None else batch.teacher_logits

    def repeat(self, work: Callable[[], None], *which: Hashable) -> None:
        """Run work that is repeated, through a CUDA graph where there is a GPU. It is identified by its name, its
        object and `which`: they must differ where the work is on different tensors.
        """
        name = (work.__qualname__, id(getattr(work, "__self__", None)), self.variant, *which)
        if name not in self.captured:
            self.captured[name] = Captured(work, self.device, self.net.executor)
        self.captured[name]()

    # ------------------------------------------------------------------ passes

    def train_epoch(self, step: Callable[[], None], theta: Tensor, purpose: int = 0) -> None:
        """Run `step`, which changes theta (R, P), for all batches in a new order. `purpose` separates the random
        numbers of another network.
        """
        for factors in self.factors.values():
            factors.read(theta)
        order = self.draws.keys_at(self.position, Purpose.ORDER, purpose)
        self.loader.fill(self.samples, shuffled(order, self.samples.sizes, self.samples.index.shape[1]))
        if self.memory is not None:
            self.memory.draw(self.loader, self.first, self.draws.keys_at(self.position, Purpose.MEMORY, purpose))
        self.seed_dropout(Purpose.DROPOUT, purpose)
        for _ in range(self.loader.steps):
            self.repeat(step)

    def batch_loss(self, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        """Return the mean loss of the stage over the batch."""
        return self.stage.loss(out, self._targets(row, batch), batch.weight)

    def held_out_loss(
        self,
        theta: Tensor,
        into: Tensor,
        penalties: PredictionLoss | None = None,
        forward: Callable[..., Outputs] | None = None,
    ) -> None:
        """Add the mean loss of the stage over the validation data of every run, with `penalties`, to `into` (R,)."""
        sizes = self.validation.valid.sum((1, 2))
        forward = forward or self.stage.forward

        def work(run: Runs) -> None:
            for step in range(self.validation.steps):
                batch = self.validation.batch(run, step)
                out = forward(self.net, theta[run], batch.images, self.heads, batch.member)
                into[run] += self.stage.loss(out, self._targets(theta[run], batch), batch.valid) / sizes[run]
                if penalties is not None:
                    weight = batch.valid / sizes[run].unsqueeze(-1)
                    into[run] += penalties(run, theta[run], out, weight, batch.images)

        self.lanes.each(self.live, work)

    def activations(self, nodes: Nodes, theta: Tensor) -> Tensor:
        """Return the mean |activation| of every node over the phase's training data, (R, N)."""
        dropout, windows = (
            self.draws.keys_at(self.position, *words, Purpose.NODES)
            for words in ((Purpose.IMPORTANCE,), (Purpose.AUGMENTATION, Purpose.IMPORTANCE))
        )
        with_run = (self.fleet, self.samples, self.lanes, self.live)
        return mean_activations(nodes, theta, *with_run, dropout=dropout, windows=windows)

    def gradients(
        self,
        theta: Tensor,
        loader: Loader,
        loss: RunLoss,
        *,
        forward: Callable[..., Outputs],
        own: bool,
        dropout: bool = True,
        learns: bool = True,
        factors: Mapping[str, Factors] | None = None,
    ) -> None:
        """Compute the gradient (R, P) of a batch of every run, in self.gradient for the rest of the step, except for
        weights with `factors`. `learns`: running statistics are updated.
        """
        heads = self.heads_of(loader)

        def keep(run: int, out: Outputs) -> None:
            if out.statistics is not None:
                present = loader.present()[run]
                self.net.statistics.update(self.net.layout, theta[run], heads, out.statistics, present)

        self.gradient = data_gradients(
            self.net,
            theta,
            loader,
            heads,
            loss,
            forward=forward,
            lanes=self.lanes,
            runs=self.live,
            noise=self.draws.noise if dropout else None,
            own=own,
            gradient=self.gradient,
            value=self.loss,
            factors=factors,
            seen=keep if learns and self.net.statistics else None,
        )

    def tested_gradients(
        self, theta: Tensor, loader: Loader, loss: RunLoss, *, dropout: bool = True, learns: bool = True
    ) -> None:
        """Compute gradients of the network that is tested, whatever else the stage computes."""
        self.gradients(theta, loader, loss, forward=Net.forward, own=False, dropout=dropout, learns=learns)

    def step_gradients(self, theta: Tensor, loss: RunLoss, *, forward: Callable[..., Outputs], own: bool) -> None:
        """Compute gradients of a training batch, except for weights with `factors`."""
        self.gradients(theta, self.loader, loss, forward=forward, own=own, factors=self.factors)

    def plain_gradients(self, theta: Tensor) -> None:
        """Compute gradients of the cross-entropy alone, of the network that is tested."""

        def loss(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            return weighted_cross_entropy(out.logits, batch.labels, batch.weight)

        self.step_gradients(theta, loss, forward=Net.forward, own=False)

    def seed_dropout(self, *words: int) -> None:
        """Draw the dropout of a pass, and its augmentation."""
        self.draws.begin(self.position, *words)
