"""One episode of a policy as a GIF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from kenyon.errors import ConfigError, ResultsError
from kenyon.rl.environment import Games, Moment, Pixels, Screen, Suite
from kenyon.utils.files import as_path

Act = Callable[[Pixels], npt.NDArray[np.int64]]  # observations (N, C, H, W) -> actions (N,)

SECONDS = 60.0  # of an episode in the file by default
LONGEST = 86_400.0  # seconds; no episode lasts a day
LARGEST = 4_000_000  # bytes of a file; frames are left out of a larger one
WIDE = 240  # pixels: smaller pictures are enlarged by whole factors until they are about so wide
COLOURS = np.array([(232, 163, 61), (59, 117, 175), (81, 158, 62), (197, 58, 50)])  # of the planes of an observation


@dataclass(frozen=True)
class Watched:
    """A recorded episode."""

    path: Path
    score: float  # of the whole episode
    steps: int
    frames: int  # in the file, before equal ones were merged


class Observed:
    """The screen of a game that has none: each plane of the observation in a colour."""

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
    """Return the first pictures, the score of the episode, and its length in steps."""
    observations, pictures, steps = screen.reset(), [screen.picture()], 0
    while True:
        moment = screen.step(act(observations))
        observations, steps = moment.observations, steps + 1
        if moment.scores:
            return pictures, moment.scores[0][1], steps
        if len(pictures) < shown:
            pictures.append(screen.picture())


def write_gif(path: Path, pictures: Sequence[Pixels], rate: float) -> int:
    """Write pictures (H, W, 3) at `rate` a second, and return their number. A file that is too large keeps every
    second picture, then every fourth, and so on.
    """
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
    """Yield images of one palette: all colours if there are at most 256, or the nearest of 256."""
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
    """Return 256 of many colours, chosen by the median cut."""
    return Image.fromarray(_colours(found)[None]).quantize(256, Image.Quantize.MEDIANCUT)


def _colours(words: npt.NDArray[np.int32]) -> Pixels:
    """Return colours (n, 3) from whole numbers."""
    return np.stack([words >> 16, words >> 8 & 255, words & 255], axis=1).astype(np.uint8)
