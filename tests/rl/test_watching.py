"""Episodes as GIFs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from kenyon.errors import ConfigError, ResultsError
from kenyon.rl import play as watching
from kenyon.rl.environment import Moment, Pixels, Suite, find_suite
from kenyon.rl.play import watch, write_gif


class Counting:
    """Ten steps of which each scores its action; the picture is as bright as there were steps."""

    rate = 15.0
    closed = False

    def reset(self) -> Pixels:
        self.time, self.score = 0, 0.0
        return self._seen()

    def _seen(self) -> Pixels:
        return np.full((1, 1, 4, 4), self.time, dtype=np.uint8)

    def step(self, actions: np.ndarray) -> Moment:  # type: ignore[type-arg]
        self.time += 1
        self.score += float(actions[0])
        over = self.time == 10
        none = np.zeros(1, dtype=np.float32)
        return Moment(self._seen(), none, np.array([over]), [(0, self.score)] if over else [])

    def picture(self) -> Pixels:
        return np.full((6, 8, 3), 20 * self.time, dtype=np.uint8)

    def close(self) -> None:
        self.closed = True


def suite_of(screen: Counting) -> Suite:
    def no_games(*_: object) -> object:
        raise AssertionError("a suite with a screen needs nothing else")

    return Suite("counting", "", {"one": 3}, (1, 4, 4), no_games, lambda game, seed: screen)  # type: ignore[arg-type]


def frames_of(path: Path) -> tuple[list[Pixels], list[int]]:
    with Image.open(path) as image:
        assert image.format == "GIF" and image.info["loop"] == 0
        found = [
            (np.asarray(frame.convert("RGB")), frame.info["duration"]) for frame in ImageSequence.Iterator(image)
        ]
    return [pixels for pixels, _ in found], [pause for _, pause in found]


def test_an_episode_from_its_first_picture_to_its_last(tmp_path: Path) -> None:
    screen, seen = Counting(), []

    def act(observations: Pixels) -> np.ndarray:  # type: ignore[type-arg]
        seen.append(int(observations[0, 0, 0, 0]))
        return np.array([2])

    found = watch(suite_of(screen), "one", act, tmp_path / "new" / "one.gif")
    assert (found.score, found.steps, found.frames) == (20.0, 10, 10)
    assert seen == list(range(10)) and screen.closed
    pictures, pauses = frames_of(found.path)
    assert [int(p[0, 0, 0]) for p in pictures] == [20 * t for t in range(10)]  # the last step belongs to the next one
    assert all((p == p[0, 0]).all() and p.shape == (180, 240, 3) for p in pictures)
    assert set(pauses) == {70}  # 15 a second, in hundredths


def test_only_the_first_seconds_are_shown(tmp_path: Path) -> None:
    found = watch(suite_of(Counting()), "one", lambda seen: np.array([1]), tmp_path / "one.gif", seconds=0.2)
    assert (found.score, found.steps, found.frames) == (10.0, 10, 3)
    assert len(frames_of(found.path)[0]) == 3


def test_too_large_a_file_keeps_every_second_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = list(np.random.default_rng(0).integers(0, 255, (16, 20, 20, 3), dtype=np.uint8))
    assert write_gif(tmp_path / "all.gif", pictures, 15) == 16
    monkeypatch.setattr(watching, "LARGEST", (tmp_path / "all.gif").stat().st_size // 3)
    assert write_gif(tmp_path / "some.gif", pictures, 15) == 4
    assert set(frames_of(tmp_path / "some.gif")[1]) == {270}  # as long as before


def test_few_colours_are_kept_exactly_and_many_nearly(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    palette = draw.integers(0, 256, (200, 3), dtype=np.uint8)
    exact = [palette[draw.integers(0, 200, (30, 240))] for _ in range(3)]
    write_gif(tmp_path / "few.gif", exact, 10)
    assert all(map(np.array_equal, frames_of(tmp_path / "few.gif")[0], exact))
    y, x = np.mgrid[:60, :240]
    many = [np.stack([x, 4 * y, 0 * x + t], axis=2).astype(np.uint8) for t in (0, 90)]
    write_gif(tmp_path / "many.gif", many, 10)
    for shown, wanted in zip(frames_of(tmp_path / "many.gif")[0], many, strict=True):
        assert np.abs(shown.astype(int) - wanted).mean() < 10


def test_a_tiny_game_is_shown_plane_by_plane(tmp_path: Path) -> None:
    found = watch(find_suite("rl-mini"), "catch", lambda seen: np.array([1]), tmp_path / "catch.gif", seed=2)
    assert 0 <= found.score <= 4 and found.frames == found.steps
    first = frames_of(found.path)[0][0]
    assert first.shape == (240, 240, 3)
    board = first[::40, ::40]
    assert (board == watching.COLOURS[0]).all(axis=2).sum() == 1  # the block
    assert (board[-1] == watching.COLOURS[1]).all(axis=1).sum() == 1  # the player
    assert (board == 0).all(axis=2).sum() == 34


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    suite = suite_of(Counting())
    with pytest.raises(ConfigError, match=r"ends in \.gif"):
        watch(suite, "one", lambda seen: np.array([0]), tmp_path / "one.mp4")
    for seconds in (0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="seconds cannot be shown"):
            watch(suite, "one", lambda seen: np.array([0]), tmp_path / "one.gif", seconds=seconds)
    watch(suite, "one", lambda seen: np.array([0]), tmp_path / "one.gif", seconds=1e308)
    with pytest.raises(ConfigError, match="no game of counting"):
        watch(suite, "two", lambda seen: np.array([0]), tmp_path / "one.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="Cannot write"):
        watch(suite, "one", lambda seen: np.array([0]), tmp_path / "file" / "one.gif")


def test_an_atari_game_in_colour(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    pytest.importorskip("ale_py")
    draw = np.random.default_rng(0)
    found = watch(
        find_suite("atari"), "DemonAttack", lambda seen: draw.integers(0, 6, 1), tmp_path / "demon.gif", seconds=4
    )
    assert found.steps > 100 and found.score >= 0 and found.score % 10 == 0
    assert found.frames == 60 and found.path.stat().st_size < 400_000
    pictures, _ = frames_of(found.path)
    assert pictures[0].shape == (420, 320, 3)
    assert len(np.unique(pictures[-1].reshape(-1, 3), axis=0)) > 4
