"""The loop of reinforcement learning: runs learn to play games one after another, by PPO.

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
from kenyon.rl.importance import clip_norms, merged, own_anchors
from kenyon.rl.ppo import Batch, Ppo, Rollout, drawn, looked_at, ppo_loss, taken
from kenyon.rl.vector import Crowd, Venue
from kenyon.training.checkpoint import Interrupted, Position
from kenyon.training.device import Captured, Finite, Lanes, Runs, on_device
from kenyon.training.gradients import data_gradients
from kenyon.training.objective import Penalties
from kenyon.utils.clock import since
from kenyon.utils.threads import cpu_threads

RECENT = 50  # episodes whose scores are shown while a run learns

# Called after every update, and after every game, with the agents; returns True to stop there.
Watcher = Callable[["Agents"], bool]


class Agents:
    """R runs, one a seed, that learn the given games of a suite in their order."""

    def __init__(
        self, net: Net, suite: Suite, games: Sequence[str], seeds: Sequence[int], method: Method, ppo: Ppo
    ) -> None:
        self.net, self.suite, self.games, self.method, self.ppo = net, suite, tuple(games), method, ppo
        self.seeds, self.device = tuple(seeds), net.device
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change, so the fastest convolution is worth finding
        R, N = len(seeds), ppo.copies

        # The state: what is saved, and what makes a resumed run go on as if nothing had happened.
        self.position = Position(diverged=[None] * R)
        self.theta = net.initial(seeds)  # (R, P)
        self.optimizer = Adam(self.theta.shape, self.device, ppo.epsilon)
        self.anchor = self._protected(self.theta).clone()  # (R, Pp) where weights are held, and how firmly
        self.importance = torch.zeros_like(self.anchor)
        self.tracker: Tracker | None = None
        if method.importance is not None and not isinstance(method.importance, GradientImportance):
            self.tracker = method.importance.track(self)
        self.venue = Venue(suite, games, seeds, self.device)  # where games tell their state, it is part of it

        # Work space: rebuilt at will, never saved.
        self.rate, self.loss = torch.zeros(R, device=self.device), torch.zeros(R, device=self.device)
        self.gradient, self.present = torch.zeros_like(self.theta), torch.ones(R, device=self.device)
        self.heads = torch.zeros(1, dtype=torch.long, device=self.device)
        self.lanes = Lanes(self.device, R, together=net.together, threads=net.executor.threads)
        self.penalties = Penalties(net, method, self.heads, self.theta, self.importance, self.anchor)
        self.rollout = Rollout(net, R, ppo.horizon, N, suite.shape, ppo.minibatches)
        # Of the moment at hand: what chance says, and what follows.
        self.chance, self.log_p, self.value = (torch.zeros(R, N, device=self.device) for _ in range(3))
        self.action = torch.zeros(R, N, dtype=torch.long, device=self.device)
        self.finite = Finite(R, self.device)
        self.captured: dict[Hashable, Captured] = {}
        self.recent: list[deque[float]] = [deque(maxlen=RECENT) for _ in seeds]
        self.spent = dict.fromkeys(("collect", "learn", "evaluate", "importance"), 0.0)  # seconds, in this session

    # ------------------------------------------------------------------ the loop

    def updates(self) -> Iterator[Position]:
        """Learn from the current position. Yields after every update, and again when a game is finished; in between,
        the caller may save, report or stop. Close the agents in the end: games that are open are part of the state.
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
                self.venue.leave()
            at.phase, at.epoch = at.phase + 1, 0
            yield at

    def run(self, watch: Watcher | None = None) -> Position:
        """Learn from the current position to the end, or until `watch` returns True, which raises `Interrupted`."""
        for at in self.updates():
            if watch is not None and watch(self) and at.phase < len(self.games):
                raise Interrupted
        self.close()
        return self.position

    def close(self) -> None:
        """Close all games."""
        self.venue.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Count the time that learning takes. Beside a GPU the small copies that are left for the CPU take one
        thread: others would wait for them on the games' cores.
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
        """The runs as they are computed: all at once, or one after another."""
        return [slice(None)] if self.net.together else self.live

    @property
    def before(self) -> int:
        """How many games were learned before this one; where every game begins anew, none ever was."""
        return 0 if self.method.schedule == "restart" else self.position.phase

    def tensors(self) -> dict[str, Tensor]:
        """The state by name. All tensors have a leading run axis."""
        own = {"theta": self.theta, "importance": self.importance, "anchor": self.anchor}
        tracked = {} if self.tracker is None else self.tracker.tensors()
        crowd = self.venue.crowd
        return own | self.optimizer.tensors() | tracked | (crowd.save() if crowd else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Let the games go on from a state that has been read into `tensors`."""
        saved = {name: tensor for name, tensor in tensors.items() if name.startswith("games.")}
        if saved and self.venue.crowd:
            self.venue.crowd.load(saved)

    # ------------------------------------------------------------------ a game

    def enter_game(self) -> None:
        """Set the game up, unless that has been done; anew after a restart."""
        at = self.position
        self.penalties.active = self.method.from_first or self.before + 1 >= self.ppo.penalties_from
        self.penalties.first_task = self.before == 0 and not self.method.from_first
        self.heads.fill_(at.phase)
        self.captured.clear()
        self.present.copy_(torch.tensor([float(place is None) for place in at.diverged]))
        if self.venue.crowd is None:
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
        """Weigh the importance of the weights that the game leaves, and hold them there."""
        importance = self.method.importance
        if importance is None:
            return
        with self._timed("importance"):
            if isinstance(importance, GradientImportance):
                found = self._measure(importance)
            else:
                assert self.tracker is not None
                found = self.tracker.estimate()
            weights, how = self._protected(self.theta), importance.accumulate
            if own_anchors(self.method, self.ppo.anchors):
                pair = merged(self.importance, self.anchor, found, weights, self.position.phase, how)
            else:
                pair = accumulated(self.importance, found, self.position.phase, how), weights
            self.importance.copy_(pair[0])
            self.anchor.copy_(pair[1])

    # ------------------------------------------------------------------ collecting

    @torch.no_grad()
    def _collect(self, into: Rollout, keys: Tensor, begin: int = 0) -> None:
        """Play the steps from `begin` on. While the network looks at one run's games, or at a group of copies of a
        run that is alone, the others are stepped.
        """
        crowd = self.venue.crowd
        assert crowd is not None
        with self._timed("collect"):
            lost = [run for run, place in enumerate(self.position.diverged) if place is not None]
            gone = {(run, group) for run in lost for group in range(len(crowd.places))}
            turns = [(run, group, place) for run in self.groups for group, place in enumerate(crowd.places)]
            into.draw(keys)
            for t in range(begin, into.steps + 1):
                self.chance.copy_(into.chance[:, min(t, into.steps - 1)])
                for run, group, place in turns:
                    for r, _, moment in crowd.arrive(run, group):
                        into.given[0][r, t - 1, place] = moment.rewards
                        into.given[1][r, t - 1, place] = moment.ended
                        self.recent[r].extend(score for _, score in moment.scores)
                    self._repeat(partial(self._act, run, place, crowd), "act", str(run), group)
                    into.values[run, t, place] = self.value[run, place]
                    if t == into.steps:
                        continue  # only the value behind the last step was wanted
                    into.observations[run, t, place] = crowd.seen[run, place]
                    into.actions[run, t, place] = self.action[run, place]
                    into.log_p[run, t, place] = self.log_p[run, place]
                    crowd.play(run, self.action[run, place], gone, group)
            into.weigh(self.ppo.discount, self.ppo.gae)

    def _act(self, run: Runs, place: slice, crowd: Crowd) -> None:
        """What to do at what is seen, how likely that was, and what the moment is worth."""
        with torch.no_grad():
            out = self.net.forward(self.theta[run], looked_at(self.net, crowd.seen[run, place]), self.heads)
            assert out.values is not None
            actions = drawn(out.logits, self.chance[run, place], self.net.class_counts[self.position.phase])
            self.action[run, place], self.value[run, place] = actions, out.values
            self.log_p[run, place] = taken(out.logits, actions)

    # ------------------------------------------------------------------ learning

    def _learn(self) -> None:
        """Several passes over what was seen, in minibatches."""
        at = self.position
        with self._timed("learn"):
            self.rate.fill_(self.ppo.rate * (1 - at.epoch / self.ppo.updates))
            for epoch in range(self.ppo.epochs):
                self.rollout.shuffle(self._keys(Purpose.ORDER, at.epoch, epoch))
                for _ in range(self.ppo.minibatches):
                    self._repeat(self._step, "step")
            for _, rows in self.finite.fallen(at.epoch, last=True):
                self._retire(rows)

    def _step(self) -> None:
        """One minibatch of every run: gradient of loss and penalties, its norm clipped, then the optimiser."""
        self._gradients(self.rollout, self._loss, own=self.penalties.needs_own)
        self.finite.add(self.loss)
        for force in self.penalties.forces(self.gradient):
            force.add_to(self.gradient, self.theta)
        self.finite.add(0 * clip_norms(self.gradient, self.ppo.norm))  # weights fall with it, before any loss says so
        if self.tracker is not None:
            self.tracker.before_step()
        self.optimizer.step(self.theta, self.gradient, self.rate, self.present, keep=False)
        if self.tracker is not None:
            self.tracker.after_step()
        self.rollout.step.add_(1)

    def _loss(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        loss, penalties = self._ppo(run, row, out, batch), self.method.prediction_penalties
        return loss + self.penalties.said(penalties, run, row, out, batch.weight) if penalties else loss

    def _ppo(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        ppo = self.ppo
        seen = (batch.actions, batch.log_p, batch.advantages, batch.values, batch.returns)
        return ppo_loss(out, *seen, clip=ppo.clip, value=ppo.value, entropy=ppo.entropy)

    def _gradients(
        self, rollout: Rollout, loss: Callable[[Runs, Rows, Outputs, Batch], Tensor], *, own: bool = False
    ) -> None:
        """Of the minibatch at hand, in self.gradient for the rest of the step."""
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

    def _retire(self, fallen: Sequence[int]) -> None:
        """Runs whose loss is no longer finite stop here; the others go on."""
        for run in fallen:
            if self.position.diverged[run] is None:
                self.position.diverged[run] = [self.position.phase, self.position.epoch]
                self.present[run] = 0.0
                self.captured.clear()  # captured steps still include it

    # ------------------------------------------------------------------ evaluating

    def _evaluate(self) -> None:
        """Scores of all games seen so far, in the order of learning."""
        at = self.position
        with self._timed("evaluate"):
            seen = range(at.phase + 1)
            halls = self.venue.test(at.phase, at.epoch, self.ppo.episodes)
            draws = self._keys(Purpose.EVALUATION, at.epoch) if self.ppo.acting == "drawn" else None
            scores = episode_scores(
                self.net, self.theta, halls, list(seen), live=self.live, longest=self.ppo.longest, draws=draws
            )
            moment = [at.phase, at.epoch * self.ppo.samples]
            at.records.append({"moment": [moment] * len(self.seeds), "scores": scores.nanmean(-1).tolist()})

    # ------------------------------------------------------------------ importance

    def _measure(self, importance: GradientImportance) -> Tensor:
        """Importance of the weights for the game at hand, from fresh play: (R, Pp). See `rl.importance`."""
        ppo, size, rollout = self.ppo, self.net.layout.protected, self.rollout
        estimate = torch.zeros_like(self.anchor)

        def vector_norms(run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
            assert out.vector is not None
            return torch.linalg.vector_norm(out.vector, dim=-1).sum(-1)

        def step() -> None:
            self._gradients(rollout, self._ppo if importance.square else vector_norms)
            if importance.square:
                clip_norms(self.gradient, ppo.norm)
            found = self.gradient[:, :size]
            estimate.add_(found.square() if importance.square else found.abs())
            rollout.step.add_(1)

        self._play(Purpose.IMPORTANCE, 0)
        self.captured.clear()
        for number in range(ppo.importance_rollouts):
            begin = max(0, ppo.horizon - ppo.importance_steps) if number else 0
            rollout.forget(ppo.horizon - begin)
            self._collect(rollout, self._keys(Purpose.IMPORTANCE, number), begin)
            rollout.shuffle(self._keys(Purpose.IMPORTANCE, number, 1))
            for _ in range(ppo.minibatches):
                self._repeat(step, "importance")
        self.captured.clear()
        return estimate / ppo.importance_rollouts

    # ------------------------------------------------------------------ what the parts above use

    def _play(self, purpose: Purpose, number: int) -> None:
        """Begin the game at hand, as training plays it."""
        turns = self._in_turns
        threads = turns or len(self.groups) > 1
        self.venue.play(self.position.phase, purpose, number, self.ppo.copies, threads=threads, turns=turns)

    @property
    def _in_turns(self) -> bool:
        """A run that is alone would wait for its games, and they for it. (On a CPU all share the same cores.)"""
        return self.device.type == "cuda" and len(self.seeds) == 1 and not self.net.together

    def _keys(self, purpose: Purpose, *words: int) -> Tensor:
        """(R,) one a run."""
        keys = [key(seed, purpose, self.position.phase, *words) for seed in self.seeds]
        return torch.tensor(keys, device=self.device)

    def _repeat(self, work: Callable[[], None], *name: Hashable) -> None:
        """Run a piece of work that comes again and again, through a CUDA graph where there is a GPU."""
        if name not in self.captured:
            self.captured[name] = Captured(work, self.device, self.net.executor)
        self.captured[name]()

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.spent[what] += since(started)

    def _protected(self, theta: Tensor) -> Tensor:
        return theta[:, : self.net.layout.protected]
