"""The training loop: a fleet of runs learns its phases one after another.

Read `Trainer._run` from top to bottom. Everything it changes is a tensor with a leading run axis that stays in
place (so that steps can be captured as CUDA graphs and states saved whole); every random number is a function
of (seed, purpose, phase, epoch, step). Nothing else decides a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from kenyon.backends.optimizers import Adam, Optimiser, Sgd, bound, why_overshot
from kenyon.backends.triton.factors import Factors
from kenyon.backends.triton.updates import Idle
from kenyon.data.tasks import Stream
from kenyon.methods import Method
from kenyon.methods.importance import GradientImportance, accumulated
from kenyon.methods.mechanism import Hooks, Tracking
from kenyon.models import Net
from kenyon.models.nodes import Nodes
from kenyon.random import Purpose
from kenyon.training.checkpoint import Position
from kenyon.training.device import Answers, Finite, on_device
from kenyon.training.engine import Engine
from kenyon.training.evaluation import Discrete, Evaluation, evaluate, evaluate_members, member_rows
from kenyon.training.gradients import idle_heads
from kenyon.training.objective import Objective, check_fit
from kenyon.training.regime import Plateau, Training, choose_schedule
from kenyon.utils.clock import since
from kenyon.utils.determinism import is_deterministic
from kenyon.utils.threads import cpu_threads


class Interrupted(Exception):
    """The watcher asked to stop; the trainer's tensors and position hold a complete epoch."""


# Called after every epoch with the trainer; returns True to stop there.
Watcher = Callable[["Trainer"], bool]


class Trainer:
    """A fleet of runs that learn their tasks one after another: `run` is the loop."""

    def __init__(
        self, net: Net, streams: Sequence[Stream], method: Method, training: Training, *, members: int = 1
    ) -> None:
        """One run a stream; `members`: how many networks a run has that learn independently. Each is a row, and rows
        share nothing, so what is said of runs below is true of rows.
        """
        check_fit(net, streams, method)
        self.net, self.method, self.training = net, method, training
        self.streams, self.members = tuple(streams), members
        self.device = net.device
        if self.device.type == "cuda":
            # Shapes never change: the fastest convolution is worth finding, unless it shall be the same every time.
            torch.backends.cudnn.benchmark = not is_deterministic()
        tasks, stages = range(len(streams[0].tasks)), len(method.stages)
        learned = [tuple(tasks)] if method.schedule == "joint" else [(t,) for t in tasks]
        # A phase is one stage of one task; joint training has all tasks in one.
        self.phases: list[tuple[int, ...]] = [some for some in learned for _ in range(stages)]
        rows = member_rows(streams, members)
        self.engine = Engine(net, rows, training, self.phases, self._measured(), method.replay, members)
        self.fleet = self.engine.fleet
        R = len(rows)

        # The state: what is saved, and what makes a resumed run go on as if nothing had happened.
        self.theta = net.initial(self.fleet.seeds)  # (R, P)
        self.optimiser = self.new_optimiser(self.theta)
        self.schedule = choose_schedule(training, self.theta)
        self.rate = torch.zeros(R, device=self.device)
        # (R, Pp) what the task before left, where its importance is measured
        self.anchor = self._protected(self.theta).clone()
        self.importance = torch.zeros_like(self.anchor)
        self.discrete = Discrete(net, self.fleet) if method.schedule == "discrete" else None
        self.hooks: list[Hooks] = [mechanism.attach(self) for mechanism in method.mechanisms]
        self.tracking: Tracking | None = None
        if method.importance is not None and not isinstance(method.importance, GradientImportance):
            self.tracking = method.importance.track(self)
            self.hooks.append(self.tracking)

        if isinstance(self.schedule, Plateau) and (self.carries or any(hook.every_epoch for hook in self.hooks)):
            self.schedule.never_settle()  # every epoch counts for more than the weights it finds

        # Work space: rebuilt at will, never saved.
        if self.optimiser.multiplies and not any(hook.within_steps for hook in self.hooks):
            self.engine.keep_factors()
        state = (self.theta, self.importance, self.anchor, self.hooks)
        self.objective = Objective(net, method, self.engine, *state)
        self.validation_loss = torch.zeros(R, device=self.device)
        self.finite, self.settling = Finite(R, self.device), Answers(self.device)

    def close(self) -> None:
        """Free everything but what others refer to. Trainer, engine, hooks and captured steps refer to each other, so
        that data and work space would otherwise stay until the garbage collector runs.
        """
        vars(self.engine).clear()
        vars(self).clear()

    # ------------------------------------------------------------------ the loop

    def run(self, watch: Watcher | None = None) -> Position:
        """Train from the present position to the end."""
        with on_device(self.device), cpu_threads(None):
            return self._run(watch)

    def _run(self, watch: Watcher | None) -> Position:
        at = self.position
        while at.phase < len(self.phases) and self.live:
            started = time.perf_counter()
            self._enter_phase()
            if at.epoch == 0:
                self._begin_phase()
            at.seconds += since(started)
            settled = False
            while at.epoch < self.training.epochs and not settled:
                started = time.perf_counter()
                self.schedule.before_epoch(at.epoch, self.rate)
                for hook in self.hooks:
                    hook.before_epoch()
                self.train_epoch(self._step, self.theta)
                for hook in self.hooks:
                    hook.after_epoch()
                if isinstance(self.schedule, Plateau):
                    self.engine.repeat(self._validate, self.engine.validation.steps)
                settled = self._settled()
                self._retire_diverged(last=settled or at.epoch + 1 == self.training.epochs)
                at.epoch += 1
                at.seconds += since(started)
                if watch is not None and watch(self):
                    raise Interrupted
                if not self.live:
                    return at
            at.epoch = self.training.epochs  # also where the last ones were left out: random numbers go by it
            started = time.perf_counter()
            self._finish_phase()
            at.seconds += since(started)
            at.phase, at.epoch = at.phase + 1, 0
            if watch is not None and watch(self) and at.phase < len(self.phases):
                raise Interrupted
        return at

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
        """How many tasks were learned before this one; where every task begins anew, none ever was."""
        return 0 if self._begins_anew else self.tasks_before

    @property
    def _begins_anew(self) -> bool:
        return self.method.schedule in ("restart", "discrete")

    @property
    def tasks_before(self) -> int:
        """How many tasks all stages of were gone through, whatever the schedule made of them."""
        return self.position.phase // len(self.method.stages)

    @property
    def stage(self) -> int:
        return self.position.phase % len(self.method.stages)

    @property
    def done(self) -> float:
        """How many epochs are behind, of `len(phases) * training.epochs`, each counted by its steps: one of a larger
        task is worth more than one.
        """
        at, each, steps = self.position, self.training.epochs, self._steps
        behind = sum(steps[: at.phase]) * each + (steps[at.phase] * at.epoch if at.epoch else 0)
        return behind * len(steps) / sum(steps)

    @cached_property
    def _steps(self) -> list[int]:
        """Of an epoch of each phase, for the run with most samples."""
        return [-(-self.fleet.largest("train", [phase]) // self.training.batch) for phase in self.phases]

    @property
    def penalised(self) -> bool:
        """Whether penalties on the weights act."""
        return self.method.from_first or self.task + 1 >= self.training.penalties_from

    @property
    def parameter_count(self) -> int:
        """Trainable numbers of one run."""
        return self.discrete.parameter_count if self.discrete else self.net.parameter_count * self.members

    def tensors(self) -> dict[str, Tensor]:
        """The state by name. All tensors have a leading run axis."""
        own = {"theta": self.theta, "rate": self.rate, "importance": self.importance, "anchor": self.anchor}
        parts = (self.schedule, self.optimiser, *self.hooks, *([self.discrete] if self.discrete else []))
        return own | {name: tensor for part in parts for name, tensor in part.tensors().items()}

    # ------------------------------------------------------------------ a phase

    def _enter_phase(self) -> None:
        """Lay out the data of the phase; done anew after a restart."""
        stage = self.method.stages[self.stage]
        self.objective.penalised = self.penalised
        self.objective.first_task = self.task == 0 and not self.method.from_first
        self.settling.waiting.clear()  # of the phase before
        variant = (self.penalised, self.task == 0, self.stage)
        self.engine.enter(self.phases[self.position.phase], stage, variant, self.theta)

    def _begin_phase(self) -> None:
        # Stages train different parts: momentum from one would move in the next what that is to leave alone. And
        # nothing goes on where no weights do.
        if not self.carries or len(self.method.stages) > 1 or self._begins_anew:
            self.optimiser.restart()
        elif not self.net.shared:
            self._stop_heads()
        if self.stage == 0:
            self._begin_task()
        self.rate.fill_(self.training.rate)
        self.schedule.begin(self.theta)
        self.finite.clear()

    def _stop_heads(self) -> None:
        """Momentum would carry the head of the task before on, with no loss and no protection to bring it back."""
        rows = [tensor for tensor in self.optimiser.tensors().values() if tensor.shape == self.theta.shape]
        for momentum in rows:
            for name in self.net.head_names:
                self.net.layout.view(momentum, name).zero_()

    def _begin_task(self) -> None:
        if self.method.schedule == "restart":
            self.theta.copy_(self.net.initial(self.fleet.seeds))
        if self.discrete is not None:
            self.discrete.begin(self.theta, self.tasks_before)
        self.net.draw_learned(self.theta, self.fleet.seeds, self.tasks_before)
        for hook in self.hooks:
            hook.begin_task()
        if self.training.bounded:
            forces = self.objective.forces(self.gradient)  # which is free between steps
            bound(self.importance, forces, self.training.rate, self.optimiser.follows)

    def _finish_phase(self) -> None:
        """Keep the weights of the phase, weigh their importance, test on every task."""
        at, importance = self.position, self.method.importance
        self.schedule.finish(self.theta)
        if self.stage + 1 < len(self.method.stages):
            return  # the task goes on
        self.net.statistics.hand_on(self.net.layout, self.theta, self.net.head_of(self.phases[at.phase][-1]))
        if self.discrete is not None:
            self.discrete.finish(self.theta, self.tasks_before)
        for hook in self.hooks:
            hook.finish_task()
        if importance is not None:
            estimate = None if self.tracking is None else self.tracking.estimate()  # of the change since the anchor
            self.anchor.copy_(self._protected(self.theta))
            if isinstance(importance, GradientImportance):
                self.measure(importance, self.theta, Purpose.IMPORTANCE)
            found = self.estimate if estimate is None else estimate
            self.importance.copy_(accumulated(self.importance, found, self.tasks_before, importance.accumulate))
        result = self._tested()
        at.records.append({name: getattr(result, name).tolist() for name in result.__dataclass_fields__})

    def _tested(self) -> Evaluation:
        """On all tasks, one result a run."""
        lanes = self.engine.lanes
        if self.discrete is not None:
            return self.discrete.evaluate(lanes, self.live)
        if self.members > 1:
            return evaluate_members(self.net, self.theta, self.fleet, lanes, self.live, self.members)
        return evaluate(self.net, self.theta, self.fleet, lanes, self.live)

    def _settled(self) -> bool:
        """Whether, by what is known of the epochs so far, no epoch to come changes what the phase leaves."""
        if not (isinstance(self.schedule, Plateau) and self.schedule.settles):
            return False
        self.settling.ask(self.position.epoch, self.schedule.settled)
        return any(all(rows[row] for row in self.live) for _, rows in self.settling.known())

    def _retire_diverged(self, *, last: bool) -> None:
        """Runs whose loss is no longer finite stop here; the others go on."""
        at = self.position
        settled = self.schedule.settled > 0 if isinstance(self.schedule, Plateau) else None
        if last and settled is None:  # nothing was validated since the last update
            self.finite.add(0 * torch.linalg.vector_norm(self.theta, dim=1))  # NaN where squares are no numbers
        for epoch, rows in self.finite.fallen(at.epoch, last=last, settled=settled):
            fallen = {row // self.members for row in rows if row in self.live}
            for run in fallen:
                at.diverged[run] = [self.tasks_before, epoch]
            if fallen and not self.net.together:
                self.engine.captured.clear()  # the captured steps still include them

    def why_diverged(self, run: int) -> str:
        """What can be told of the reason, as a sentence: nothing if it is none of those that are known, or if the run
        diverged in a task before, whose penalties are no longer here.
        """
        place = self.position.diverged[run]
        if place is None or place[0] != self.tasks_before:
            return ""
        forces = self.objective.forces(self.gradient)  # which is free between steps
        rates = {row: float(self.rate[row]) for row in range(run * self.members, (run + 1) * self.members)}
        return why_overshot(forces, self.importance, rates, self.optimiser.follows)

    # ------------------------------------------------------------------ an epoch

    def train_epoch(self, step: Callable[[], None], theta: Tensor, purpose: int = 0) -> None:
        self.engine.train_epoch(step, theta, purpose)

    def _step(self) -> None:
        """One batch of every run: gradient of loss and penalties, then the optimiser."""
        goal, forward = self.objective, self.engine.stage.forward
        self.engine.step_gradients(self.theta, goal.of_batch, forward=forward, own=goal.needs_own)
        self.finite.add(self.engine.loss)
        for hook in self.hooks:
            hook.before_update()
        keep = any(hook.needs_gradient for hook in self.hooks)
        forces = goal.forces(self.gradient)
        moving = (self.theta, self.gradient, self.rate, self.present)
        self.optimiser.step(*moving, forces, keep=keep, idle=self._idle, factors=self._factors)
        for hook in self.hooks:
            hook.after_update()
        self.engine.loader.step.add_(1)

    def plain_step(self, theta: Tensor, optimiser: Optimiser) -> None:
        """One batch of another network of the same shape: cross-entropy and nothing else."""
        self.engine.plain_gradients(theta)
        moving = (theta, self.gradient, self.rate, self.present)
        optimiser.step(*moving, keep=False, idle=self._idle, factors=self._factors)
        self.engine.loader.step.add_(1)

    @property
    def _factors(self) -> list[Factors]:
        return list(self.engine.factors.values())

    @property
    def _idle(self) -> Idle | None:
        """What has neither gradient nor momentum; where momentum is carried on, an earlier head may have some."""
        return None if self.carries else idle_heads(self.net, self.engine.heads_of(self.engine.loader))

    def _validate(self) -> None:
        """Validation loss; then the schedule."""
        assert isinstance(self.schedule, Plateau)
        self.objective.held_out(self.validation_loss)
        self.finite.add(self.validation_loss)
        tired = self.schedule.follow(self.theta, self.validation_loss, self.rate)
        self.optimiser.restart(tired)
        for hook in self.hooks:
            hook.rate_dropped(tired)

    # ------------------------------------------------------------------ what hooks use

    @property
    def gradient(self) -> Tensor:
        return self.engine.gradient

    @property
    def present(self) -> Tensor:
        return self.engine.loader.present()

    @property
    def estimate(self) -> Tensor:
        return self.engine.measuring.estimate

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.fleet.seeds

    @property
    def carries(self) -> bool:
        return self.training.carry

    def new_optimiser(self, theta: Tensor) -> Adam | Sgd:
        if self.training.optimiser == "sgd":
            return Sgd(theta.shape, self.device, self.training.momentum)
        return Adam(theta.shape, self.device)

    def measure(self, importance: GradientImportance, theta: Tensor, purpose: Purpose) -> None:
        """Importance of `theta` for the phase's training data, into self.estimate."""
        if theta is self.theta:
            forces, penalties = self.objective.forces, self.objective.validated
            self.engine.measuring(importance, theta, purpose, forces=forces, penalties=penalties)
        else:  # another network has no penalties
            self.engine.measuring(importance, theta, purpose)

    def activations(self, nodes: Nodes) -> Tensor:
        return self.engine.activations(nodes, self.theta)

    def _measured(self) -> list[GradientImportance]:
        """The importances that `measure` will be asked for."""
        own = [self.method.importance] if isinstance(self.method.importance, GradientImportance) else []
        return own + [importance for mechanism in self.method.mechanisms for importance in mechanism.measures]

    def _protected(self, theta: Tensor) -> Tensor:
        return theta[:, : self.net.layout.protected]
