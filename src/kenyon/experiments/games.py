"""A job of games: network and agents from run specifications, and results from agents."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save as to_bytes

from kenyon.experiments.results import GameResult, GameRun
from kenyon.experiments.store import Job, PointFolder, SavedState, identity_of, state_path
from kenyon.experiments.training import origin_here
from kenyon.models import Net
from kenyon.rl.suites import find_suite_benchmark
from kenyon.rl.trainer import Agents
from kenyon.training import Interrupted
from kenyon.training.checkpoint import REST, SAVE_EVERY, Checkpointer, StateError, load_state
from kenyon.utils.threads import cpu_threads

if TYPE_CHECKING:
    from kenyon.experiments.config import Config
    from kenyon.experiments.progress import Progress


def build_net(config: Config, device: torch.device | str = "cpu") -> Net:
    """Return the network of a configuration of games."""
    shape = config.architecture
    return find_suite_benchmark(config.benchmark).net(
        config.games,
        shape.width,
        shape.learners,
        config.build_method(),
        device=device,
        diversity=shape.diversity,
        gate=shape.gate,
        dtype=None if shape.precision == "auto" else getattr(torch, shape.precision),
    )


def build_agents(config: Config, seeds: Sequence[int], device: torch.device | str = "cpu") -> Agents:
    """Return agents at the beginning of training."""
    suite = find_suite_benchmark(config.benchmark).suite
    return Agents(build_net(config, device), suite, config.games, seeds, config.build_method(), config.training)


def resume(agents: Agents, state: SavedState, rows: Sequence[int]) -> None:
    """Load some runs of a saved state into agents."""
    at = agents.position
    at.phase, at.epoch = state.reached
    if at.phase > len(agents.games) or at.epoch > agents.ppo.updates:
        raise StateError(state.path, "its position is none of this training")
    if at.epoch:  # in the middle of a game
        agents.enter_game()
    try:
        tensors = agents.tensors()
        agents.position = load_state(state.path, tensors, state.identity, rows)
        agents.restore(tensors)
    except StateError:
        agents.envs.leave()  # others are built from the state before
        raise


def train_games(job: Job, *, device: torch.device, out: Path, progress: Progress, stop: Callable[[], bool]) -> None:
    """Train a job of games to the end, and save its results.

    When `stop` returns True after an update, the state is saved and Interrupted raised.
    """
    runs = job.runs
    agents = build_agents(runs[0].config, [run.seed for run in runs], device)
    if job.begun is not None:
        resume(agents, job.begun, job.begun.rows(runs))
    at, updates = agents.position, agents.ppo.updates
    progress.fleet_starts(runs, at.phase * updates + at.epoch, len(agents.games) * updates)
    path, identity = state_path(out, runs), identity_of(runs)
    try:
        with (
            cpu_threads(1 if agents.net.small else None),
            Checkpointer(agents, path, identity, every=SAVE_EVERY, rest=REST) as checkpoint,
        ):
            for at in checkpoint.between(agents.updates()):
                progress.update_done(agents)
                if not stop():
                    checkpoint.save_if_due()
                    continue
                checkpoint.save()
                if at.phase < len(agents.games):
                    raise Interrupted
            agents.close()
            progress.fleet_ends(agents.position.seconds)
            checkpoint.retrying(lambda: _keep(agents, PointFolder(out, runs[0].point)))
        checkpoint.remove()
    finally:
        agents.close()


def _keep(agents: Agents, folder: PointFolder) -> None:
    config = folder.point.config.as_dict()
    runs = [_run(agents, number) for number in range(len(agents.seeds))]

    def weights(seed: int) -> bytes:
        head = {"run": json.dumps({"config": config, "seed": seed})}
        views = agents.net.layout.views(agents.theta[agents.seeds.index(seed)])
        return to_bytes({name: view.cpu().contiguous() for name, view in views.items()}, metadata=head)

    ppo, seconds = agents.ppo, agents.position.seconds
    whole = [len(agents.games), 0]
    made = sum(game * ppo.updates + update for game, update in (at or whole for at in agents.position.diverged))
    steps = made * ppo.samples
    origin = origin_here(agents.seeds, seconds, agents.net)
    folder.add(
        GameResult(
            config,
            agents.net.parameter_count,
            runs,
            [replace(origin, steps_per_second=round(steps / max(seconds, 1e-9), 1))],
            [[game, update * ppo.samples] for game in range(len(agents.games)) for update in ppo.evaluated],
            point=folder.point.varied,
        ),
        weights,
    )


def _run(agents: Agents, number: int) -> GameRun:
    """Return the result of one run. A run that diverged has the evaluations before."""
    at, G = agents.position, len(agents.games)
    fallen = at.diverged[number]
    rows = []
    for record in at.records:
        game, steps = record["moment"][number]
        if fallen is not None and [game, steps // agents.ppo.samples - 1] >= fallen:
            break
        scores = [round(score, 4) for score in record["scores"][number]]
        rows.append([*scores, *[math.nan] * (G - len(scores))])
    return GameRun(agents.seeds[number], rows, fallen)
