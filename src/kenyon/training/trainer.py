"""The training loop: runs learn their tasks one after another.

Read `Trainer.epochs` and `Trainer.step`. All state is tensors with a leading run axis that stay in place, so that
steps can be captured as CUDA graphs and checkpoints hold all of it; every random number is a function of (seed,
purpose, phase, epoch, step). Nothing else decides a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from kenyon.backends.layout import Factors, Rows
from kenyon.backends.optimizers import Adam, Optimizer, Sgd, bound, why_overshot
from kenyon.backends.triton.updates import Idle
from kenyon.data.tasks import Stream
from kenyon.methods.base import Method
from kenyon.methods.importance import GradientImportance, accumulated
from kenyon.methods.mechanism import Attached, Tracker
from kenyon.models import Net, Outputs
from kenyon.models.nodes import Nodes
from kenyon.random import Purpose
from kenyon.training.batches import Batch
from kenyon.training.checkpoint import Interrupted, Position
from kenyon.training.device import Answers, Finite, Runs, on_device
from kenyon.training.engine import Engine
from kenyon.training.evaluation import Discrete, Evaluation, evaluate, evaluate_members, member_rows
from kenyon.training.gradients import idle_heads
from kenyon.training.objective import Penalties, check_fit
from kenyon.training.regime import Training, choose_schedule
from kenyon.utils.clock import since
from kenyon.utils.determinism import is_deterministic
from kenyon.utils.threads import cpu_threads

# Called by `Trainer.run` after every epoch; returns True to stop there.
Watcher = Callable[["Trainer"], bool]


@dataclass(frozen=True)
class Epoch:
    """A position in the training, between two epochs."""

    phase: int  # finished phases: a phase is one stage of one task
    number: int  # finished epochs of the next phase
    phase_finished: bool  # a phase has just been finished: weights chosen, and after its last stage the task tested


class Trainer:
    """Trains R runs on their streams: `for epoch in trainer.epochs()`."""

    def __init__(
        self, net: Net, streams: Sequence[Stream], method: Method, training: Training, *, members: int = 1
    ) -> None:
        """One run a stream. `members`: independent networks of a run; each is a row, and rows share nothing, so that
        all that is said of runs below holds for rows.
        """
        check_fit(net, streams, method)
        self.net, self.method, self.training = net, method, training
        self.streams, self.members = tuple(streams), members
        self.device = net.device
        if self.device.type == "cuda":
            # Shapes never change: search the fastest convolution, except where it has to be the same every time.
            torch.backends.cudnn.benchmark = not is_deterministic()
        tasks, stages = range(len(streams[0].tasks)), len(method.stages)
        learned = [tuple(tasks)] if method.schedule == "joint" else [(t,) for t in tasks]
        self.phases: list[tuple[int, ...]] = [some for some in learned for _ in range(stages)]
        rows = member_rows(streams, members)
        self.engine = Engine(net, rows, training, self.phases, self._measured(), method.replay, members)
        self.fleet = self.engine.fleet
        R = len(rows)

        # The state: saved in checkpoints, and sufficient to resume.
        self.theta = net.initial(self.fleet.seeds)  # (R, P)
        self.optimizer = self.new_optimizer(self.theta)
        self.schedule = choose_schedule(training, self.theta)
        self.rate = torch.zeros(R, device=self.device)
        self.anchor = self._protected(self.theta).clone()  # (R, Pp) weights that the previous task left
        self.importance = torch.zeros_like(self.anchor)
        self.discrete = Discrete(net, self.fleet) if method.schedule == "discrete" else None
        self.mechanisms: list[Attached] = [mechanism.attach(self) for mechanism in method.mechanisms]
        self.tracker: Tracker | None = None
        if method.importance is not None and not isinstance(method.importance, GradientImportance):
            self.tracker = method.importance.track(self)

        teaches = "teacher" in method.needs
        self.teacher = torch.zeros_like(self.theta) if teaches else None  # (R, P) the network that the task found

        # Every epoch counts where more than the best weights is kept of it.
        if self.carries or self.tracker is not None or any(one.every_epoch for one in self.mechanisms):
            self.schedule.never_settle()

        # Work space: rebuilt at any time, never saved.
        self.masks = [one.mask for one in self.mechanisms if one.mask is not None]
        if self.optimizer.multiplies and self.tracker is None and not self.masks:
            self.engine.keep_factors()
        shown = [one.shown for one in self.mechanisms]
        held = (self.theta, self.importance, self.anchor)
        self.penalties = Penalties(net, method, self.engine.heads, *held, shown, self.teacher)
        self.validation_loss = torch.zeros(R, device=self.device)
        self.finite, self.settling = Finite(R, self.device), Answers(self.device)

    def close(self) -> None:
        """Free everything but what others refer to. Trainer, engine and captured steps refer to each other: data and
        work space would otherwise stay until the garbage collector runs.
        """
        vars(self.engine).clear()
        vars(self).clear()

    # ------------------------------------------------------------------ the loop

    def epochs(self) -> Iterator[Epoch]:
        """Train from the current position. Yields after every epoch, and again when a phase is finished; in between,
        the caller may save, report or stop.
        """
        at = self.position
        while at.phase < len(self.phases) and self.live:
            with self._working():
                self.enter_phase()
                if at.epoch == 0:
                    self.start_phase()
            settled = False
            while at.epoch < self.training.epochs and not settled:
                with self._working():
                    self.schedule.before_epoch(at.epoch, self.rate)
                    for mechanism in self.mechanisms:
                        mechanism.before_epoch()
                    self.train_epoch(self.step, self.theta)
                    for mechanism in self.mechanisms:
                        mechanism.after_epoch()
                    if self.schedule.validates:
                        self.engine.repeat(self.validate, self.engine.validation.steps)
                    settled = self._settled()
                    self._retire_diverged(last=settled or at.epoch + 1 == self.training.epochs)
                    at.epoch += 1
                yield Epoch(at.phase, at.epoch, phase_finished=False)
                if not self.live:
                    return
            at.epoch = self.training.epochs  # skipped epochs count: random numbers depend on it
            with self._working():
                self.finish_phase()
            at.phase, at.epoch = at.phase + 1, 0
            yield Epoch(at.phase, 0, phase_finished=True)

    def run(self, watch: Watcher | None = None) -> Position:
        """Train from the current position to the end, or until `watch` returns True, which raises `Interrupted`."""
        for _ in self.epochs():
            if watch is not None and watch(self) and self.position.phase < len(self.phases):
                raise Interrupted
        return self.position

    def step(self) -> None:
        """One batch of every run: gradients of loss and penalties, then the update."""
        engine = self.engine
        engine.step_gradients(self.theta, self.batch_loss, forward=self._forward, own=self.penalties.needs_own)
        self.finite.add(engine.loss)
        if self.tracker is not None:
            self.tracker.before_step()
        pulls = self.penalties.forces(self.gradient)
        moving = (self.theta, self.gradient, self.rate, self.present)
        keep = self.tracker is not None
        self.optimizer.step(*moving, pulls, keep=keep, idle=self._idle, factors=self._factors)
        for mask in self.masks:
            self.theta.mul_(mask)
        if self.tracker is not None:
            self.tracker.after_step()
        engine.loader.step.add_(1)

    def batch_loss(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        """The loss of a training batch; penalties on weights come as closed-form gradients instead."""
        loss, penalties = self.engine.batch_loss(row, out, batch), self.method.prediction_penalties
        if not penalties:
            return loss
        return loss + self.penalties.on_predictions(penalties, run, row, out, batch.weight, batch.images)

    @torch.no_grad()
    def validate(self) -> None:
        """The loss on validation data (R,), with the penalties that count in it; then the schedule."""
        self.validation_loss.zero_()
        self.engine.held_out_loss(self.theta, self.validation_loss, self.penalties.validated, self._forward)
        for value in self.penalties.values():
            self.validation_loss.add_(value)
        self.finite.add(self.validation_loss)
        self.optimizer.restart(self.schedule.follow(self.theta, self.validation_loss, self.rate))

    @property
    def _forward(self) -> Callable[..., Outputs]:
        """The stage's forward pass, with the heads of earlier tasks where a penalty needs them."""
        forward, earlier = self.engine.stage.forward, self.penalties.earlier
        return forward if earlier is None else partial(forward, earlier=earlier)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Count the time that training takes, on the network's device."""
        started = time.perf_counter()
        with on_device(self.device), cpu_threads(None):
            yield
        self.position.seconds += since(started)

    @property
    def position(self) -> Position:
        return self.engine.position

    @position.setter
    def position(self, at: Position) -> None:
        self.engine.position = at

    @property
    def live(self) -> list[int]:
        """The rows of runs whose loss has stayed finite."""
        return self.engine.live

    @property
    def task(self) -> int:
        """The number of tasks learned before this one; 0 if the schedule reinitializes for each task."""
        return 0 if self._reinitializes else self.tasks_before

    @property
    def _reinitializes(self) -> bool:
        return self.method.schedule in ("restart", "discrete")

    @property
    def tasks_before(self) -> int:
        """The number of tasks whose stages are all finished, whatever the schedule."""
        return self.position.phase // len(self.method.stages)

    @property
    def stage(self) -> int:
        return self.position.phase % len(self.method.stages)

    @property
    def done(self) -> float:
        """Finished epochs, of `len(phases) * training.epochs`, each weighted by its number of steps."""
        at, each, steps = self.position, self.training.epochs, self._steps
        behind = sum(steps[: at.phase]) * each + (steps[at.phase] * at.epoch if at.epoch else 0)
        return behind * len(steps) / sum(steps)

    @cached_property
    def _steps(self) -> list[int]:
        """Steps of an epoch of each phase, for the run with most samples."""
        return [-(-self.fleet.largest("train", [phase]) // self.training.batch) for phase in self.phases]

    @property
    def parameter_count(self) -> int:
        """Trainable numbers of one run."""
        return self.discrete.parameter_count if self.discrete else self.net.parameter_count * self.members

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name. All tensors have a leading run axis."""
        own = {"theta": self.theta, "rate": self.rate, "importance": self.importance, "anchor": self.anchor}
        if self.teacher is not None:
            own["teacher"] = self.teacher
        optional = [part for part in (self.tracker, self.discrete) if part is not None]
        parts = (self.schedule, self.optimizer, *self.mechanisms, *optional)
        return own | {name: tensor for part in parts for name, tensor in part.tensors().items()}

    # ------------------------------------------------------------------ a phase

    def enter_phase(self) -> None:
        """Lay out the data of the phase, also after a restart."""
        stage = self.method.stages[self.stage]
        self.penalties.active = self.method.from_first or self.task + 1 >= self.training.penalties_from
        self.penalties.first_task = self.task == 0 and not self.method.from_first
        self.settling.waiting.clear()
        variant = (self.penalties.active, self.task == 0, self.stage)
        self.engine.enter(self.phases[self.position.phase], stage, variant, self.theta)
        if self.teacher is not None:
            self.penalties.earlier = self.net.heads_of(range(self.task)) if self.task > 0 else None
            self.engine.captured.clear()  # captured steps have the heads of one task

    def start_phase(self) -> None:
        """Reset what the previous phase left in optimizer and schedule."""
        # Stages train different parts: momentum of one would move parts that the next holds still. Where weights are
        # reinitialized, momentum has no meaning.
        if not self.carries or len(self.method.stages) > 1 or self._reinitializes:
            self.optimizer.restart()
        elif not self.net.shared:
            self._stop_heads()
        if self.stage == 0:
            self._start_task()
        self.rate.fill_(self.training.rate)
        self.schedule.begin(self.theta)
        self.finite.clear()

    def _stop_heads(self) -> None:
        """Reset the momentum of heads: it would move the previous head, with no loss or protection against it."""
        rows = [tensor for tensor in self.optimizer.tensors().values() if tensor.shape == self.theta.shape]
        for momentum in rows:
            for name in self.net.head_names:
                self.net.layout.view(momentum, name).zero_()

    def _start_task(self) -> None:
        if self.teacher is not None:
            self.teacher.copy_(self.theta)
        if self.method.schedule == "restart":
            self.theta.copy_(self.net.initial(self.fleet.seeds))
        if self.discrete is not None:
            self.discrete.begin(self.theta, self.tasks_before)
        self.net.draw_learned(self.theta, self.fleet.seeds, self.tasks_before)
        for mechanism in self.mechanisms:
            mechanism.start_task()
        if self.tracker is not None:
            self.tracker.start_task()
        if self.training.bounded:
            pulls = self.penalties.forces(self.gradient)  # whose buffer is free between steps
            bound(self.importance, pulls, self.training.rate, self.optimizer.follows)

    def finish_phase(self) -> None:
        """Choose the weights of the phase. After the last stage of a task, measure importance and test all tasks."""
        at, importance = self.position, self.method.importance
        self.schedule.finish(self.theta)
        if self.stage + 1 < len(self.method.stages):
            return
        self.net.statistics.carry_over(self.net.layout, self.theta, self.net.head_of(self.phases[at.phase][-1]))
        if self.discrete is not None:
            self.discrete.finish(self.theta, self.tasks_before)
        for mechanism in self.mechanisms:
            mechanism.finish_task()
        if importance is not None:
            estimate = None if self.tracker is None else self.tracker.estimate()  # of the change since the anchor
            self.anchor.copy_(self._protected(self.theta))
            if isinstance(importance, GradientImportance):
                self.measure(importance, self.theta, Purpose.IMPORTANCE)
            found = self.estimate if estimate is None else estimate
            self.importance.copy_(accumulated(self.importance, found, self.tasks_before, importance.accumulate))
        result = self._evaluate()
        at.records.append({name: getattr(result, name).tolist() for name in result.__dataclass_fields__})

    def _evaluate(self) -> Evaluation:
        """Test every run on all tasks."""
        lanes = self.engine.lanes
        if self.discrete is not None:
            return self.discrete.evaluate(lanes, self.live)
        if self.members > 1:
            return evaluate_members(self.net, self.theta, self.fleet, lanes, self.live, self.members)
        return evaluate(self.net, self.theta, self.fleet, lanes, self.live)

    def _settled(self) -> bool:
        """True if, by the epochs known so far, no later epoch changes what the phase leaves."""
        if self.schedule.settled is None or not self.schedule.settles:
            return False
        self.settling.ask(self.position.epoch, self.schedule.settled)
        return any(all(rows[row] for row in self.live) for _, rows in self.settling.known())

    def _retire_diverged(self, *, last: bool) -> None:
        """Stop runs whose loss is no longer finite; the others continue."""
        at = self.position
        settled = None if self.schedule.settled is None else self.schedule.settled > 0
        if last and settled is None:  # nothing was validated since the last update
            self.finite.add(0 * torch.linalg.vector_norm(self.theta, dim=1))  # NaN where squares overflow
        for epoch, rows in self.finite.fallen(at.epoch, last=last, settled=settled):
            fallen = {row // self.members for row in rows if row in self.live}
            for run in fallen:
                at.diverged[run] = [self.tasks_before, epoch]
            if fallen and not self.net.together:
                self.engine.captured.clear()  # captured steps still include them

    def why_diverged(self, run: int) -> str:
        """Return the reason as a sentence; empty if it is unknown, or if the run diverged in an earlier task."""
        place = self.position.diverged[run]
        if place is None or place[0] != self.tasks_before:
            return ""
        pulls = self.penalties.forces(self.gradient)
        rates = {row: float(self.rate[row]) for row in range(run * self.members, (run + 1) * self.members)}
        return why_overshot(pulls, self.importance, rates, self.optimizer.follows)

    # ------------------------------------------------------------------ what mechanisms use

    def train_epoch(self, step: Callable[[], None], theta: Tensor, purpose: int = 0) -> None:
        self.engine.train_epoch(step, theta, purpose)

    def plain_step(self, theta: Tensor, optimizer: Optimizer) -> None:
        """Update another network of the same shape by one batch: cross-entropy alone."""
        self.engine.plain_gradients(theta)
        moving = (theta, self.gradient, self.rate, self.present)
        optimizer.step(*moving, keep=False, idle=self._idle, factors=self._factors)
        self.engine.loader.step.add_(1)

    @property
    def _factors(self) -> list[Factors]:
        return list(self.engine.factors.values())

    @property
    def _idle(self) -> Idle | None:
        """Heads without gradient and momentum; none where momentum is carried, which an earlier head may have."""
        return None if self.carries else idle_heads(self.net, self.engine.heads_of(self.engine.loader))

    @property
    def gradient(self) -> Tensor:
        return self.engine.gradient

    @property
    def present(self) -> Tensor:
        return self.engine.loader.present()

    @property
    def dropped(self) -> Tensor | None:
        return self.schedule.dropped

    @property
    def estimate(self) -> Tensor:
        return self.engine.measuring.estimate

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.fleet.seeds

    @property
    def carries(self) -> bool:
        return self.training.carry

    def new_optimizer(self, theta: Tensor) -> Adam | Sgd:
        if self.training.optimiser == "sgd":
            return Sgd(theta.shape, self.device, self.training.momentum)
        return Adam(theta.shape, self.device)

    new_optimiser = new_optimizer  # its name in version 0.1

    def measure(self, importance: GradientImportance, theta: Tensor, purpose: Purpose) -> None:
        """Measure the importance of `theta` on the phase's training data, into self.estimate."""
        if theta is self.theta:
            pulls, on_predictions = self.penalties.forces, self.penalties.validated
            self.engine.measuring(importance, theta, purpose, forces=pulls, penalties=on_predictions)
        else:  # another network has no penalties
            self.engine.measuring(importance, theta, purpose)

    def activations(self, nodes: Nodes) -> Tensor:
        return self.engine.activations(nodes, self.theta)

    def _measured(self) -> list[GradientImportance]:
        """The importances that `measure` is called with."""
        own = [self.method.importance] if isinstance(self.method.importance, GradientImportance) else []
        return own + [importance for mechanism in self.method.mechanisms for importance in mechanism.measures]

    def _protected(self, theta: Tensor) -> Tensor:
        return theta[:, : self.net.layout.protected]
