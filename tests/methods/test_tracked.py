"""Importances of the path, step by step against their equations and with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods.path_importance import TrackedImportance, _scaled, rwalk, si


@dataclass
class Walked:
    """The fleet at work as trackers see it: here the test moves the weights."""

    theta: Tensor
    gradient: Tensor
    present: Tensor
    anchor: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.anchor = self.theta.clone()


def walk(gradients: list[list[float]], changes: list[list[float]], form: str = "published") -> Tensor:
    """One task of one run with these steps, then the importance of RWalk."""
    return tracked(rwalk(form), gradients, changes)  # type: ignore[arg-type]


def tracked(how: TrackedImportance, gradients: list[list[float]], changes: list[list[float]]) -> Tensor:
    theta = torch.zeros(1, len(gradients[0]), dtype=torch.float64)
    work = Walked(theta, torch.zeros_like(theta), torch.ones(1, dtype=torch.float64))
    tracking = how.track(work)  # type: ignore[arg-type]
    tracking.start_task()
    for g, d in zip(gradients, changes, strict=True):
        tracking.before_step()
        work.gradient.copy_(torch.tensor([g]))
        work.theta.add_(torch.tensor([d]))
        tracking.after_step()
    return tracking.estimate()[0]


def test_the_path_of_si_adds_up_with_its_signs() -> None:
    """-g d of every step, and importance = path / ((whole change)^2 + 0.01). Weight 0 rises first and then falls:
    -0.1 + 0.6 = 0.5 over (-0.2)^2 + 0.01. Weight 1 ends higher than it began: 0.2 - 0.5 = -0.3 over 0.4^2 + 0.01.
    """
    found = tracked(si(), [[1.0, 2.0], [2.0, 1.0]], [[0.1, -0.1], [-0.3, 0.5]])
    assert found.tolist() == pytest.approx([0.5 / 0.05, -0.3 / 0.17])


def test_two_steps_by_hand() -> None:
    """g = 2, d = -0.1: F = 3.6, s = 0.2 / (3.6 * 0.005 + 0.01) = 0.2 / 0.028.
    g = 1, d = 0.2: F = 0.9 + 0.36 = 1.26, s falls by 0.2 / (1.26 * 0.02 + 0.01) = 0.2 / 0.0352."""
    expected = 1.26 + 0.5 * (0.2 / 0.028 - 0.2 / 0.0352)
    assert float(walk([[2.0], [1.0]], [[-0.1], [0.2]])[0]) == pytest.approx(expected, rel=1e-5)


def test_both_parts_go_on_and_the_score_is_halved_between_tasks() -> None:
    theta = torch.zeros(1, 1, dtype=torch.float64)
    work = Walked(theta, torch.full_like(theta, 2.0), torch.ones(1, dtype=torch.float64))
    tracking = rwalk().track(work)  # type: ignore[arg-type]
    fisher, score = 0.0, 0.0
    for _ in range(3):
        tracking.start_task()
        tracking.before_step()
        theta.sub_(0.1)
        tracking.after_step()
        fisher = 0.9 * 4 + 0.1 * fisher
        score = score / 2 + 0.2 / (fisher * 0.005 + 0.01)
        assert float(tracking.estimate()) == pytest.approx(fisher + score / 2)


def test_a_run_without_a_batch_stays_as_it_is() -> None:
    theta = torch.zeros(2, 3)
    work = Walked(theta, torch.ones(2, 3), torch.tensor([1.0, 0.0]))
    tracking = rwalk().track(work)  # type: ignore[arg-type]
    tracking.before_step()
    theta[0] -= 0.1
    tracking.after_step()
    assert tracking.estimate()[0].all() and not tracking.estimate()[1].any()


STEPS = st.lists(
    st.tuples(*(st.lists(st.floats(-3, 3), min_size=4, max_size=4) for _ in range(2))), min_size=1, max_size=6
)


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_the_papers_form_has_both_parts_between_0_and_1(steps: list[tuple[list[float], list[float]]]) -> None:
    gradients, changes = ([list(part) for part in parts] for parts in zip(*steps, strict=True))
    importance = walk(gradients, changes, "paper")
    assert torch.isfinite(importance).all()
    assert float(importance.min()) >= 0 and float(importance.max()) <= 2 + 1e-6
    if any(g for some in gradients for g in some if abs(g) > 1e-3):
        assert float(importance.max()) >= 1 - 1e-6  # the largest of each part is 1


def test_another_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="third"):
        rwalk("third")  # type: ignore[arg-type]


def test_the_papers_form_by_hand() -> None:
    """Weight 0: g = 2, d = -0.1: F = 3.6, s = 0.2 / 0.028. Weight 1: g = 1, d = 0.1: F = 0.9, s < 0, which counts for
    nothing. Weight 2: g = 1, d = -0.1: F = 0.9, s = 0.1 / (0.9 * 0.005 + 0.01). Either part by its largest.
    """
    found = walk([[2.0, 1.0, 1.0]], [[-0.1, 0.1, -0.1]], "paper")
    expected = torch.tensor([2.0, 0.25, 0.25 + (0.1 / 0.0145) / (0.2 / 0.028)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_papers_form_scales_every_run_by_its_own_largest() -> None:
    rows = torch.tensor([[1.0, 4.0], [2.0, 200.0], [0.0, 0.0]])
    assert _scaled(rows).tolist() == [[0.25, 1.0], [pytest.approx(0.01), 1.0], [0.0, 0.0]]
