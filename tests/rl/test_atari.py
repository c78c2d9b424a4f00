"""Atari: lives, scores and clipping over a scripted emulator, and the real one against a slow copy, step by step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kenyon.errors import ConfigError
from kenyon.rl import atari, emulators
from kenyon.rl.atari import GAMES, AtariGames
from kenyon.rl.emulators import IDLE
from kenyon.rl.environment import find_suite
from tests.rl.slow_atari import SlowAtari


def real() -> None:
    pytest.importorskip("gymnasium")
    pytest.importorskip("ale_py")


class Scripted:
    """A vector environment that says what it was told to, one entry a step."""

    single_action_space = SimpleNamespace(n=3)

    def __init__(self, lives: list[list[int]], rewards: list[list[int]], over: dict[int, Mapping[int, str]]) -> None:
        self.lives, self.rewards, self.over, self.time, self.closed = lives, rewards, over, 0, False

    def reset(self, seed: Any) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self._seen(), {"lives": np.array(self.lives[0], dtype=np.int32)}

    def step(self, actions: Any) -> tuple[Any, ...]:
        assert actions.dtype == np.int64
        self.time += 1
        ends = self.over.get(self.time, {})
        copies = range(len(self.lives[0]))
        terminated = np.array([ends.get(i) == "over" for i in copies])
        truncated = np.array([ends.get(i) == "time" for i in copies])
        info = {"lives": np.array(self.lives[self.time], dtype=np.int32)}
        return self._seen(), np.array(self.rewards[self.time - 1], dtype=np.int32), terminated, truncated, info

    def _seen(self) -> Any:
        return np.full((len(self.lives[0]), 4, 84, 84), self.time, dtype=np.uint8)

    def close(self) -> None:
        self.closed = True


# Copy 0 loses a life in step 2 and the game in step 4, and begins again with 3; copy 1 has no lives (0 all the time)
# and runs out of time in step 3; copy 2 gains a life in step 2, loses one in step 3, and shows 0 before it is over.
LIVES = [[3, 0, 2], [3, 0, 2], [2, 0, 3], [2, 0, 2], [3, 0, 0], [3, 0, 2]]
REWARDS = [[5, -3, 0], [10, 1, 0], [0, 7, 100], [20, 2, 0], [1, 0, -4]]
OVER: dict[int, Mapping[int, str]] = {3: {1: "time"}, 4: {0: "over"}, 5: {2: "over"}}


def scripted(training: bool) -> list[tuple[list[float], list[bool], list[tuple[int, float]]]]:
    games = AtariGames(Scripted(LIVES, REWARDS, OVER), "Boxing", 3, 0, training)
    games.reset()
    moments = [games.step(np.zeros(3, dtype=np.int32)) for _ in range(5)]  # type: ignore[arg-type]
    assert [int(m.observations[0, 0, 0, 0]) for m in moments] == [1, 2, 3, 4, 5]
    assert all(m.rewards.dtype == np.float32 and m.ended.dtype == np.bool_ for m in moments)
    return [(m.rewards.tolist(), m.ended.tolist(), list(m.scores)) for m in moments]


SCORES = [[], [], [(1, 5.0)], [(0, 35.0)], [(2, 96.0)]]  # raw, across lives


def test_training_clips_rewards_and_ends_at_lost_lives() -> None:
    rewards, ended, scores = zip(*scripted(True), strict=True)
    assert list(rewards) == [[1, -1, 0], [1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, -1]]
    assert list(ended) == [
        [False, False, False],
        [True, False, False],  # a life lost
        [False, True, True],  # out of time; a life lost
        [True, False, False],  # over; no life left is not an end before it is over
        [False, False, True],
    ]
    assert list(scores) == SCORES


def test_evaluation_gives_raw_rewards_of_whole_episodes() -> None:
    rewards, ended, scores = zip(*scripted(False), strict=True)
    assert list(rewards) == REWARDS
    over = {(2, 1), (3, 0), (4, 2)}
    assert [[(t, i) in over for i in range(3)] for t in range(5)] == list(ended)
    assert list(scores) == SCORES


def test_a_reset_forgets_what_was_scored() -> None:
    games = AtariGames(Scripted(LIVES, REWARDS, OVER), "Boxing", 3, 0, True)
    games.reset()
    games.step(np.zeros(3, dtype=np.int64))
    games.reset()
    assert [list(games.step(np.zeros(3, dtype=np.int64)).scores) for _ in range(5)] == SCORES


def test_atari_cannot_be_saved() -> None:
    emulated = Scripted(LIVES, REWARDS, OVER)
    games = AtariGames(emulated, "Boxing", 3, 0, True)
    assert games.save() is None  # type: ignore[func-returns-value]
    with pytest.raises(ConfigError, match="cannot go on from a saved moment"):
        games.load({})
    games.close()
    assert emulated.closed


def test_the_suite_has_the_published_order_and_sizes() -> None:
    suite = find_suite("atari")
    assert dict(suite.actions) == {
        "DemonAttack": 6,
        "Robotank": 18,
        "Boxing": 18,
        "NameThisGame": 6,
        "StarGunner": 18,
        "Gopher": 8,
        "VideoPinball": 9,
        "CrazyClimber": 9,
    }
    assert suite.games[0] == "DemonAttack" and suite.games[-1] == "CrazyClimber"
    with pytest.raises(ConfigError, match="Did you mean Boxing"):
        suite.make("Boxin", 1, 0, True)


def test_seeds_of_copies_and_games_differ() -> None:
    many = np.concatenate([atari.seeds_of(game, 100, seed) for game in GAMES for seed in (0, 1)])
    assert len(set(many.tolist())) == len(many) and many.min() > 0 and many.max() < 2**31
    assert atari.seeds_of("Boxing", 100, 0)[:5].tolist() == atari.seeds_of("Boxing", 5, 0).tolist()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"Boxing needs ale_py.* not installed: pip install 'kenyon\[atari\]'"):
        find_suite("atari").make("Boxing", 1, 0, True)


# With ale-py.


def test_a_missing_rom_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    real()
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"The ROM of Boxing cannot be used.*ALE_ROMS_DIR"):
        find_suite("atari").make("Boxing", 1, 0, True)


@pytest.mark.parametrize("game", GAMES)
def test_action_sets_have_the_published_sizes(game: str) -> None:
    real()
    games = find_suite("atari").make(game, 1, 0, True)
    assert games.actions == GAMES[game][1]
    assert games.reset().shape == (1, 4, 84, 84)
    games.close()


@pytest.mark.parametrize(("game", "steps"), [("Gopher", 1300), ("CrazyClimber", 60), ("VideoPinball", 60)])
def test_against_a_slow_copy_step_by_step(game: str, steps: int) -> None:
    """Gopher long enough for lost lives, whole episodes and starts after them; CrazyClimber has no FIRE."""
    real()
    copies, seed = 2, 4
    games = atari.make(game, copies, seed, True)
    twin = atari.emulators(game, atari.GAMES[game][0], copies)  # says how many frames passed before the first action
    slow = [SlowAtari(GAMES[game][0], int(seed)) for seed in games.seeds]
    _, info = twin.reset(seed=games.seeds)
    begun = [int(frames) for frames in info["episode_frame_number"]]
    close(games.reset(), [one.begin(frames) for one, frames in zip(slow, begun, strict=True)])
    lives, raw = [one.ale.lives() for one in slow], [0, 0]
    draw, ends, episodes = np.random.default_rng(0), 0, 0
    for _ in range(steps):
        actions = draw.integers(0, games.actions, copies)
        moment, (*_, info) = games.step(actions), twin.step(actions)
        seen, scores = [], []
        for i, one in enumerate(slow):
            observation, reward, over, left = one.step(int(actions[i]))
            raw[i] += reward
            assert moment.rewards[i] == np.sign(reward)
            assert moment.ended[i] == (over or 0 < left < lives[i])
            if over:
                scores.append((i, float(raw[i])))
                begun.append(int(info["episode_frame_number"][i]))
                observation, raw[i], left = one.begin(begun[-1]), 0, one.ale.lives()
            seen.append(observation)
            lives[i] = left
        close(moment.observations, seen)
        assert list(moment.scores) == scores
        ends, episodes = ends + int(moment.ended.sum()), episodes + len(scores)
    assert all(0 <= frames <= IDLE for frames in begun) and len(set(begun)) > 1
    if game == "Gopher":
        assert episodes >= 2 and ends > 2 * episodes
    games.close()


def close(fast: Any, slow: list[Any]) -> None:
    """Equal, but for how the mean of an area rounds."""
    difference = np.abs(fast.astype(float) - np.stack(slow))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_starts_are_drawn_up_to_thirty_frames() -> None:
    real()
    for game, least in (("Boxing", 1), ("CrazyClimber", 0)):  # FIRE takes a frame
        emulated = atari.emulators(game, atari.GAMES[game][0], 4)
        emulated.reset(seed=atari.seeds_of(game, 4, 0))
        frames = np.concatenate([emulated.reset()[1]["episode_frame_number"] for _ in range(80)])
        assert frames.min() == least and frames.max() == IDLE and len(np.unique(frames)) > 25


def test_an_episode_ends_after_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    real()
    monkeypatch.setattr(emulators, "LIMIT", 40)
    games = atari.make("Boxing", 2, 0, False)
    games.reset()
    ended = [games.step(np.zeros(2, dtype=np.int64)).ended.tolist() for _ in range(20)]
    assert [t + 1 for t, both in enumerate(ended) if both == [True, True]] == [10, 20]  # of four frames each
    assert sum(map(sum, ended)) == 4
    games.close()


@pytest.mark.parametrize("suite", ["atari", "atari-sticky"])
def test_the_same_seed_plays_alike_in_any_number_of_processes(suite: str) -> None:
    real()
    sticky = 0.0 if suite == "atari" else atari.STICKY
    first = atari.make("DemonAttack", 3, 1, True, sticky=sticky)
    second = atari.make("DemonAttack", 3, 1, True, sticky=sticky, parts=2)
    third = find_suite(suite).make("DemonAttack", 2, 1, True)
    plays = [play(games, 60) for games in (first, second, first)]
    assert np.array_equal(plays[0], plays[1]) and np.array_equal(plays[0], plays[2])
    assert np.array_equal(play(third, 60), plays[0][:, :2])  # copies know nothing of each other
    played = find_suite(suite).make("DemonAttack", 3, 9, True)
    play(played, 20)
    played.reseed(1)
    assert np.array_equal(play(played, 60), plays[0])  # like new ones with that seed
    other = atari.make("DemonAttack", 3, 1, True, sticky=atari.STICKY - sticky)
    assert not np.array_equal(play(other, 60), plays[0])


def test_copies_in_turns_play_as_they_do_together() -> None:
    """Five in two groups, shared out among two processes, stepped alternately, and one group twice as often."""
    real()
    whole = atari.make("DemonAttack", 5, 1, True)
    groups = atari.make_in_turns("DemonAttack", 5, 1, True, parts=2)
    assert [group.count for group in groups] == [2, 3]
    assert np.array_equal(np.concatenate([group.seeds for group in groups]), whole.seeds)
    actions = np.random.default_rng(0).integers(0, 6, (60, 5))
    for seed in (1, 7):
        for games in (whole, *groups):
            games.reseed(seed)
        expected = np.stack([whole.reset(), *(whole.step(action).observations for action in actions)])
        first, second = (group.reset() for group in groups)
        seen = [[first], [second]]
        for t, action in enumerate(actions):
            seen[0].append(groups[0].step(action[:2]).observations)
            if t % 2:  # the second group is one step behind, and catches up
                seen[1] += [groups[1].step(a[2:]).observations for a in actions[t - 1 : t + 1]]
        assert np.array_equal(np.concatenate([np.stack(one) for one in seen], axis=1), expected)
    processes = list(groups[0].emulated.processes)
    for games in (whole, *groups):
        games.close()
    assert len(processes) == 2 and all(process.poll() == 0 for process in processes)


def test_few_copies_take_no_turns() -> None:
    real()
    (games,) = find_suite("atari").make_in_turns("Boxing", 3, 1, True)  # type: ignore[misc]
    assert games.count == 3 and np.array_equal(play(games, 5), play(atari.make("Boxing", 3, 1, True), 5))
    games.close()


def test_a_process_that_dies_is_told() -> None:
    real()
    games = atari.make("Boxing", 4, 1, True, parts=2)
    games.reset()
    processes = list(games.emulated.processes)
    for process in processes:
        process.terminate()  # as a scheduler does, to all: the games go on until they are closed
    games.step(np.zeros(4, dtype=np.int64))
    processes[1].kill()
    with pytest.raises(ConfigError, match="A process of emulators ended by signal 9"):
        games.step(np.zeros(4, dtype=np.int64))
    assert all(process.poll() is not None for process in processes)  # nothing stays behind
    groups = atari.make_in_turns("Boxing", 4, 1, True, parts=2)
    for group in groups:
        group.reset()
    processes = list(groups[0].emulated.processes)
    processes[0].kill()
    for group in groups:  # each of them says so
        with pytest.raises(ConfigError, match="A process of emulators ended"):
            group.step(np.zeros(2, dtype=np.int64))
    assert all(process.poll() is not None for process in processes)


def play(games: AtariGames | Any, steps: int) -> Any:
    actions = np.random.default_rng(0).integers(0, games.actions, (steps, 3))[:, : games.count]
    return np.stack([games.reset(), *(games.step(action).observations for action in actions)])


def test_the_screen_shows_what_is_played() -> None:
    """The grey of the colour screen, made small, is what the policy sees."""
    real()
    from tests.rl.slow_atari import ACROSS, DOWN

    suite = find_suite("atari")
    assert suite.screen is not None
    screen = suite.screen("Boxing", 3)
    seen = screen.reset()
    draw = np.random.default_rng(0)
    for _ in range(30):
        seen = screen.step(draw.integers(0, 18, 1)).observations
        picture = screen.picture()
        assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8
        grey = DOWN @ (picture @ np.array([0.299, 0.587, 0.114])) @ ACROSS.T
        assert np.abs(grey - seen[0, -1]).max() < 3  # the maximum of two frames, by colour or by grey
    screen.close()
