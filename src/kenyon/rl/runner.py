"""Let methods learn games: train what is missing, keep what is there, continue what was interrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as to_bytes

from kenyon.errors import listed_names
from kenyon.experiments.grid import PointOf, check_size, combined
from kenyon.experiments.progress import Progress
from kenyon.experiments.progress import Silent as SilentOfImages
from kenyon.experiments.runner import check_asked, check_fleet, check_folders, check_seeds, train_points
from kenyon.experiments.scheduler import MOST, Room
from kenyon.experiments.store import PointFolder
from kenyon.experiments.training import CrewOf, origin_here
from kenyon.experiments.unfinished import State, identity_of, state_path
from kenyon.rl.config import GamesConfig, configure_games, settings
from kenyon.rl.results import GameOrigin, GameResult, GameRun
from kenyon.rl.suites import find_arena
from kenyon.rl.trainer import Agents
from kenyon.training import Interrupted, choose_device
from kenyon.training.checkpoint import REST, SAVE_EVERY, Checkpointer, StateError, load_state
from kenyon.utils.files import as_path
from kenyon.utils.threads import cpu_threads

GamePoint = PointOf[GamesConfig]
GameCrew = CrewOf[GamesConfig]


class GamesProgress(Progress, Protocol):
    """What is told while games are learned: of updates, where it is of epochs while images are."""

    def update_done(self, agents: Agents) -> None: ...


class Silent(SilentOfImages):
    def update_done(self, agents: Agents) -> None: ...


@dataclass(frozen=True)
class GamesPlan:
    """What a call asks for, checked before anything is trained."""

    points: tuple[GamePoint, ...]  # method after method, in the order asked for
    seeds: tuple[int, ...]
    device: torch.device
    out: Path
    most: int = MOST  # runs that train together

    @property
    def methods(self) -> list[list[GamePoint]]:
        """The points, a list a method."""
        return [list(points) for _, points in groupby(self.points, key=lambda point: point.config.method)]

    @property
    def games(self) -> tuple[str, ...]:
        """In the order of learning, of all of them."""
        return self.points[0].config.games


def plan_games(
    arena: str,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    *,
    games: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str = "auto",
    out: Path | str = "results",
    fleet: int | None = None,
) -> GamesPlan:
    """Check everything that `play` is asked for, before anything is trained."""
    find_arena(arena)
    given = check_asked(methods, overrides or {}, settings)
    chosen = check_seeds(seeds)
    check_size(methods, given, len(chosen), settings)

    def points_of(method: str) -> list[GamePoint]:
        mine = {name: given[name] for name in settings(method) if name in given}
        return combined(mine, lambda values: configure_games(arena, method, games=games, overrides=values))

    points = tuple(point for method in methods for point in points_of(method))
    plan = GamesPlan(points, chosen, choose_device(device), as_path("out", out), check_fleet(fleet))
    for some in plan.methods:
        check_folders(plan.out, some)
    return plan


def execute_games(
    plan: GamesPlan, *, progress: GamesProgress | None = None, stop: Callable[[], bool] = lambda: False
) -> dict[str, GameResult]:
    """Carry out a plan and return the results by label: `ewc`, or `ewc[lambda_sp=10]` for a point of a grid.

    `stop` is asked after every update; when it says so, the state is saved and Interrupted raised. Doing the same
    again continues there. Games that cannot be saved begin new episodes then. Runs that the device has no room for
    are left out, and named by Incomplete when all others are finished.
    """
    room, told = Room(plan.most, plan.device), progress or Silent()

    def train(crew: GameCrew) -> None:
        train_games(crew, device=plan.device, out=plan.out, progress=told, stop=stop)

    def gathered(points: Sequence[GamePoint]) -> dict[str, GameResult]:
        return gather_scores(plan, points)

    return train_points(plan.methods, plan.seeds, plan.out, room, train, gathered, told)


def gather_scores(plan: GamesPlan, points: Sequence[GamePoint]) -> dict[str, GameResult]:
    """The scores that are there of these points of a plan, by label."""
    found = {point.label: PointFolder(plan.out, point).result() for point in points}
    return {label: result.restricted(plan.seeds) for label, result in found.items() if result is not None}


def play(
    arena: str,
    methods: str | Sequence[str],
    seeds: int | Sequence[int] = 3,
    *,
    games: Sequence[str] | None = None,
    device: str = "auto",
    out: Path | str = "results",
    **overrides: Any,
) -> dict[str, GameResult]:
    """`kenyon run SUITE` from Python."""
    names = listed_names("methods", methods)
    games = None if games is None else listed_names("games", games)
    return execute_games(plan_games(arena, names, seeds, games=games, overrides=overrides, device=device, out=out))


def build_agents(config: GamesConfig, seeds: Sequence[int], device: torch.device | str = "cpu") -> Agents:
    """Agents that stand at the beginning."""
    suite = find_arena(config.benchmark).suite
    return Agents(config.build_net(device), suite, config.games, seeds, config.build_method(), config.training)


def resume(agents: Agents, state: State, rows: Sequence[int]) -> None:
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
        agents.envs.leave()  # others are made from the state before
        raise


def train_games(
    crew: GameCrew, *, device: torch.device, out: Path, progress: GamesProgress, stop: Callable[[], bool]
) -> None:
    """Train to the end and save. When `stop` says so after an update, the state is saved and Interrupted raised."""
    cells = crew.cells
    agents = build_agents(cells[0].config, [cell.seed for cell in cells], device)
    if crew.begun is not None:
        resume(agents, crew.begun, crew.begun.rows(cells))
    at, updates = agents.position, agents.ppo.updates
    progress.fleet_starts(cells, at.phase * updates + at.epoch, len(agents.games) * updates)
    path, identity = state_path(out, cells), identity_of(cells)
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
            checkpoint.retrying(lambda: _keep(agents, PointFolder(out, cells[0].point)))
        checkpoint.remove()
    finally:
        agents.close()


def _keep(agents: Agents, folder: PointFolder[GameResult]) -> None:
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
    origin = asdict(origin_here(agents.seeds, seconds, agents.net))
    folder.add(
        GameResult(
            config,
            agents.net.parameter_count,
            runs,
            [GameOrigin(**origin, steps_per_second=round(steps / max(seconds, 1e-9), 1))],
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
