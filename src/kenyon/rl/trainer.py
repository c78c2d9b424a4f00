"""The training loop of games: runs learn to play games one after another, by PPO.

Read `Agents.updates`: collect, learn, evaluate. As in `training.trainer`, all state is tensors with a leading run
axis that stay in place, and every random number is a function of (seed, purpose, game, update). Penalties,
importances, optimizer and checkpoints are those of images.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from kenyon.backends.layout import Rows
from kenyon.backends.optimizers import Adam
from kenyon.methods import Method
from kenyon.methods.importance import GradientImportance, accumulated
from kenyon.methods.mechanism import Tracker
from kenyon.models import Net, Outputs
from kenyon.random import Purpose, key
from kenyon.rl.environment import Suite
from kenyon.rl.evaluation import episode_scores
from kenyon.rl.importance import anchor_per_game, clip_norms, merge_anchors
from kenyon.rl.ppo import Batch, Ppo, Rollout, log_probability, network_input, ppo_loss, sample_actions
from kenyon.rl.vector import EnvPool, VectorEnvs
from kenyon.training.checkpoint import Interrupted, Position
from kenyon.training.device import Captured, Finite, Lanes, Runs, on_device
from kenyon.training.gradients import data_gradients
from kenyon.training.objective import Penalties
from kenyon.utils.clock import since
from kenyon.utils.determinism import is_deterministic
from kenyon.utils.threads import cpu_threads

RECENT = 50  # episodes of training whose mean score is shown as progress

# Called by `Agents.run` after every update, and after every game; returns True to stop there.
Watcher = Callable[["Agents"], bool]


class Agents:
    """Trains R runs, one per seed, on games of a suite: `for position in agents.updates()`."""

    def __init__(
        self, net: Net, suite: Suite, games: Sequence[str], seeds: Sequence[int], method: Method, ppo: Ppo
    ) -> None:
        self.net, self.suite, self.games, self.method, self.ppo = net, suite, tuple(games), method, ppo
        self.seeds, self.device = tuple(seeds), net.device
        if self.device.type == "cuda":
            # Shapes never change: search the fastest convolution, except where it has to be the same every time.
            torch.backends.cudnn.benchmark = not is_deterministic()
        R, N = len(seeds), ppo.copies

        # The state: saved in checkpoints, and sufficient to resume.
        self.position = Position(diverged=[None] * R)
        self.theta = net.initial(seeds)  # (R, P)
        self.optimizer = Adam(self.theta.shape, self.device, ppo.epsilon)
        self.anchor = self._protected(self.theta).clone()  # (R, Pp) where penalties pull weights to
        self.importance = torch.zeros_like(self.anchor)
        self.measured: GradientImportance | None = None  # the importance, if it is measured on rollouts
        self.tracker: Tracker | None = None  # if it is accumulated along the path
        if isinstance(method.importance, GradientImportance):
            self.measured = method.importance
        elif method.importance is not None:
            self.tracker = method.importance.track(self)
        self.envs = EnvPool(suite, games, seeds, self.device)  # part of the state if games can be saved

        # Work space: rebuilt at any time, never saved.
        self.rate, self.loss = torch.zeros(R, device=self.device), torch.zeros(R, device=self.device)
        self.gradient, self.present = torch.zeros_like(self.theta), torch.ones(R, device=self.device)
        self.heads = torch.zeros(1, dtype=torch.long, device=self.device)
        self.lanes = Lanes(self.device, R, together=net.together, threads=net.executor.threads)
        self.penalties = Penalties(net, method, self.heads, self.theta, self.importance, self.anchor)
        self.rollout = Rollout(net, R, ppo.horizon, N, suite.shape, ppo.minibatches)
        # Per-step buffers: random numbers that select actions, log-probabilities, values, actions.
        self.uniform, self.log_p, self.value = (torch.zeros(R, N, device=self.device) for _ in range(3))
        self.action = torch.zeros(R, N, dtype=torch.long, device=self.device)
        self.finite = Finite(R, self.device)
        self.captured: dict[Hashable, Captured] = {}
        self.recent: list[deque[float]] = [deque(maxlen=RECENT) for _ in seeds]
        self.spent = dict.fromkeys(("collect", "learn", "evaluate", "importance"), 0.0)  # seconds, in this session

    # ------------------------------------------------------------------ the loop

    def updates(self) -> Iterator[Position]:
        """Train from the current position. Yields after every update, and again when a game is finished; in between,
        the caller may save, report or stop. Close the agents at the end: open games are part of the state.
        """
        at = self.position
        while at.phase < len(self.games) and self.live:
            with self._working():
                self.enter_game()
                if at.epoch == 0:
                    self._start_game()
            while at.epoch < self.ppo.updates and self.live:
                with self._working():
                    self._collect(self.rollout, self._keys(Purpose.ACTION, at.epoch))
                    self._learn()
                    at.epoch += 1
                    if at.epoch in self.ppo.evaluated:
                        self._evaluate()
                yield at
            with self._working():
                self._finish_game()
                self.envs.leave()
            at.phase, at.epoch = at.phase + 1, 0
            yield at

    def run(self, watch: Watcher | None = None) -> Position:
        """Train from the current position to the end, or until `watch` returns True, which raises `Interrupted`."""
        for at in self.updates():
            if watch is not None and watch(self) and at.phase < len(self.games):
                raise Interrupted
        self.close()
        return self.position

    def close(self) -> None:
        """Close all games."""
        self.envs.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Count the time that training takes. With a GPU, the CPU makes small copies only, in one thread: more
        threads would wait for the cores that step games.
        """
        started = time.perf_counter()
        with on_device(self.device), cpu_threads(1 if self.device.type == "cuda" else None):
            yield
        self.position.seconds += since(started)

    @property
    def live(self) -> list[int]:
        """The runs whose loss has stayed finite."""
        return [run for run, place in enumerate(self.position.diverged) if place is None]

    @property
    def groups(self) -> Sequence[Runs]:
        """The runs in the portions that are computed: all at once, or one after another."""
        return [slice(None)] if self.net.together else self.live

    @property
    def games_before(self) -> int:
        """The number of games learned before this one; 0 if the schedule reinitializes for each game."""
        return 0 if self.method.schedule == "restart" else self.position.phase

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name. All tensors have a leading run axis."""
        own = {"theta": self.theta, "importance": self.importance, "anchor": self.anchor}
        tracked = {} if self.tracker is None else self.tracker.tensors()
        games = {} if self.envs.training is None else self.envs.training.save()
        return own | self.optimizer.tensors() | tracked | games

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the games from a state that has been loaded into `tensors`."""
        saved = {name: tensor for name, tensor in tensors.items() if name.startswith("games.")}
        if saved and self.envs.training is not None:
            self.envs.training.load(saved)

    # ------------------------------------------------------------------ a game

    def enter_game(self) -> None:
        """Prepare the current game, also after a restart; open games continue."""
        at = self.position
        self.penalties.active = self.method.from_first or self.games_before + 1 >= self.ppo.penalties_from
        self.penalties.first_task = self.games_before == 0 and not self.method.from_first
        self.heads.fill_(at.phase)
        self.captured.clear()
        self.present.copy_(torch.tensor([float(place is None) for place in at.diverged]))
        if self.envs.training is None:
            self._play(Purpose.GAMES, at.epoch)

    def _start_game(self) -> None:
        if self.method.schedule == "restart":
            self.theta.copy_(self.net.initial(self.seeds))
        self.optimizer.restart()
        self.net.draw_learned(self.theta, self.seeds, self.position.phase)
        if self.tracker is not None:
            self.tracker.start_task()
        self.finite.clear()
        for scores in self.recent:
            scores.clear()

    def _finish_game(self) -> None:
        """Measure the importance of the weights after the game, and make them the anchor."""
        importance = self.method.importance
        if importance is None:
            return
        with self._timed("importance"):
            if self.measured is not None:
                estimate = self._measure(self.measured)
            else:
                assert self.tracker is not None
                estimate = self.tracker.estimate()
            weights, how = self._protected(self.theta), importance.accumulate
            if anchor_per_game(self.method, self.ppo.anchors):
                pair = merge_anchors(self.importance, self.anchor, estimate, weights, self.position.phase, how)
            else:
                pair = accumulated(self.importance, estimate, self.position.phase, how), weights
            self.importance.copy_(pair[0])
            self.anchor.copy_(pair[1])

    # ------------------------------------------------------------------ collecting

    @torch.no_grad()
    def _collect(self, into: Rollout, keys: Tensor, begin: int = 0) -> None:
        """Play the steps from `begin` on. While the network computes the actions of one run, or of one group of the
        copies of a single run, the games of the others are stepped.
        """
        envs = self.envs.training
        assert envs is not None
        with self._timed("collect"):
            lost = [run for run, place in enumerate(self.position.diverged) if place is not None]
            skip = {(run, group) for run in lost for group in range(len(envs.copies))}
            turns = [(run, group, copies) for run in self.groups for group, copies in enumerate(envs.copies)]
            into.draw(keys)
            for t in range(begin, into.steps + 1):
                self.uniform.copy_(into.uniform[:, min(t, into.steps - 1)])
                for run, group, copies in turns:
                    for r, _, moment in envs.results(run, group):
                        into.host_rewards[r, t - 1, copies] = moment.rewards
                        into.host_ended[r, t - 1, copies] = moment.ended
                        self.recent[r].extend(score for _, score in moment.scores)
                    self._repeat(partial(self._act, run, copies, envs), "act", str(run), group)
                    into.values[run, t, copies] = self.value[run, copies]
                    if t == into.steps:
                        continue  # after the last step only the value is needed
                    into.observations[run, t, copies] = envs.observations[run, copies]
                    into.actions[run, t, copies] = self.action[run, copies]
                    into.log_p[run, t, copies] = self.log_p[run, copies]
                    envs.step(run, self.action[run, copies], skip, group)
            into.finish(self.ppo.discount, self.ppo.gae)

    def _act(self, run: Runs, copies: slice, envs: VectorEnvs) -> None:
        """Select actions for the present observations, with their log-probabilities and the values."""
        with torch.no_grad():
            out = self.net.forward(
                self.theta[run], network_input(self.net, envs.observations[run, copies]), self.heads
            )
            assert out.values is not None
            count = self.net.class_counts[self.position.phase]
            actions = sample_actions(out.logits, self.uniform[run, copies], count)
            self.action[run, copies], self.value[run, copies] = actions, out.values
            self.log_p[run, copies] = log_probability(out.logits, actions)

    # ------------------------------------------------------------------ learning

    def _learn(self) -> None:
        """Make several passes over the rollout, in minibatches."""
        at = self.position
        with self._timed("learn"):
            self.rate.fill_(self.ppo.rate * (1 - at.epoch / self.ppo.updates))
            for epoch in range(self.ppo.epochs):
                self.rollout.shuffle(self._keys(Purpose.ORDER, at.epoch, epoch))
                for _ in range(self.ppo.minibatches):
                    self._repeat(self._step, "step")
            for _, runs in self.finite.fallen(at.epoch, last=True):
                self._retire(runs)

    def _step(self) -> None:
        """One minibatch of every run: gradients of loss and penalties, their norm clipped, then the update."""
        self._gradients(self.rollout, self._loss, own=self.penalties.needs_own)
        self.finite.add(self.loss)
        for pull in self.penalties.forces(self.gradient):
            pull.add_to(self.gradient, self.theta)
        # A gradient that is not finite ruins the weights before a loss shows it.
        self.finite.add(0 * clip_norms(self.gradient, self.ppo.norm))
        if self.tracker is not None:
            self.tracker.before_step()
        self.optimizer.step(self.theta, self.gradient, self.rate, self.present, keep=False)
        if self.tracker is not None:
            self.tracker.after_step()
        self.rollout.step.add_(1)

    def _loss(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        loss, penalties = self._ppo_loss(run, row, out, batch), self.method.prediction_penalties
        return loss + self.penalties.on_predictions(penalties, run, row, out, batch.weight) if penalties else loss

    def _ppo_loss(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        samples = (batch.actions, batch.log_p, batch.advantages, batch.values, batch.returns)
        return ppo_loss(out, *samples, clip=self.ppo.clip, value=self.ppo.value, entropy=self.ppo.entropy)

    def _gradients(
        self, rollout: Rollout, loss: Callable[[Runs, Rows, Outputs, Batch], Tensor], *, own: bool = False
    ) -> None:
        """Compute the gradient of the current minibatch; it stays in self.gradient for the rest of the step."""
        self.gradient = data_gradients(
            self.net,
            self.theta,
            rollout,
            self.heads,
            loss,
            forward=Net.forward,
            lanes=self.lanes,
            runs=self.live,
            noise=None,
            own=own,
            gradient=self.gradient,
            value=self.loss,
        )

    def _retire(self, runs: Sequence[int]) -> None:
        """Stop runs whose loss is no longer finite; the others continue."""
        for run in runs:
            if self.position.diverged[run] is None:
                self.position.diverged[run] = [self.position.phase, self.position.epoch]
                self.present[run] = 0.0
                self.captured.clear()  # captured steps still include it

    # ------------------------------------------------------------------ evaluating

    def _evaluate(self) -> None:
        """Record the scores of all games learned so far, in the order of learning."""
        at = self.position
        with self._timed("evaluate"):
            games = self.envs.eval_envs(at.phase, at.epoch, self.ppo.episodes)
            draws = self._keys(Purpose.EVALUATION, at.epoch) if self.ppo.acting == "drawn" else None
            heads = list(range(at.phase + 1))
            scores = episode_scores(
                self.net, self.theta, games, heads, live=self.live, longest=self.ppo.longest, draws=draws
            )
            moment = [at.phase, at.epoch * self.ppo.samples]
            at.records.append({"moment": [moment] * len(self.seeds), "scores": scores.nanmean(-1).tolist()})

    # ------------------------------------------------------------------ importance

    def _measure(self, importance: GradientImportance) -> Tensor:
        """Measure the importance of the weights for the current game, on new play: (R, Pp). See `rl.importance`."""
        ppo, rollout = self.ppo, self.rollout
        estimate = torch.zeros_like(self.anchor)

        def vector_norms(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            assert out.vector is not None
            return torch.linalg.vector_norm(out.vector, dim=-1).sum(-1)

        def step() -> None:
            self._gradients(rollout, self._ppo_loss if importance.square else vector_norms)
            if importance.square:
                clip_norms(self.gradient, ppo.norm)
            gradient = self._protected(self.gradient)
            estimate.add_(gradient.square() if importance.square else gradient.abs())
            rollout.step.add_(1)

        self._play(Purpose.IMPORTANCE, 0)
        self.captured.clear()
        for number in range(ppo.importance_rollouts):
            begin = max(0, ppo.horizon - ppo.importance_steps) if number else 0
            rollout.drop_oldest(ppo.horizon - begin)
            self._collect(rollout, self._keys(Purpose.IMPORTANCE, number), begin)
            rollout.shuffle(self._keys(Purpose.IMPORTANCE, number, 1))
            for _ in range(ppo.minibatches):
                self._repeat(step, "importance")
        self.captured.clear()
        return estimate / ppo.importance_rollouts

    # ------------------------------------------------------------------ shared by the parts above

    def _play(self, purpose: Purpose, number: int) -> None:
        """Begin the current game, as training plays it."""
        turns = self._in_turns
        threads = turns or len(self.groups) > 1
        self.envs.start(self.position.phase, purpose, number, self.ppo.copies, threads=threads, turns=turns)

    @property
    def _in_turns(self) -> bool:
        """True if the copies of a single run are in groups, so that neither games nor network wait for each other. On
        a CPU both use the same cores.
        """
        return self.device.type == "cuda" and len(self.seeds) == 1 and not self.net.together

    def _keys(self, purpose: Purpose, *words: int) -> Tensor:
        """Return one key per run, (R,)."""
        keys = [key(seed, purpose, self.position.phase, *words) for seed in self.seeds]
        return torch.tensor(keys, device=self.device)

    def _repeat(self, work: Callable[[], None], *name: Hashable) -> None:
        """Do repeated work; on a GPU through a CUDA graph."""
        if name not in self.captured:
            self.captured[name] = Captured(work, self.device, self.net.executor)
        self.captured[name]()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.spent[part] += since(started)

    def _protected(self, theta: Tensor) -> Tensor:
        return theta[:, : self.net.layout.protected]
