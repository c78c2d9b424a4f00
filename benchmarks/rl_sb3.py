"""Compare PPO by Stable-Baselines3 with PPO by Kenyon: same game, network and settings; scores and time.

    pip install stable-baselines3
    python benchmarks/rl_sb3.py --suite rl-mini --game catch --seeds 3
    python benchmarks/rl_sb3.py --suite atari --game Boxing --seeds 1 --steps 16384

Both play the same copies of the game, Kenyon's, and learn one game alone. (Stable-Baselines3's own copies of an Atari
game are one process each, or sequential; those that it gets here are faster.) Differences that cannot be removed from
outside:

- Stable-Baselines3 standardizes advantages in every minibatch, Kenyon over the whole rollout.
- Its value loss has no factor 1/2, so its coefficient here is half of Kenyon's.
- It trains one seed after another; Kenyon all seeds at once.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kenyon.experiments.config import Config, configure
from kenyon.experiments.games import build_agents
from kenyon.metrics import Summary
from kenyon.rl.environment import Games, Suite
from kenyon.rl.suites import find_suite_benchmark
from kenyon.training import choose_device


def import_sb3() -> Any:
    try:
        import stable_baselines3
    except ImportError as error:
        raise SystemExit(f"Stable-Baselines3 is not here ({error}): pip install stable-baselines3") from None
    return stable_baselines3


def as_vec_env(games: Games) -> Any:
    """Copies of a game with the interface of Stable-Baselines3."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Copies(VecEnv):
        def __init__(self) -> None:
            seen = spaces.Box(0, 255, games.shape, np.uint8)
            super().__init__(games.count, seen, spaces.Discrete(games.actions))

        def reset(self) -> Any:
            return games.reset()

        def step_async(self, actions: Any) -> None:
            self.chosen = np.asarray(actions, dtype=np.int64)

        def step_wait(self) -> Any:
            m = games.step(self.chosen)
            return m.observations, m.rewards, m.ended, [{} for _ in range(games.count)]

        def close(self) -> None:
            games.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * games.count

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * games.count

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * games.count

    return Copies()


def train_sb3(suite: Suite, config: Config, seed: int, device: torch.device) -> tuple[float, float]:
    """Return the mean score of episodes with the most likely action, and seconds of training."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    game, ppo, arena = config.games[0], config.training, find_suite_benchmark(config.benchmark)
    backbone = arena.backbone(suite)(config.architecture.width, 1)

    class Features(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any) -> None:
            with torch.no_grad():
                size = backbone(torch.zeros(1, *suite.shape)).shape[1]
            super().__init__(observation_space, size)
            self.backbone: nn.Module = backbone

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.backbone(observations)

    torch.manual_seed(seed)
    for layer in backbone.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    model = PPO(
        "CnnPolicy",
        as_vec_env(suite.make(game, ppo.copies, seed, True)),
        learning_rate=lambda left: ppo.rate * left,
        n_steps=ppo.horizon,
        batch_size=ppo.samples // ppo.minibatches,
        n_epochs=ppo.epochs,
        gamma=ppo.discount,
        gae_lambda=ppo.gae,
        clip_range=ppo.clip,
        clip_range_vf=ppo.clip,
        ent_coef=ppo.entropy,
        vf_coef=ppo.value / 2,
        max_grad_norm=ppo.norm,
        policy_kwargs={
            "features_extractor_class": Features,
            "net_arch": [],
            "ortho_init": False,
            "optimizer_kwargs": {"eps": ppo.epsilon},
        },
        seed=seed,
        device=device,
    )
    with torch.no_grad():  # heads begin as Kenyon's
        for head, gain in ((model.policy.action_net, 0.01), (model.policy.value_net, 1.0)):
            nn.init.orthogonal_(head.weight, gain)
            nn.init.zeros_(head.bias)
    started = time.perf_counter()
    model.learn(ppo.updates * ppo.samples)
    seconds = time.perf_counter() - started
    games = suite.make(game, ppo.episodes, seed + 1000, False)
    seen, scores, so_far = games.reset(), {}, np.zeros(ppo.episodes)
    for _ in range(ppo.longest):
        moment = games.step(model.predict(seen, deterministic=True)[0].astype(np.int64))
        seen = moment.observations
        so_far += moment.rewards
        for copy, score in moment.scores:
            scores.setdefault(copy, score)
        if len(scores) == ppo.episodes:
            break
    games.close()  # an episode that has not ended counts as it stands, as in Kenyon
    return float(np.mean([scores.get(copy, so_far[copy]) for copy in range(ppo.episodes)])), seconds


def environment_speed(suite: Suite, config: Config, seconds: float = 3.0) -> float:
    """Steps per second of all copies together, with random actions."""
    count = config.training.copies
    games, generator = suite.make(config.games[0], count, 0, True), np.random.default_rng(0)
    games.reset()
    begun = time.perf_counter()
    steps = 0
    while (now := time.perf_counter() - begun) < seconds:
        games.step(generator.integers(0, games.actions, count))
        steps += count
    games.close()
    return steps / now


def train_kenyon(config: Config, seeds: Sequence[int], device: torch.device) -> tuple[list[float], float]:
    agents = build_agents(config, seeds, device)
    at = agents.run()
    return [row[0] for row in at.records[-1]["scores"]], agents.spent["collect"] + agents.spent["learn"]


def _without_out(words: Sequence[str]) -> list[str]:
    """Exclude the path of the result from its settings."""
    return [w for w, before in zip(words, ["", *words], strict=False) if "--out" not in (w, before)]


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO by Stable-Baselines3 beside PPO by Kenyon.")
    parser.add_argument("--suite", default="rl-mini")
    parser.add_argument("--game", help="otherwise the suite's first")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], help="a setting of both: copies=32")
    parser.add_argument("--out", type=Path, default=Path("sb3.json"))
    options = parser.parse_args()
    version = import_sb3().__version__
    device, suite = choose_device(options.device), find_suite_benchmark(options.suite).suite
    overrides = {"evaluations": 1} | ({} if options.steps is None else {"steps": options.steps})
    for setting in options.set:
        name, _, value = setting.partition("=")
        overrides[name] = int(value)
    config = configure(options.suite, "finetune", games=[options.game or suite.games[0]], overrides=overrides)
    seeds = range(options.seeds)
    steps = config.training.updates * config.training.samples
    environment = environment_speed(suite, config)
    print(f"The games alone: {environment:,.0f} steps a second", flush=True)
    theirs, their_seconds = [], 0.0
    for seed in seeds:
        score, seconds = train_sb3(suite, config, seed, device)
        theirs.append(score)
        their_seconds += seconds
        print(f"Stable-Baselines3, seed {seed}: score {score:.2f} in {seconds:.1f} s", flush=True)
    ours, alone = train_kenyon(config, [0], device)
    print(f"Kenyon, seed 0 alone: {alone:.1f} s", flush=True)
    our_seconds = alone
    if options.seeds > 1:
        ours, our_seconds = train_kenyon(config, list(seeds), device)
    print(f"Kenyon, {len(seeds)} seeds at once: {our_seconds:.1f} s", flush=True)

    def summary(values: list[float], seconds: float) -> dict[str, Any]:
        found = Summary.of(values)
        assert found is not None
        sem = None if found.sem != found.sem else found.sem
        speed = len(values) * steps / seconds
        return {
            "score": {"mean": found.mean, "sem": sem, "runs": values},
            "seconds": seconds,
            "steps_per_second": speed,
        }

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    result = {
        "command": " ".join(["rl_sb3.py", *_without_out(sys.argv[1:])]),
        "config": config.as_dict(),
        "device": name,
        "versions": {
            "stable_baselines3": version,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "environment_steps_per_second": environment,
        "stable_baselines3": summary(theirs, their_seconds),
        "kenyon": summary(ours, our_seconds) | {"seconds_one_seed": alone},
        "times_faster": their_seconds / our_seconds,
        "times_faster_one_seed": their_seconds / options.seeds / alone,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    names = ("stable_baselines3", "kenyon", "times_faster", "times_faster_one_seed")
    print(json.dumps({name: result[name] for name in names}, indent=1))


if __name__ == "__main__":
    main()
