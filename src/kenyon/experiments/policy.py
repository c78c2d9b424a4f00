"""A trained policy from a results folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.errors import DataError, ResultsError, unknown
from kenyon.experiments.config import Config
from kenyon.experiments.games import build_net
from kenyon.experiments.results import GameResult
from kenyon.experiments.store import weights_path
from kenyon.experiments.weights import read_weights
from kenyon.models import Net
from kenyon.rl.environment import Pixels
from kenyon.rl.ppo import network_input
from kenyon.utils.files import as_path


@dataclass(frozen=True)
class Policy:
    """A trained network that plays one of its games."""

    net: Net
    row: Tensor  # (P,)
    games: tuple[str, ...]  # in the order of learning
    game: str  # the one it plays

    def playing(self, game: str) -> Policy:
        """Return the same network with the head of another game."""
        if game not in self.games:
            raise unknown("game of this run", game, self.games)
        return replace(self, game=game)

    def act(self, observations: Pixels) -> npt.NDArray[np.int64]:
        """Return the most likely action (N,) for observations (N, C, H, W)."""
        return self.probabilities(observations).argmax(-1)

    @torch.no_grad()
    def probabilities(self, observations: Pixels) -> npt.NDArray[np.float32]:
        """Return the probability of every action (N, actions)."""
        head = self.games.index(self.game)
        if not len(seen := self._seen(observations)):
            return np.zeros((0, self.net.class_counts[head]), dtype=np.float32)
        images = network_input(self.net, torch.from_numpy(np.ascontiguousarray(seen)).to(self.net.device))
        heads = torch.tensor([head], device=self.net.device)
        if self.net.together:
            logits = self.net.forward(self.row.unsqueeze(0), images.unsqueeze(0), heads).logits.squeeze(0)
        else:
            logits = self.net.forward(self.row, images, heads).logits
        found: npt.NDArray[np.float32] = logits[:, : self.net.class_counts[head]].softmax(-1).cpu().numpy()
        return found

    def _seen(self, observations: Pixels) -> Pixels:
        """Check observations. Numbers of another type than bytes would pass the network with another scale."""
        found, shape = np.asarray(observations), tuple(self.net.input_shape)
        if found.dtype != np.uint8 or found.shape[1:] != shape or found.ndim != 1 + len(shape):
            raise DataError(
                f"Observations of {self.game} are bytes (uint8) of the shape (N, {', '.join(map(str, shape))}); "
                f"these are {found.dtype} of the shape {found.shape}."
            )
        return found


def policy_of(folder: Path | str, seed: int, game: str | None = None, *, device: str = "cpu") -> Policy:
    """Return the policy of a run in OUT/SUITE/METHOD, which plays `game`, or the last game that it learned."""
    folder = as_path("folder", folder)
    result = GameResult.load(folder / GameResult.FILE)
    if seed not in {run.seed for run in result.complete_runs}:
        there = ", ".join(str(run.seed) for run in result.complete_runs) or "none"
        raise ResultsError(f"{folder} has no finished run of seed {seed}. There are: {there}.")
    path = weights_path(folder, seed)
    if not path.is_file():
        kept = [str(run.seed) for run in result.complete_runs if weights_path(folder, run.seed).is_file()]
        there = f"Those of seed {', '.join(kept)} are there." if kept else "Train it again in another folder."
        raise ResultsError(f"There is no {path}: the weights of seed {seed} were not kept. {there}")
    config = Config.from_dict(result.config)
    net = build_net(config, device)
    row = torch.zeros(net.layout.size)
    for name, saved in read_weights(path, result.config, seed, result.weights.get(path.name)).tensors.items():
        net.layout.view(row, name).copy_(saved)
    return Policy(net, row.to(net.device), config.games, config.games[-1]).playing(game or config.games[-1])
