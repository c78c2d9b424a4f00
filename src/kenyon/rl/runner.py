"""Let methods learn games: train what is missing, keep what is there, continue what was interrupted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as to_bytes

from kenyon.errors import ConfigError, unknown
from kenyon.experiments.harvest import origin_here
from kenyon.experiments.keeping import Keeper
from kenyon.experiments.runner import check_seeds
from kenyon.experiments.states import State, read_state
from kenyon.experiments.store import check_equal, check_writable, flatten, weights_path
from kenyon.experiments.training import REST, SAVE_EVERY
from kenyon.rl.arenas import find_arena
from kenyon.rl.config import GamesConfig, configure_games, settings
from kenyon.rl.loop import Agents, Watcher
from kenyon.rl.results import FILE, GameOrigin, GameResult, GameRun
from kenyon.threads import cpu_threads
from kenyon.train import Interrupted, choose_device
from kenyon.train.state import load_state, write_atomically


class GamesProgress(Protocol):
    def fleet_starts(self, config: GamesConfig, seeds: Sequence[int], agents: Agents) -> None: ...

    def update_done(self, agents: Agents) -> None: ...

    def fleet_ends(self, agents: Agents) -> None: ...


class Silent:
    def fleet_starts(self, config: GamesConfig, seeds: Sequence[int], agents: Agents) -> None: ...

    def update_done(self, agents: Agents) -> None: ...

    def fleet_ends(self, agents: Agents) -> None: ...


@dataclass(frozen=True)
class GamesPlan:
    """What a call asks for, checked before anything is trained."""

    configs: tuple[GamesConfig, ...]  # one a method
    seeds: tuple[int, ...]
    device: torch.device
    out: Path

    def folder(self, config: GamesConfig) -> Path:
        return self.out / config.benchmark / config.method


def plan_games(
    arena: str,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    *,
    games: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str = "auto",
    out: Path | str = "results",
) -> GamesPlan:
    find_arena(arena)
    if not methods:
        raise ConfigError("No method is named. Try --method caf-ewc, or `kenyon list methods`.")
    if len(set(methods)) != len(methods):
        raise ConfigError(f"A method is named twice in {','.join(methods)}.")
    given = dict(overrides or {})
    known = {setting for method in methods for setting in settings(method)}
    for setting in given:
        if setting not in known:
            raise unknown(f"setting of {' or '.join(methods)}", setting, known)
    configs = tuple(
        configure_games(
            arena, method, games=games, overrides={k: v for k, v in given.items() if k in settings(method)}
        )
        for method in methods
    )
    plan = GamesPlan(configs, check_seeds(seeds), choose_device(device), Path(out))
    for config in configs:
        folder, mine = plan.folder(config), flatten(config.as_dict())
        check_writable(folder)
        theirs = [state.shares[0].config for state in _states(folder)]
        if (folder / FILE).exists():
            theirs.append(GameResult.load(folder / FILE).config)
        for other in theirs:
            check_equal(folder, mine, flatten(other))
    return plan


def execute_games(
    plan: GamesPlan, *, progress: GamesProgress | None = None, stop: Callable[[], bool] = lambda: False
) -> dict[str, GameResult]:
    """Carry out a plan and return the results by method.

    `stop` is asked after every update; when it says so, the state is saved and Interrupted raised. Doing the same
    again continues there. Games that cannot be saved begin new episodes then.
    """
    results = {}
    for config in plan.configs:
        folder = plan.folder(config)
        left = [seed for seed in plan.seeds if seed not in _finished(folder)]
        for state in _states(folder):
            held = set(state.shares[0].seeds)
            if mine := [seed for seed in left if seed in held]:
                _train(config, mine, folder, plan.device, progress or Silent(), stop, state)
                left = [seed for seed in left if seed not in held]
            if held <= _finished(folder):
                state.path.unlink(missing_ok=True)
        if left:
            _train(config, left, folder, plan.device, progress or Silent(), stop, None)
        results[config.method] = GameResult.load(folder / FILE).restricted(plan.seeds)
    return results


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
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    return execute_games(plan_games(arena, names, seeds, games=games, overrides=overrides, device=device, out=out))


def build_agents(config: GamesConfig, seeds: Sequence[int], device: torch.device | str = "cpu") -> Agents:
    """Agents that stand at the beginning."""
    suite = find_arena(config.benchmark).suite
    return Agents(config.build_net(device), suite, config.games, seeds, config.build_method(), config.training)


def _states(folder: Path) -> list[State]:
    """Unfinished fleets, the most advanced first."""
    found = [state for path in sorted(folder.glob("state-*.safetensors")) if (state := read_state(path))]
    return sorted(found, key=lambda state: state.reached, reverse=True)


def _finished(folder: Path) -> set[int]:
    """The seeds that a folder has results of."""
    file = folder / FILE
    return {run.seed for run in GameResult.load(file).runs} if file.exists() else set()


def _identity(config: GamesConfig, seeds: Sequence[int]) -> str:
    return json.dumps({"config": config.as_dict(), "seeds": list(seeds)})


def resume(agents: Agents, state: State, seeds: Sequence[int]) -> None:
    """Bring agents to where a state stands, or some of its runs."""
    at = agents.position
    at.phase, at.epoch = state.reached
    if at.epoch:  # in the middle of a game
        agents.enter_game()
    tensors, held = agents.tensors(), state.shares[0].seeds
    agents.position = load_state(state.path, tensors, state.identity, [held.index(seed) for seed in seeds])
    agents.restore(tensors)


def _train(
    config: GamesConfig,
    seeds: Sequence[int],
    folder: Path,
    device: torch.device,
    progress: GamesProgress,
    stop: Callable[[], bool],
    begun: State | None,
) -> None:
    """Train to the end and save. When `stop` says so after an update, the state is saved and Interrupted raised."""
    agents, identity = build_agents(config, seeds, device), _identity(config, seeds)
    path = folder / f"state-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.safetensors"
    if begun is not None:
        resume(agents, begun, seeds)
    progress.fleet_starts(config, seeds, agents)
    keeper = Keeper(agents, path, identity, every=SAVE_EVERY, rest=REST)

    def trained(watch: Watcher) -> None:
        with cpu_threads(1 if agents.net.small else None):
            agents.run(watch)

    keeper.over(
        trained,
        each=lambda: progress.update_done(agents),
        stop=stop,
        ended=lambda: progress.fleet_ends(agents),
        keep=lambda: _keep(agents, config, folder),
        interrupted=Interrupted,
    )


def _keep(agents: Agents, config: GamesConfig, folder: Path) -> None:
    runs = [_run(agents, number) for number in range(len(agents.seeds))]
    for number, run in enumerate(runs):
        if run.diverged is None:
            head = {"run": json.dumps({"config": config.as_dict(), "seed": run.seed})}
            views = agents.net.layout.views(agents.theta[number])
            data = to_bytes({name: view.cpu().contiguous() for name, view in views.items()}, metadata=head)
            write_atomically(weights_path(folder, run.seed), data)
    at, file = agents.position, folder / FILE
    before = GameResult.load(file) if file.exists() else None
    origin = asdict(origin_here(agents.seeds, at.seconds, agents.net))
    steps = len(agents.seeds) * agents.ppo.updates * agents.ppo.samples * len(agents.games)
    GameResult(
        config.as_dict(),
        agents.net.parameter_count,
        [[game, update * agents.ppo.samples] for game in range(len(agents.games)) for update in agents.ppo.evaluated],
        sorted([*(before.runs if before else []), *runs], key=lambda run: run.seed),
        [
            *(before.fleets if before else []),
            GameOrigin(**origin, steps_per_second=round(steps / max(at.seconds, 1e-9), 1)),
        ],
    ).save(file)


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
