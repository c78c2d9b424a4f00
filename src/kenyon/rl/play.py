"""A trained policy from a results folder, to be watched or used.

One episode as a moving picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from kenyon.errors import ConfigError, DataError, ResultsError, unknown
from kenyon.experiments.store import weights_path
from kenyon.experiments.weights import read_weights
from kenyon.models import Net
from kenyon.rl.config import GamesConfig
from kenyon.rl.environment import Games, Moment, Pixels, Screen, Suite
from kenyon.rl.ppo import network_input
from kenyon.rl.results import GameResult
from kenyon.utils.files import as_path


@dataclass(frozen=True)
class Policy:
    net: Net
    row: Tensor  # (P,)
    games: tuple[str, ...]  # that it has learned, in their order
    game: str  # that it plays

    def playing(self, game: str) -> Policy:
        """The same network with the heads of another game."""
        if game not in self.games:
            raise unknown("game of this run", game, self.games)
        return replace(self, game=game)

    def act(self, observations: Pixels) -> npt.NDArray[np.int64]:
        """The most likely action at each of the observations (N, C, H, W): (N,)."""
        return self.probabilities(observations).argmax(-1)

    @torch.no_grad()
    def probabilities(self, observations: Pixels) -> npt.NDArray[np.float32]:
        """Of every action at each of the observations: (N, actions)."""
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
        """What the network may look at. Other numbers than bytes would pass, and mean something else to it."""
        found, shape = np.asarray(observations), tuple(self.net.input_shape)
        if found.dtype != np.uint8 or found.shape[1:] != shape or found.ndim != 1 + len(shape):
            raise DataError(
                f"Observations of {self.game} are bytes (uint8) of the shape (N, {', '.join(map(str, shape))}); "
                f"these are {found.dtype} of the shape {found.shape}."
            )
        return found


def policy_of(folder: Path | str, seed: int, game: str | None = None, *, device: str = "cpu") -> Policy:
    """What a run left in OUT/SUITE/METHOD; it plays the given game, or the last that it learned."""
    folder = as_path("folder", folder)
    result = GameResult.load(folder / GameResult.FILE)
    if seed not in {run.seed for run in result.complete_runs}:
        there = ", ".join(str(run.seed) for run in result.complete_runs) or "none"
        raise ResultsError(f"{folder} has no finished run of seed {seed}. There are: {there}.")
    path = weights_path(folder, seed)
    if not path.is_file():
        kept = [str(run.seed) for run in result.complete_runs if weights_path(folder, run.seed).is_file()]
        there = f"Those of seed {', '.join(kept)} are there." if kept else "Train it anew in another folder."
        raise ResultsError(f"There is no {path}: what seed {seed} learned was not kept. {there}")
    config = GamesConfig.from_dict(result.config)
    net = config.build_net(device)
    row = torch.zeros(net.layout.size)
    for name, saved in read_weights(path, result.config, seed, result.weights.get(path.name)).tensors.items():
        net.layout.view(row, name).copy_(saved)
    return Policy(net, row.to(net.device), config.games, config.games[-1]).playing(game or config.games[-1])


Act = Callable[[Pixels], npt.NDArray[np.int64]]  # observations (N, C, H, W) -> actions (N,), the most likely ones

SECONDS = 60.0  # of an episode that are shown
LONGEST = 86_400.0  # seconds, whatever is asked for: no episode lasts a day
LARGEST = 4_000_000  # bytes of a file; frames are left out of a larger one
WIDE = 240  # pixels: smaller pictures are enlarged by whole factors until they are about so wide
COLOURS = np.array([(232, 163, 61), (59, 117, 175), (81, 158, 62), (197, 58, 50)])  # of the planes of an observation


@dataclass(frozen=True)
class Watched:
    """What was seen of an episode, and how it ended."""

    path: Path
    score: float  # of the whole episode
    steps: int
    frames: int  # in the file, before equal ones were merged


class Observed:
    """A game without a screen of its own: each plane of the observation in its colour."""

    rate = 5.0

    def __init__(self, games: Games) -> None:
        self._games = games
        self._seen: Pixels = np.zeros(0, dtype=np.uint8)

    def reset(self) -> Pixels:
        self._seen = self._games.reset()
        return self._seen

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        moment = self._games.step(actions)
        self._seen = moment.observations
        return moment

    def picture(self) -> Pixels:
        planes = self._seen[0].astype(np.float64) / 255  # (C, H, W)
        coloured = np.einsum("chw,cr->hwr", planes, COLOURS[np.arange(len(planes)) % len(COLOURS)])
        return np.minimum(coloured, 255).astype(np.uint8)

    def close(self) -> None:
        self._games.close()


def watch(suite: Suite, game: str, act: Act, out: Path | str, *, seed: int = 0, seconds: float = SECONDS) -> Watched:
    """Play one whole episode by `act` and write the first `seconds` of it as a GIF."""
    path = as_path("out", out)
    if path.suffix.lower() != ".gif":
        raise ConfigError(f"{path.name} is no name of a GIF. Give one that ends in .gif.")
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{seconds:g} seconds cannot be shown. Give a number above 0.")
    suite.check([game])
    screen = Observed(suite.make(game, 1, seed, False)) if suite.screen is None else suite.screen(game, seed)
    try:
        pictures, score, steps = _played(screen, act, max(1, round(min(seconds, LONGEST) * screen.rate)))
    finally:
        screen.close()
    return Watched(path, score, steps, write_gif(path, pictures, screen.rate))


def _played(screen: Screen, act: Act, shown: int) -> tuple[list[Pixels], float, int]:
    """The first pictures, the score of the whole episode, and its length in steps."""
    observations, pictures, steps = screen.reset(), [screen.picture()], 0
    while True:
        moment = screen.step(act(observations))
        observations, steps = moment.observations, steps + 1
        if moment.scores:
            return pictures, moment.scores[0][1], steps
        if len(pictures) < shown:
            pictures.append(screen.picture())


def write_gif(path: Path, pictures: Sequence[Pixels], rate: float) -> int:
    """Write (H, W, 3) pictures at so many a second; returns how many. Too large a file keeps every second of them,
    then every fourth, and so on."""
    frames, every = list(_indexed(pictures)), 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            kept = frames[::every]
            pause = max(20, round(100 * every / rate) * 10)  # GIFs count in hundredths; viewers slow down below two
            kept[0].save(path, save_all=True, append_images=kept[1:], duration=pause, loop=0, optimize=False)
            if path.stat().st_size <= LARGEST or len(kept) < 3:
                return len(kept)
            every *= 2
    except OSError as error:
        raise ResultsError(f"Cannot write {path}: {error.strerror}. Name another file with --out.") from error


def _indexed(pictures: Sequence[Pixels]) -> Iterator[Image.Image]:
    """As palette images of one palette: of the colours themselves if they fit, else of the nearest 256."""
    words = [picture.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32) for picture in pictures]
    found = np.unique(np.concatenate([np.unique(word) for word in words]))
    factor = max(1, round(WIDE / pictures[0].shape[1]))
    for word, picture in zip(words, pictures, strict=True):
        if len(found) <= 256:
            image = Image.fromarray(np.searchsorted(found, word).astype(np.uint8), "P")
            image.putpalette(
                np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(np.uint8).tobytes()
            )
        else:
            image = Image.fromarray(picture).quantize(palette=_palette(found), dither=Image.Dither.NONE)
        yield image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _palette(found: npt.NDArray[np.int32]) -> Image.Image:
    """256 colours for many, chosen by the median cut."""
    return Image.fromarray(_colours(found)[None]).quantize(256, Image.Quantize.MEDIANCUT)


def _colours(words: npt.NDArray[np.int32]) -> Pixels:
    """(n, 3) from whole numbers."""
    return np.stack([words >> 16, words >> 8 & 255, words & 255], axis=1).astype(np.uint8)
