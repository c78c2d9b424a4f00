"""Somebody's own penalties: what they give is checked, since a wrong shape would mix runs without a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kenyon.backends.triton.updates import QuadraticPull
from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.methods.penalties.weights import Predictions, Weights
from kenyon.models import Net
from kenyon.training.objective import _repeated
from tests.references import make_trainer
from tests.training.fleets import SHORT, digit_streams


@dataclass(frozen=True)
class OnWeights:
    shape: str = "each"
    forced: Any = ()

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, w: Weights) -> Any:
        squares = w.theta.square()
        return {"each": squares.sum(1), "all": squares.sum(), "row": squares, "number": 0.5}[self.shape]

    def forces(self, w: Weights, gradient: Tensor) -> Any:
        return self.forced


@dataclass(frozen=True)
class OnPredictions:
    summed: tuple[int, ...]
    strength: float = 0.1
    needs_own = False
    validated = True

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, p: Predictions) -> Tensor:
        return p.log_p.square().mean(-1).sum(self.summed)


def learns(penalty: Any, runs: int) -> None:
    method = Method(penalties=(penalty,), from_first=True)
    make_trainer(method, digit_streams(range(runs)), SHORT).run()


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(("shape", "said"), [("all", r"a tensor \(\)"), ("row", "a tensor"), ("number", "a float")])
def test_a_value_is_one_number_a_run(shape: str, said: str, runs: int) -> None:
    with pytest.raises(ConfigError, match=rf"value of OnWeights is {said}.* here of the shape \({runs},\)"):
        learns(OnWeights(shape), runs)


@pytest.mark.parametrize(
    ("forced", "said"),
    [
        (None, "no list but NoneType"),
        (torch.zeros(2), "no list but Tensor"),
        ([torch.zeros(2)], "a list with Tensor in it"),
        (QuadraticPull(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1)), "no list but QuadraticPull"),
    ],
)
def test_forces_are_a_list_of_forces(forced: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"forces of OnWeights are {said}\. .*return \[QuadraticPull"):
        learns(OnWeights(forced=forced), 2)


def test_a_value_of_predictions_is_one_number_a_run() -> None:
    with pytest.raises(ConfigError, match=r"value of OnPredictions is a tensor"):
        learns(OnPredictions((0, 1)), 2)
    learns(OnPredictions((-1,)), 2)


def test_what_is_right_is_taken() -> None:
    learns(OnWeights(), 2)


def test_penalties_on_predictions_add_up() -> None:
    """0.1 p + 0.3 p is 0.4 p, whichever comes first."""

    def weights(*strengths: float) -> Tensor:
        penalties = tuple(OnPredictions((-1,), strength) for strength in strengths)
        trainer = make_trainer(Method(penalties=penalties, from_first=True), digit_streams(range(2)), SHORT)
        trainer.run()
        return trainer.theta

    together = weights(0.4)
    assert not torch.allclose(weights(0.6), together, rtol=1e-3, atol=1e-4)
    for several in ((0.1, 0.3), (0.3, 0.1), (0.1, 0.2, 0.1)):
        torch.testing.assert_close(weights(*several), together, rtol=1e-3, atol=1e-4)


def test_strengths_of_runs_whose_batches_lie_side_by_side() -> None:
    """Two runs of three batches each, run by run; a number is the same for all."""
    strength = torch.tensor([2.0, 5.0])
    assert _repeated(strength, torch.zeros(6)).tolist() == [2, 2, 2, 5, 5, 5]  # type: ignore[union-attr]
    assert _repeated(strength, torch.zeros(2)) is strength and _repeated(0.5, torch.zeros(6)) == 0.5
