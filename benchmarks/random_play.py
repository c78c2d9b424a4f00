"""Measure scores of Atari games with uniformly random actions, in episodes like those of evaluation.

python benchmarks/random_play.py --out benchmarks/atari-random.json
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kenyon.metrics import Summary
from kenyon.rl.atari import GAMES, make


def scores_of(game: str, episodes: int, longest: int, seed: int) -> list[float]:
    """Return scores of the first episode of every copy; episodes end after `longest` steps."""
    generator, games = np.random.default_rng(seed), make(game, episodes, seed, False)
    games.reset()
    so_far, ended = np.zeros(episodes), dict[int, float]()
    for _ in range(longest):
        moment = games.step(generator.integers(0, games.actions, episodes))
        so_far += moment.rewards
        for copy, score in moment.scores:
            ended.setdefault(copy, score)
        if len(ended) == episodes:
            break
    games.close()
    return [ended.get(copy, float(so_far[copy])) for copy in range(episodes)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Scores of random play.")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--longest", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = {}
    for game in GAMES:
        summary = Summary.of(scores_of(game, args.episodes, args.longest, args.seed))
        assert summary is not None
        found[game] = {"mean": summary.mean, "sem": summary.sem, "episodes": summary.runs}
        print(f"{game}: {summary.mean:,.1f} ± {summary.sem:,.1f}", flush=True)
    options = {name: getattr(args, name) for name in ("episodes", "longest", "seed")}
    versions = {name: version(name) for name in ("ale-py", "numpy")}
    args.out.write_text(json.dumps({"options": options, "versions": versions, "games": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
