"""The small games: hand-worked rounds, perfect play, random play, and properties of every copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.errors import ConfigError
from kenyon.rl import mini
from kenyon.rl.environment import Moment, find_suite
from kenyon.rl.mini import BEST, FLEE_STEPS, LAST, RULES, SIDE, MiniGames

GAMES = tuple(RULES)
games = st.sampled_from(GAMES)
seeds = st.integers(0, 2**31)


def place(game: str, player: tuple[int, int], thing: tuple[int, int], left: int) -> MiniGames:
    """Return one copy in the given position of its first round."""
    found = mini.make(game, 1, 0, True)
    found.player, found.thing, found.left = np.array([player]), np.array([thing]), np.array([left])
    return found


def play(game: MiniGames, *actions: int) -> list[Moment]:
    return [game.step(np.array([action])) for action in actions]


def drawn(game: MiniGames) -> list[str]:
    """Return the board in letters: # the object, P the player."""
    thing, player = game.load(game.save())[0]
    return [
        "".join("P" if p else "#" if t else "." for t, p in zip(*row, strict=True))
        for row in zip(thing, player, strict=True)
    ]


def random_play(game: MiniGames, steps: int, seed: int) -> list[Moment]:
    draw = np.random.default_rng(seed)
    return [game.step(draw.integers(0, game.actions, game.count)) for _ in range(steps)]


def same(first: Moment, second: Moment, copies: slice = slice(None)) -> bool:
    inside = range(len(first.ended))[copies]
    return (
        np.array_equal(first.observations[copies], second.observations[copies])
        and np.array_equal(first.rewards[copies], second.rewards[copies])
        and np.array_equal(first.ended[copies], second.ended[copies])
        and [s for s in first.scores if s[0] in inside] == [s for s in second.scores if s[0] in inside]
    )


def test_a_caught_and_a_missed_block() -> None:
    game = place("catch", (5, 2), (2, 4), 3)
    assert drawn(game) == ["......", "......", "....#.", "......", "......", "..P..."]
    LEFT, STAY, RIGHT = range(3)
    assert [m.rewards[0] for m in play(game, RIGHT, STAY, RIGHT)] == [0, 0, 1]
    assert (game.round[0], game.score[0]) == (1, 1)
    assert game.player.tolist() == [[5, 4]]  # the next round begins where this one ended
    missed = place("catch", (5, 2), (2, 4), 3)
    assert [m.rewards[0] for m in play(missed, RIGHT, RIGHT, LEFT)] == [0, 0, 0]
    assert (missed.round[0], missed.score[0]) == (1, 0)


def test_a_hole_is_what_the_wall_leaves() -> None:
    game = place("gap", (5, 0), (4, 1), 1)
    assert drawn(game)[4] == "#.####"
    assert play(game, 2)[0].rewards[0] == 1
    assert play(place("gap", (5, 0), (4, 1), 1), 1)[0].rewards[0] == 0


def test_a_beam_is_five_wide() -> None:
    game = place("dodge", (5, 1), (1, 2), 4)
    assert drawn(game)[1] == "#####."
    LEFT, RIGHT = range(2)
    assert play(game, RIGHT, RIGHT, RIGHT, RIGHT)[-1].rewards[0] == 1  # in column 5
    assert play(place("dodge", (5, 1), (1, 2), 4), RIGHT, RIGHT, RIGHT, LEFT)[-1].rewards[0] == 0


def test_a_goal_ends_its_round_at_once_or_in_time() -> None:
    UP, DOWN, LEFT, RIGHT = range(4)
    game = place("reach", (2, 2), (1, 3), 8)
    assert [m.rewards[0] for m in play(game, UP, RIGHT)] == [0, 1]
    assert game.round[0] == 1
    late = place("reach", (2, 2), (1, 3), 2)
    assert [m.rewards[0] for m in play(late, LEFT, DOWN)] == [0, 0]
    assert late.round[0] == 1


def test_a_hunter_goes_the_longer_way_and_rests_in_every_third_step() -> None:
    STAY, DOWN = 0, 2
    game = place("flee", (0, 0), (1, 2), 7)
    seen = []
    for action in (STAY, STAY, STAY, DOWN):
        play(game, action)
        seen.append(game.thing[0].tolist())
    assert seen[:2] == [[1, 2], [1, 1]]  # with 6 steps left it rests
    assert seen[2] == [0, 1]  # equally far both ways: rows first
    assert seen[3] == [0, 1]  # with 3 steps left it rests again
    caught = place("flee", (0, 0), (0, 1), 6)
    assert play(caught, STAY)[0].rewards[0] == 0
    assert caught.round[0] == 1


def test_walls_hold() -> None:
    game = place("flee", (0, 0), (5, 5), 7)
    play(game, 1, 3)  # up and left, out of the corner
    assert game.player.tolist() == [[0, 0]]


def test_an_episode_is_four_rounds_and_then_another_begins() -> None:
    game = mini.make("reach", 1, 3, True)
    for number in range(4):
        game.player, game.thing = np.array([[2, 2]]), np.array([[2, 3]])
        (moment,) = play(game, 3)
        assert moment.rewards[0] == 1
        assert moment.ended[0] == (number == 3)
        assert moment.scores == ([(0, 4.0)] if number == 3 else [])
    assert (game.episode[0], game.round[0], game.score[0]) == (1, 0, 0)
    assert np.array_equal(moment.observations, game.load(game.save()))  # the first of the next one


# Perfect play.


def towards(game: MiniGames) -> npt.NDArray[np.int64]:
    """Return the action that leads nearest to the object."""
    return _best(game, lambda places: -np.abs(places - game.thing).sum(axis=-1))


def sideways(game: MiniGames) -> npt.NDArray[np.int64]:
    return _best(game, lambda places: -np.abs(places[..., 1] - game.thing[:, 1]))


def away(game: MiniGames) -> npt.NDArray[np.int64]:
    """Move to the farther wall: the beam is where the player was."""
    aim = np.where(game.thing[:, 1] < SIDE / 2, LAST, 0)
    return _best(game, lambda places: -np.abs(places[..., 1] - aim))


def escape(game: MiniGames) -> npt.NDArray[np.int64]:
    """Return an action after which the round can still be won."""
    chosen = []
    for player, thing, left in zip(game.player, game.thing, game.left, strict=True):
        at = (tuple(map(int, player)), tuple(map(int, thing)), int(left))
        chosen.append(next(a for a in range(5) if _survives(*at, a)))
    return np.array(chosen)


def _best(game: MiniGames, worth: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    moves = np.array(game.rules.moves)[:, None]
    return np.asarray(worth(np.clip(game.player + moves, 0, LAST)).argmax(axis=0))


@cache
def _survives(player: tuple[int, int], thing: tuple[int, int], left: int, action: int) -> bool:
    """Return True if some continuation of this action escapes, by trying all."""
    game = place("flee", player, thing, left)
    (moment,) = play(game, action)
    if game.round[0]:
        return bool(moment.rewards[0])
    at = (tuple(map(int, game.player[0])), tuple(map(int, game.thing[0])), int(game.left[0]))
    return any(_survives(*at, next_action) for next_action in range(5))


PLAYERS = {"catch": sideways, "gap": sideways, "dodge": away, "reach": towards, "flee": escape}


@pytest.mark.parametrize("name", GAMES)
def test_perfect_play_wins_every_round(name: str) -> None:
    game = mini.make(name, 40 if name == "flee" else 400, 11, False)
    scores: list[float] = []
    for _ in range(70):
        scores += [score for _, score in game.step(PLAYERS[name](game)).scores]
    assert len(scores) >= game.count
    assert set(scores) == {BEST}


def test_there_is_always_a_way_to_flee() -> None:
    for start in np.ndindex(SIDE, SIDE):
        for draw in range(4):
            thing, left = RULES["flee"].place(np.array([start]), np.array([draw / 4 + 0.1]), np.zeros(1))
            assert np.abs(thing - start).sum() == 3 and left[0] == FLEE_STEPS
            at = (tuple(map(int, thing[0])), int(left[0]))
            assert any(_survives(start, *at, action) for action in range(5))


@pytest.mark.parametrize("name", GAMES)
def test_random_play_scores_what_the_rules_say(name: str) -> None:
    game, wanted = mini.make(name, 2000, 5, True), 4
    finished: list[list[float]] = [[] for _ in range(game.count)]
    draw = np.random.default_rng(2)
    while min(map(len, finished)) < wanted:  # as many of every copy: short episodes must not count more
        for copy, score in game.step(draw.integers(0, game.actions, game.count)).scores:
            finished[copy].append(score)
    scores = np.array([copy[:wanted] for copy in finished])
    error = scores.std() / np.sqrt(scores.size)
    assert abs(scores.mean() - RULES[name].random) < 4 * error + 0.0015
    assert scores.mean() < 0.3 * BEST


# Properties.


@settings(max_examples=25, deadline=None)
@given(name=games, seed=seeds, copies=st.integers(1, 6), steps=st.integers(1, 80))
def test_moments_are_well_formed(name: str, seed: int, copies: int, steps: int) -> None:
    game = mini.make(name, copies, seed, True)
    collected = np.zeros(copies)
    for moment in random_play(game, steps, seed):
        seen = moment.observations
        assert seen.shape == (copies, *game.shape) and seen.dtype == np.uint8
        assert set(np.unique(seen)) <= {0, 255}
        assert (seen[:, 1].reshape(copies, -1).sum(axis=1) == 255).all()  # one player
        assert (seen[:, 0].reshape(copies, -1).sum(axis=1) > 0).all()  # never without a thing
        assert moment.rewards.dtype == np.float32 and moment.ended.dtype == np.bool_
        collected += moment.rewards
        assert [copy for copy, _ in moment.scores] == np.flatnonzero(moment.ended).tolist()
        for copy, score in moment.scores:
            assert 0 <= score <= BEST and score == collected[copy]
        collected[moment.ended] = 0


@settings(max_examples=25, deadline=None)
@given(name=games, seed=seeds, before=st.integers(0, 40), after=st.integers(1, 40))
def test_saved_games_continue_alike(name: str, seed: int, before: int, after: int) -> None:
    game = mini.make(name, 3, seed, True)
    random_play(game, before, 1)
    saved = game.save()
    other = mini.make(name, 3, seed + 1, True)
    assert np.array_equal(other.load(saved), game.load(saved))
    ahead = random_play(game, after, 2)
    assert all(map(same, ahead, random_play(other, after, 2)))
    game.load(saved)  # what was saved did not change while the game went on
    assert all(map(same, ahead, random_play(game, after, 2)))


@settings(max_examples=15, deadline=None)
@given(name=games, seed=seeds)
def test_the_same_seed_plays_alike_also_after_a_reset(name: str, seed: int) -> None:
    first, second = (mini.make(name, 4, seed, True) for _ in range(2))
    start = first.reset()
    moments = random_play(first, 40, 0)
    assert all(map(same, moments, random_play(second, 40, 0)))
    assert np.array_equal(first.reset(), start)
    assert all(map(same, moments, random_play(first, 40, 0)))


@settings(max_examples=15, deadline=None)
@given(name=games, seed=seeds)
def test_games_with_a_new_seed_play_like_new_ones(name: str, seed: int) -> None:
    played, new = mini.make(name, 4, 1, False), mini.make(name, 4, seed, False)
    random_play(played, 20, 1)
    played.reseed(seed)
    assert np.array_equal(played.reset(), new.reset())
    assert all(map(same, random_play(played, 40, 0), random_play(new, 40, 0)))


@settings(max_examples=15, deadline=None)
@given(name=games, seed=seeds)
def test_copies_are_independent(name: str, seed: int) -> None:
    """The first two of five copies play as two alone, for any actions of the others."""
    few, many = mini.make(name, 2, seed, True), mini.make(name, 5, seed, True)
    draw = np.random.default_rng(seed)
    for _ in range(40):
        actions = draw.integers(0, few.actions, 5)
        assert same(few.step(actions[:2]), many.step(actions), slice(2))


def test_copies_and_seeds_differ() -> None:
    for name in GAMES:
        game = mini.make(name, 64, 0, True)
        assert len(np.unique(game.reset().reshape(64, -1), axis=0)) > 4
        assert not np.array_equal(game.reset(), mini.make(name, 64, 1, True).reset())


def test_the_suite() -> None:
    suite = find_suite("rl-mini")
    assert dict(suite.actions) == {"catch": 3, "reach": 4, "dodge": 2, "flee": 5, "gap": 3}
    for name in suite.games:
        game = suite.make(name, 2, 0, True)
        assert (game.count, game.actions, game.shape) == (2, suite.actions[name], suite.shape)
        game.close()
    with pytest.raises(ConfigError, match="Did you mean catch"):
        suite.make("cacth", 1, 0, True)


def test_other_positions_are_refused() -> None:
    saved = mini.make("catch", 3, 0, True).save()
    with pytest.raises(ConfigError, match=r"'keys' has the shape \(3,\)"):
        mini.make("catch", 2, 0, True).load(saved)
    with pytest.raises(ConfigError, match="'thing' is missing"):
        mini.make("catch", 3, 0, True).load({name: saved[name] for name in saved if name != "thing"})
