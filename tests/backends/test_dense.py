"""Small dense networks of all runs at once against learners written out by hand, run by run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.cpu.dense import LARGEST, Dense
from kenyon.backends.cpu.looped import Looped
from kenyon.models import Net, cifar_cnn, digits_mlp
from kenyon.models.heads import NO_CLASS
from kenyon.random import Noise
from tests.backends.by_hand import head, images, keep_factors, make, mixed

R, B = 3, 5
CASES = [(7, 1), (16, 2), (3, 5)]


def fleet_images() -> Tensor:
    return torch.stack([images("digits", B) + run for run in range(R)])


def noise_of(keys: list[int]) -> Noise:
    return Noise.at(torch.tensor(keys), torch.tensor([4]))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("width", "K"), CASES)
def test_all_runs_equal_learners_by_hand(width: int, K: int, dropout: bool) -> None:
    net, hand = make("digits", width, K)
    assert isinstance(net.executor, Dense) and net.together and net.small
    rows, x = net.initial([3, 4, 5]).double(), fleet_images()
    noise = noise_of([11, 12, 13]) if dropout else None
    keep: list[list[list[Tensor]] | None] = [None] * R
    if noise is not None:
        drawn = noise.bytes(net.executor.noise_size(B))
        keep = [keep_factors(net, drawn[run], B, "digits", width) for run in range(R)]

    def by_hand(leaf: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [hand.logits(leaf[run], x[run], 1, keep[run]) for run in range(R)]

    leaf, other = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    out, expected = net.forward(leaf, x, head(1), noise=noise, own=True), by_hand(other)
    assert out.own_logits is not None
    for run in range(R):
        torch.testing.assert_close(out.logits[run], expected[run][0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.own_logits[run], expected[run][1], rtol=1e-10, atol=1e-12)
    ours = sum(mixed(out.logits[run], out.own_logits[run]) for run in range(R))
    theirs = sum(mixed(*expected[run]) for run in range(R))
    assert isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    found, wanted = torch.autograd.grad(ours, leaf)[0], torch.autograd.grad(theirs, other)[0]
    assert all(found[run].any() for run in range(R))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("K", [1, 3])
def test_samples_of_several_tasks(K: int) -> None:
    """Each run's samples belong to tasks of their own, and a smaller task has no third class."""
    net, hand = make("digits", 6, K, counts=(3, 2, 3))
    rows, x = net.initial([3, 4, 5]).double(), fleet_images()
    member = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1]])
    out = net.forward(rows, x, head(2, 1), member, own=True)
    assert out.own_logits is not None and out.own_logits.shape == (R, K, B, 3)
    for run in range(R):
        for sample in range(B):
            task = (2, 1)[member[run, sample]]
            together, own = hand.logits(rows[run], x[run, sample : sample + 1], task)
            n = hand.counts[task]
            torch.testing.assert_close(out.logits[run, sample, :n], together[0], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(out.own_logits[run, :, sample, :n], own[:, 0], rtol=1e-10, atol=1e-12)
            assert (out.logits[run, sample, n:] == NO_CLASS).all()


@pytest.mark.parametrize("K", [1, 3])
def test_a_run_has_the_same_bits_among_others(K: int) -> None:
    net = Net(digits_mlp(16), (1, 8, 8), (2, 2), learners=K)
    rows, x = net.initial([3, 4, 5]), fleet_images().float()

    def gradient(runs: slice, keys: list[int]) -> Tensor:
        leaf = rows[runs].clone().requires_grad_()
        out = net.forward(leaf, x[runs], head(1), noise=noise_of(keys), own=True)
        assert out.own_logits is not None
        return torch.autograd.grad((out.logits.exp().sum() + out.own_logits.square().sum()), leaf)[0]

    together = gradient(slice(None), [11, 12, 13])
    for run, key in enumerate([11, 12, 13]):
        assert torch.equal(gradient(slice(run, run + 1), [key])[0], together[run])


def test_other_layers_and_colours() -> None:
    """Images that are pooled first, with several channels that lie last in memory, as a fleet gives them."""
    backbone = nn.Sequential(
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 9),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(9, 6, bias=False),
        nn.GELU(),
    )
    net = Net(backbone, (2, 8, 8), (2,), learners=2, dtype=torch.float64)
    assert isinstance(net.executor, Dense)
    rows, x = net.initial([3, 4, 5]).double(), torch.randn(R, B, 8, 8, 2, dtype=torch.float64).movedim(-1, -3)
    out = net.forward(rows, x, head(0), own=True)
    assert out.own_logits is not None
    for run in range(R):
        w = [v[run] for n, v in net.layout.views(rows).items() if n in net.backbone_names]
        f = [nn.functional.avg_pool2d(x[run], 2).flatten(1) @ w[0][k].T + w[1][k] for k in range(2)]
        f = [nn.functional.gelu(f[k].tanh() @ w[2][k].T) for k in range(2)]
        views = net.layout.views(rows[run])
        expected = torch.stack([f[k] @ views["head.weight"][0].T + views["head.bias"][0] for k in range(2)])
        torch.testing.assert_close(out.own_logits[run], expected, rtol=1e-10, atol=1e-12)
        alone = net.forward(rows[run], x[run], head(0), own=True)
        torch.testing.assert_close(out.logits[run], alone.logits, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(alone.own_logits, expected, rtol=1e-10, atol=1e-12)


def test_who_is_computed_so() -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, LARGEST // 64), nn.ReLU())
    for backbone, shape in ((cifar_cnn(2), (3, 32, 32)), (wide, (1, 8, 8))):
        assert isinstance(Net(backbone, shape, (2,)).executor, Looped)
    assert isinstance(Net(digits_mlp(16), (1, 8, 8), (2,)).executor, Dense)
