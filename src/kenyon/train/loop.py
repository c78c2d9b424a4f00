"""The training loop: a fleet of runs learns its phases one after another.

Read `Trainer._run` from top to bottom. Everything it changes is a tensor with a leading run axis that stays in
place (so that steps can be captured as CUDA graphs and states saved whole); every random number is a function
of (seed, purpose, phase, epoch, step). Nothing else decides a result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kenyon.importance import GradientImportance, PathImportance, accumulated, cross_entropy, fisher_published
from kenyon.methods import Method
from kenyon.nets import Net, Outputs
from kenyon.penalties import Predictions, Weights, strength_of
from kenyon.random import Noise, Purpose, key, normal, shuffled
from kenyon.streams.task import Stream
from kenyon.train.adam import Adam
from kenyon.train.device import Captured, Lanes, Runs, on_device
from kenyon.train.evaluate import evaluate
from kenyon.train.fleet import Batch, Fleet, Loader
from kenyon.train.gradients import RunLoss, data_gradients, stacked_gradients
from kenyon.train.regime import Training
from kenyon.train.state import Position

STACKED = 80  # runs that fill a GPU with batches of 20


class Interrupted(Exception):
    """The watcher asked to stop; the trainer's tensors and position hold a complete epoch."""


# Called after every epoch with the trainer; returns True to stop there.
Watcher = Callable[["Trainer"], bool]


class Trainer:
    def __init__(
        self,
        net: Net,
        streams: Sequence[Stream],
        method: Method,
        training: Training,
    ) -> None:
        self.net, self.method, self.training = net, method, training
        self.device = net.device
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change, so the fastest convolution is worth finding
        self.fleet = Fleet(streams, net.device, net.execute.input_channels, by_reference=not net.small)
        R, P, Pp = len(streams), net.layout.size, net.layout.protected
        tasks = range(self.fleet.tasks)
        self.phases: list[tuple[int, ...]] = [tuple(tasks)] if method.schedule == "joint" else [(t,) for t in tasks]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=self.device)

        # The state: what is saved, and what makes a resumed run go on as if nothing had happened.
        self.position = Position(diverged=[None] * R)
        self.theta = net.initial(self.fleet.seeds)  # (R, P)
        self.adam = Adam(self.theta.shape, self.device)
        self.best = self.theta.clone()  # (R, P) the weights with the lowest validation loss
        self.best_loss, self.waited, self.rate = zeros(R), zeros(R), zeros(R)
        self.importance = zeros(R, Pp)
        self.anchor = self._protected(self.theta).clone()  # (R, Pp) the weights at the start of the phase
        self.path = zeros(R, Pp) if isinstance(method.importance, PathImportance) else None
        self.expanded = self.theta.clone() if method.expands else None
        self.expanded_adam = Adam(self.theta.shape, self.device) if method.expands else None
        self.expanded_importance = zeros(R, Pp) if method.expands else None

        # Work space: rebuilt at will, never saved.
        joint = method.schedule == "joint"
        self.lanes = Lanes(self.device, R, together=net.together, threads=net.execute.threads)
        train, held_out = (self.fleet.largest(part, self.phases) for part in ("train", "validation"))
        self.loader = Loader(self.fleet, training.batch, train, joint=joint)
        # As large as a training batch whoever is in the fleet: sums round alike only over equally many terms.
        self.validation = Loader(self.fleet, training.batch, held_out, joint=joint)
        sizes = {importance.batch for importance in self._measured()}
        # Small batches of one run are measured at once, so many that they are a fleet of usual size.
        self.at_once = max(1, STACKED // R) if net.together and not net.small else 1
        self.small_loaders = {n: Loader(self.fleet, n, train, joint=joint, together=self.at_once) for n in sizes}
        self.gradient, self.loss, self.validation_loss = zeros(R, P), zeros(R), zeros(R)
        self.estimate, self.train_sizes = zeros(R, Pp), zeros(R)
        self.finite = torch.ones(R, dtype=torch.bool, device=self.device)
        self.heads = torch.zeros(len(self.phases[0]), dtype=torch.long, device=self.device)
        self.keys = torch.zeros(R, dtype=torch.long, device=self.device)  # of the dropout of this pass
        most = max(loader.capacity for loader in (self.loader, *self.small_loaders.values()))
        self.every_step = torch.arange(most, device=self.device).unsqueeze(1)
        self.noise = Noise.at(self.keys, self.every_step)  # of all its steps
        self.captured: dict[tuple[Any, ...], Captured] = {}
        # Of epochs whose end the device has not confirmed: (epoch, whether each run is finite, when that is known).
        self.reports: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    # ------------------------------------------------------------------ the loop

    def run(self, watch: Watcher | None = None) -> Position:
        """Train from the present position to the end."""
        with on_device(self.device):
            return self._run(watch)

    def _run(self, watch: Watcher | None) -> Position:
        at = self.position
        while at.phase < len(self.phases) and self.live:
            self._enter_phase()
            if at.epoch == 0:
                self._begin_phase()
            while at.epoch < self.training.epochs:
                started = time.perf_counter()
                if self.expanded is not None:
                    self._train_epoch(self._expanded_step, Purpose.EXPANDED)
                    self._measure(fisher_published(), self.expanded, Purpose.EXPANDED)
                    self.expanded_importance.copy_(self.estimate)  # type: ignore[union-attr]
                self._train_epoch(self._step)
                self._repeat(self._validate)
                self._retire_diverged()
                at.epoch += 1
                at.seconds += time.perf_counter() - started
                if watch is not None and watch(self):
                    raise Interrupted
                if not self.live:
                    return at
            started = time.perf_counter()
            self._finish_phase()
            at.seconds += time.perf_counter() - started
            at.phase, at.epoch = at.phase + 1, 0
            if watch is not None and watch(self) and at.phase < len(self.phases):
                raise Interrupted
        return at

    @property
    def live(self) -> list[int]:
        """The runs whose loss has stayed finite."""
        return [run for run, where in enumerate(self.position.diverged) if where is None]

    @property
    def first_phase(self) -> bool:
        return self.position.phase == 0 or self.method.schedule == "restart"

    def tensors(self) -> dict[str, Tensor]:
        """The state by name. All tensors have a leading run axis."""
        named: dict[str, Tensor | None] = {
            "theta": self.theta,
            "best": self.best,
            "best_loss": self.best_loss,
            "waited": self.waited,
            "rate": self.rate,
            "importance": self.importance,
            "anchor": self.anchor,
            "path": self.path,
            "expanded": self.expanded,
            "expanded_importance": self.expanded_importance,
        }
        for prefix, adam in (("adam", self.adam), ("expanded_adam", self.expanded_adam)):
            if adam is not None:
                named |= {f"{prefix}.{name}": tensor for name, tensor in adam.tensors().items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    # ------------------------------------------------------------------ a phase

    def _enter_phase(self) -> None:
        """Lay out the data of the phase; done anew after a restart."""
        tasks = self.phases[self.position.phase]
        self.heads.copy_(torch.tensor(tasks))
        self.samples = self.fleet.samples("train", tasks)
        self.train_sizes.copy_(self.samples.sizes)
        self.validation.fill(self.fleet.samples("validation", tasks))
        for loader in self.small_loaders.values():
            loader.fill(self.samples)

    def _begin_phase(self) -> None:
        at = self.position
        if self.method.schedule == "restart":
            self.theta.copy_(self.net.initial(self.fleet.seeds))
        for number, name in enumerate(self.net.learned):
            view = self.net.layout.view(self.theta, name)
            for run, seed in enumerate(self.fleet.seeds):
                view[run] = normal(key(seed, Purpose.LEARNED, at.phase, number), tuple(view.shape[1:]))
        self.adam.restart()
        if self.expanded_adam is not None:
            self.expanded_adam.restart()
        self.rate.fill_(self.training.rate)
        self.best.copy_(self.theta)
        self.best_loss.fill_(torch.inf)
        self.waited.zero_()
        if self.path is not None:
            self.path.zero_()
        self.finite.fill_(True)

    def _finish_phase(self) -> None:
        """Keep the best weights, weigh their importance, test on every task."""
        at, importance = self.position, self.method.importance
        self.theta.copy_(self.best)
        if importance is not None:
            if isinstance(importance, PathImportance):
                assert self.path is not None
                estimate = importance.estimate(self.path, self._protected(self.theta) - self.anchor)
            else:
                self._measure(importance, self.theta, Purpose.IMPORTANCE)
                estimate = self.estimate
            self.importance.copy_(accumulated(self.importance, estimate, at.phase, importance.accumulate))
            self.anchor.copy_(self._protected(self.theta))
        result = evaluate(self.net, self.theta, self.fleet, self.lanes, self.live)
        at.records.append({name: getattr(result, name).tolist() for name in result.__dataclass_fields__})

    def _retire_diverged(self) -> None:
        """Runs whose loss is no longer finite stop here; the others go on.

        A GPU is asked about the epoch before, which it has finished: waiting for this one would leave it idle.
        """
        at = self.position
        self.reports.append((at.epoch, self.finite.to("cpu", non_blocking=True), _finished_event(self.device)))
        last = at.epoch + 1 == self.training.epochs
        while len(self.reports) > (1 if self.device.type == "cuda" and not last else 0):
            epoch, finite, event = self.reports.popleft()
            if event is not None:
                event.synchronize()
            fallen = [run for run in self.live if not finite[run]]
            for run in fallen:
                at.diverged[run] = [at.phase, epoch]
            if fallen and not self.net.together:
                self.captured.clear()  # the captured steps still include them

    # ------------------------------------------------------------------ an epoch

    def _train_epoch(self, step: Callable[[], None], purpose: int = 0) -> None:
        """All batches of a newly shuffled order. `purpose` keeps the draws of the expanded network apart."""
        self.loader.fill(self.samples, self._shuffled(purpose))
        self._seed_dropout(Purpose.DROPOUT, purpose)
        for _ in range(self.loader.steps):
            self._repeat(step)

    def _step(self) -> None:
        """One batch of every run: gradient of loss and penalties, then Adam."""
        own = any(penalty.needs_own for penalty in self.method.prediction_penalties)
        self._gradients(self.theta, self.loader, self._training_loss, own=own)
        penalties = () if self.first_phase else self.method.parameter_penalties
        weights = self._weights()
        forces = [force for penalty in penalties for force in penalty.forces(weights, self.gradient)]
        self.finite.logical_and_(torch.isfinite(self.loss))
        before = self._protected(self.theta).clone() if self.path is not None else self.anchor
        self.adam.step(
            self.theta, self.gradient, self.rate, self.loader.present(), forces, keep=self.path is not None
        )
        if self.path is not None:
            change = self._protected(self.theta) - before
            self.path.addcmul_(self._protected(self.gradient), change, value=-1)
        self.loader.step.add_(1)

    def _expanded_step(self) -> None:
        """One batch of the expanded network of AF-2, which learns the task alone."""
        assert self.expanded is not None and self.expanded_adam is not None
        self._gradients(self.expanded, self.loader, _cross_entropy, own=False)
        self.expanded_adam.step(self.expanded, self.gradient, self.rate, self.loader.present())
        self.loader.step.add_(1)

    @torch.no_grad()
    def _validate(self) -> None:
        """Validation loss with parameter penalties and without AF-S; best weights; learning-rate drops."""
        self.validation_loss.zero_()
        sizes = self.validation.valid.sum((1, 2))

        def work(run: Runs) -> None:
            for step in range(self.validation.capacity):
                batch = self.validation.batch(run, step)
                out = self.net.forward(self.theta[run], batch.images, self.heads, batch.member)
                loss = (cross_entropy(out.logits, batch.labels) * batch.valid).sum(-1)
                self.validation_loss[run] += loss / sizes[run]

        self.lanes.each(self.live, work)
        if self.method.parameter_penalties and not self.first_phase:
            weights = self._weights()
            for penalty in self.method.parameter_penalties:
                self.validation_loss.add_(penalty.value(weights))
        self.finite.logical_and_(torch.isfinite(self.validation_loss))

        better = self.validation_loss < self.best_loss
        self.best_loss.copy_(torch.where(better, self.validation_loss, self.best_loss))
        self.best.copy_(torch.where(better.unsqueeze(1), self.theta, self.best))
        self.waited.add_(1).masked_fill_(better, 0.0)
        tired = self.waited >= self.training.patience
        self.rate.copy_(torch.where(tired, self.rate / self.training.drop, self.rate))
        self.waited.masked_fill_(tired, 0.0)
        self.adam.restart(tired)
        if self.expanded_adam is not None:
            self.expanded_adam.restart(tired)

    # ------------------------------------------------------------------ losses

    def _training_loss(self, run: Runs, row: Tensor, out: Outputs, batch: Batch) -> Tensor:
        loss = _cross_entropy(run, row, out, batch)
        if self.method.prediction_penalties:
            views = self.net.layout.views(row)
            seen = Predictions(
                log_p=out.logits.log_softmax(-1),
                own_log_p=None if out.own_logits is None else out.own_logits.log_softmax(-1),
                weight=batch.weight,
                learned={name: views[name] for name in self.net.learned},
                first_task=self.first_phase,
            )
            for penalty in self.method.prediction_penalties:
                loss = loss + strength_of(penalty.strength, run) * penalty.value(seen)
        return loss

    def _weights(self) -> Weights:
        """What parameter penalties look at."""
        return Weights(
            self.net, self.theta, self.heads, self.importance, self.anchor, self.expanded, self.expanded_importance
        )

    # ------------------------------------------------------------------ importance

    def _measured(self) -> list[GradientImportance]:
        """The importances that `_measure` will be asked for."""
        own = [self.method.importance] if isinstance(self.method.importance, GradientImportance) else []
        return own + ([fisher_published()] if self.method.expands else [])

    def _measure(self, importance: GradientImportance, theta: Tensor, purpose: Purpose) -> None:
        """Importance of `theta` for the phase's training data, into self.estimate."""
        loader = self.small_loaders[importance.batch]

        def loss(run: Runs, row: Tensor, out: Outputs, batch: Batch) -> Tensor:
            return importance.objective(out.logits, batch.labels, batch.valid)

        def several_batches() -> None:
            noise = self.noise if importance.dropout else None
            found = stacked_gradients(self.net, theta, loader, self.heads, loss, noise, self.at_once)  # (R, n, P)
            present = loader.valid.index_select(1, loader.steps_ahead(self.at_once)).amax(2)
            share = (present / self.train_sizes.unsqueeze(1)).unsqueeze(2)
            size = self.net.layout.protected
            self.estimate.add_(importance.reduce(found[..., :size]).mul_(share).sum(1))
            loader.step.add_(self.at_once)

        def one_batch() -> None:
            self._gradients(theta, loader, loss, own=False, dropout=importance.dropout)
            share = (loader.present() / self.train_sizes).unsqueeze(1)  # a run out of batches adds nothing
            self.estimate.addcmul_(importance.reduce(self._protected(self.gradient)), share)
            loader.step.add_(1)

        self.estimate.zero_()
        loader.step.zero_()
        self._seed_dropout(Purpose.IMPORTANCE, purpose)
        for _ in range(-(-loader.steps // self.at_once)):
            self._repeat(several_batches if self.at_once > 1 else one_batch, importance.name, purpose)

    # ------------------------------------------------------------------ small things

    def _gradients(self, theta: Tensor, loader: Loader, loss: RunLoss, *, own: bool, dropout: bool = True) -> None:
        """The gradient (R, P) of a batch of every run, in self.gradient for the rest of the step."""
        self.gradient = data_gradients(
            self.net,
            theta,
            loader,
            self.heads,
            loss,
            lanes=self.lanes,
            runs=self.live,
            noise=self.noise if dropout else None,
            own=own,
            gradient=self.gradient,
            value=self.loss,
        )

    def _repeat(self, work: Callable[[], None], *which: Any) -> None:
        """Run a piece of work that comes again and again, through a CUDA graph where there is a GPU."""
        name = (work.__name__, self.first_phase, *which)
        if name not in self.captured:
            self.captured[name] = Captured(work, self.device, graphs=self.net.execute.capturable)
        self.captured[name]()

    def _run_keys(self, *words: int) -> Tensor:
        at = self.position
        return torch.tensor([key(seed, *words, at.phase, at.epoch) for seed in self.fleet.seeds])

    def _shuffled(self, purpose: int) -> Tensor:
        keys = self._run_keys(Purpose.ORDER, purpose).to(self.device)
        return shuffled(keys, self.samples.sizes, self.samples.index.shape[1])

    def _seed_dropout(self, *words: int) -> None:
        self.keys.copy_(self._run_keys(*words))
        drawn = Noise.at(self.keys, self.every_step)
        self.noise.first.copy_(drawn.first)
        self.noise.second.copy_(drawn.second)

    def _protected(self, theta: Tensor) -> Tensor:
        return theta[:, : self.net.layout.protected]


def _finished_event(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that was asked of a GPU so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def _cross_entropy(run: Runs, row: Tensor, out: Outputs, batch: Batch) -> Tensor:
    return (cross_entropy(out.logits, batch.labels) * batch.weight).sum(-1)
