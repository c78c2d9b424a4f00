"""A job of games: network and agents from run specifications, and results from agents."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes

from kenyon.experiments.config import Config
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import GameResult, GameRun
from kenyon.experiments.store import Job, PointFolder, SavedState, identity_of, state_path
from kenyon.experiments.training import REST, SAVE_EVERY, origin_here
from kenyon.models import Net
from kenyon.rl.suites import find_arena
from kenyon.rl.trainer import Agents, Watcher
from kenyon.training import Interrupted
from kenyon.training.checkpoint import Keeper, StateError, load_state
from kenyon.utils.threads import cpu_threads


def build_net(config: Config, device: torch.device | str = "cpu") -> Net:
    """Return the network of a configuration of games."""
    shape = config.architecture
    return find_arena(config.benchmark).net(
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
    suite = find_arena(config.benchmark).suite
    return Agents(build_net(config, device), suite, config.games, seeds, config.build_method(), config.training)


def resume(agents: Agents, state: SavedState, rows: Sequence[int]) -> None:
    """Bring agents to where a state stands, as some of its rows."""
    at = agents.position
    at.phase, at.epoch = state.reached
    if at.phase > len(agents.games) or at.epoch > agents.ppo.updates:
        raise StateError(state.path, "it stands where this training never comes by")
    if at.epoch:  # in the middle of a game
        agents.enter_game()
    try:
        tensors = agents.tensors()
        agents.position = load_state(state.path, tensors, state.identity, rows)
        agents.restore(tensors)
    except StateError:
        agents.venue.leave()  # others are made from the state before
        raise


def train_games(job: Job, *, device: torch.device, out: Path, progress: Progress, stop: Callable[[], bool]) -> None:
    """Train to the end and save. When `stop` says so after an update, the state is saved and Interrupted raised."""
    cells = job.runs
    agents = build_agents(cells[0].config, [cell.seed for cell in cells], device)
    if job.begun is not None:
        resume(agents, job.begun, job.begun.rows(cells))
    at, updates = agents.position, agents.ppo.updates
    progress.fleet_starts(cells, at.phase * updates + at.epoch, len(agents.games) * updates)
    keeper = Keeper(agents, state_path(out, cells), identity_of(cells), every=SAVE_EVERY, rest=REST)

    def trained(watch: Watcher) -> None:
        with cpu_threads(1 if agents.net.small else None):
            agents.run(watch)

    try:
        keeper.over(
            trained,
            each=lambda: progress.update_done(agents),
            stop=stop,
            ended=lambda: progress.fleet_ends(agents.position.seconds),
            keep=lambda: _keep(agents, PointFolder(out, cells[0].point)),
            interrupted=Interrupted,
        )
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
    """A run that diverged has the evaluations before, however long the runs beside it went on."""
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
