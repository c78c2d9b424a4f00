"""One Adam for a fleet against one torch.optim.Adam per run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.backends.optimizers import Adam

R, P = 4, 11
RATES = (1e-3, 3e-2, 1e-1, 1e-4)
ALL = torch.ones(R)


class Torch:
    """PyTorch's own, one run after another in float64."""

    def __init__(self, theta: Tensor) -> None:
        self.rows = [row.clone().double().requires_grad_() for row in theta]
        self.optimizers = [self.new(run) for run in range(R)]

    def new(self, run: int) -> torch.optim.Adam:
        return torch.optim.Adam([self.rows[run]], lr=RATES[run])

    def step(self, gradient: Tensor, moves: Tensor = ALL) -> None:
        for run in range(R):
            if moves[run]:
                self.rows[run].grad = gradient[run].double()
                self.optimizers[run].step()

    @property
    def theta(self) -> Tensor:
        return torch.stack([row.detach() for row in self.rows])


def gradients(step: int) -> Tensor:
    """Return gradients of very different sizes, some exactly zero."""
    g = torch.randn(R, P, generator=torch.Generator().manual_seed(step)) * torch.logspace(-6, 3, P)
    g[:, 3] = 0.0
    return g


@pytest.fixture
def theta() -> Tensor:
    return torch.randn(R, P, generator=torch.Generator().manual_seed(99)) * 0.01


def assert_equal(ours: Tensor, theirs: Tensor, start: Tensor) -> None:
    """The way each number went, to four digits of a step: float32 against float64."""
    for run in range(R):
        tolerance = {"rtol": 1e-4, "atol": 1e-3 * RATES[run]}
        torch.testing.assert_close(ours[run].double() - start[run], theirs[run] - start[run], **tolerance)


def test_equals_pytorchs_adam(theta: Tensor) -> None:
    start, torchs, adam = theta.clone(), Torch(theta), Adam(theta.shape, theta.device)
    for step in range(50):
        adam.step(theta, gradients(step), torch.tensor(RATES), ALL)
        torchs.step(gradients(step))
        assert_equal(theta, torchs.theta, start)
    assert torch.equal(theta[:, 3], start[:, 3])  # no gradient, no change: heads of other tasks stay as they are


def test_restart_of_one_run_is_a_new_optimizer(theta: Tensor) -> None:
    start, torchs, adam = theta.clone(), Torch(theta), Adam(theta.shape, theta.device)
    for step in range(30):
        if step in (7, 20):
            adam.restart(torch.tensor([False, True, False, step == 20]))
            for run in (1, 3) if step == 20 else (1,):
                torchs.optimizers[run] = torchs.new(run)
        adam.step(theta, gradients(step), torch.tensor(RATES), ALL)
        torchs.step(gradients(step))
    assert_equal(theta, torchs.theta, start)
    adam.restart()
    assert not any(tensor.any() for tensor in adam.tensors().values())


def test_a_run_that_does_not_move_stays_as_it_is(theta: Tensor) -> None:
    """Runs with less data have no batch in some steps: neither weights nor momentum may change by a bit."""
    start, torchs, adam = theta.clone(), Torch(theta), Adam(theta.shape, theta.device)
    for step in range(40):
        moves = torch.tensor([1.0, float(step % 3 != 0), 0.0, float(step > 4)])
        before = {name: t.clone() for name, t in {"theta": theta, **adam.tensors()}.items()}
        adam.step(theta, gradients(step), torch.tensor(RATES), moves)
        torchs.step(gradients(step), moves)
        for name, t in {"theta": theta, **adam.tensors()}.items():
            still = moves == 0
            assert torch.equal(t[still], before[name][still])
    assert torch.equal(theta[2], start[2])
    assert_equal(theta, torchs.theta, start)


def test_runs_do_not_see_each_other(theta: Tensor) -> None:
    alone, together = theta.clone(), theta.clone()
    adam, adams = Adam(theta.shape, theta.device), [Adam(theta[:1].shape, theta.device) for _ in range(R)]
    for step in range(20):
        g = gradients(step)
        adam.step(together, g, torch.tensor(RATES), ALL)
        for run in range(R):
            adams[run].step(alone[run : run + 1], g[run : run + 1], torch.tensor(RATES[run : run + 1]), ALL[:1])
    assert torch.equal(alone, together)


def test_a_broken_run_does_not_break_others(theta: Tensor) -> None:
    clean, other = theta.clone(), theta.clone()
    adam, broken = (Adam(theta.shape, theta.device) for _ in range(2))
    for step in range(5):
        g = gradients(step)
        adam.step(clean, g, torch.tensor(RATES), ALL)
        g[2] = torch.nan
        broken.step(other, g, torch.tensor(RATES), ALL)
    assert torch.equal(clean[[0, 1, 3]], other[[0, 1, 3]])
