"""Unfinished fleets on disk: what names them, what they say of themselves, and which state a run goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kenyon.experiments.grid import GridPoint, RunSpec, expand
from kenyon.experiments.store import SavedState, find_states, identity_of, read_state, resumed, state_path
from kenyon.training.checkpoint import Position, StateError, save_state

GRID = {"lambda_sp": [1000, 2000], "epochs": 3}


@pytest.fixture
def points() -> list[GridPoint]:
    return expand("digits", "ewc", GRID)


def cells_of(point: GridPoint, *seeds: int) -> list[RunSpec]:
    return [RunSpec(point, seed) for seed in seeds]


def saved(out: Path, cells: list[RunSpec], phase: int = 0, epoch: int = 1, runs: int | None = None) -> Path:
    path = state_path(out, cells)
    path.parent.mkdir(parents=True, exist_ok=True)
    at = Position(phase, epoch, diverged=[None] * (len(cells) if runs is None else runs))
    save_state(path, {"theta": torch.zeros(len(cells), 2)}, at, identity_of(cells))
    return path


def names(cells: list[RunSpec]) -> list[tuple[str, int]]:
    return [(cell.point.name, cell.seed) for cell in cells]


def test_an_identity_has_every_runs_configuration_in_the_order_of_the_rows(points: list[GridPoint]) -> None:
    one, other = points
    alone = json.loads(identity_of(cells_of(one, 0, 3)))
    assert alone == {"config": one.config.as_dict(), "seeds": [0, 3], "point": {"lambda_sp": 1000}}
    both = json.loads(identity_of([*cells_of(other, 5), *cells_of(one, 0, 3)]))
    assert [share["seeds"] for share in both["points"]] == [[5], [0, 3]]
    assert [share["point"] for share in both["points"]] == [{"lambda_sp": 2000}, {"lambda_sp": 1000}]
    assert [share["config"]["hyper"]["lambda_sp"] for share in both["points"]] == [2000, 1000]
    [plain] = expand("digits", "ewc", {"epochs": 3})
    assert json.loads(identity_of(cells_of(plain, 2))) == {"config": plain.config.as_dict(), "seeds": [2]}


def test_a_state_lies_with_its_point_or_where_runs_are_of_several_with_the_method(
    tmp_path: Path, points: list[GridPoint]
) -> None:
    one, other = points
    below = tmp_path / "digits" / "ewc"
    assert state_path(tmp_path, cells_of(one, 0, 1)).parent == below / "lambda_sp=1000"
    assert state_path(tmp_path, [*cells_of(one, 0), *cells_of(other, 0)]).parent == below
    several = (cells_of(one, 0), cells_of(one, 1), cells_of(other, 0), cells_of(one, 0, 1))
    assert len({state_path(tmp_path, cells).name for cells in several}) == 4


def test_a_state_says_which_runs_its_rows_are_and_how_far_they_are(tmp_path: Path, points: list[GridPoint]) -> None:
    one, other = points
    cells = [*cells_of(other, 5), *cells_of(one, 0, 3)]
    state = read_state(saved(tmp_path, cells, phase=2, epoch=7))
    assert state is not None and state.reached == (2, 7) and len(state.keys) == 3
    assert state.rows([cells[2], cells[0]]) == [2, 0] and state.rows(cells) == [0, 1, 2]
    with pytest.raises(KeyError):
        state.rows(cells_of(other, 3))


@pytest.mark.parametrize("runs", [1, 3])
def test_a_state_that_names_other_runs_than_it_holds_is_damaged(
    tmp_path: Path, points: list[GridPoint], runs: int
) -> None:
    with pytest.raises(StateError, match="it names other runs than it holds"):
        read_state(saved(tmp_path, cells_of(points[0], 0, 1), runs=runs))


def test_a_state_of_something_else_is_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "state-other.safetensors"
    save_state(path, {"theta": torch.zeros(1, 2)}, Position(diverged=[None]), json.dumps({"games": ["catch"]}))
    assert read_state(path) is None


def test_runs_go_on_from_the_most_advanced_state_that_holds_them(tmp_path: Path, points: list[GridPoint]) -> None:
    """Of equal ones that with fewest runs. Nobody has seed 9."""
    one, other = points
    together = [*cells_of(one, 0, 1, 2), *cells_of(other, 0)]
    saved(tmp_path, together, phase=1, epoch=1)
    saved(tmp_path, cells_of(one, 1), phase=1, epoch=1)
    saved(tmp_path, cells_of(one, 0, 2), phase=0, epoch=9)  # more epochs, of an earlier task
    saved(tmp_path, cells_of(other, 0), phase=1, epoch=2)
    states = find_states(tmp_path, points)
    assert len(states) == 4
    asked = [*cells_of(one, 0, 1, 9), *cells_of(other, 0)]
    for order in (states, states[::-1]):
        jobs, rest = resumed(order, asked)
        assert [(job.begun.reached, names(job.runs)) for job in jobs if job.begun] == [
            ((1, 2), [("lambda_sp=2000", 0)]),
            ((1, 1), [("lambda_sp=1000", 1)]),
            ((1, 1), [("lambda_sp=1000", 0)]),
        ]
        assert names(rest) == [("lambda_sp=1000", 9)]


def test_values_that_are_equal_are_the_same_run(tmp_path: Path) -> None:
    [whole], [real] = (expand("digits", "ewc", {"lambda_sp": [value]}) for value in (1000, 1000.0))
    state = read_state(saved(tmp_path, cells_of(whole, 4)))
    assert isinstance(state, SavedState) and resumed([state], cells_of(real, 4))[1] == []
