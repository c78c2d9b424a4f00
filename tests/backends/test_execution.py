"""Looped, stacked and general execution against learners written out by hand: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.cpu.looped import chunks_of
from kenyon.backends.torch.module import General
from kenyon.models import Net
from kenyon.utils.threads import cpu_threads
from tests.backends.by_hand import CASES, executions, gradient, head, images, keep_factors, make, mixed


@pytest.mark.parametrize(("kind", "width", "K"), CASES)
@pytest.mark.parametrize("how", ["looped", "stacked", "general"])
def test_evaluation_equals_learners_by_hand(kind: str, width: int, K: int, how: str) -> None:
    net, hand = make(kind, width, K)
    net.executor = executions(net, kind)[how]  # type: ignore[assignment]
    row, x = net.initial([3])[0].double(), images(kind)
    features = net._features(row, x, None)
    assert features.shape == (K, 3, hand.learner.features)
    torch.testing.assert_close(features, hand.features(row, x), rtol=1e-10, atol=1e-12)
    for task in (0, 1):
        out = net.forward(row, x, head(task), own=True)
        together, own = hand.logits(row, x, task)
        torch.testing.assert_close(out.logits, together, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.own_logits, own, rtol=1e-10, atol=1e-12)

    def ours(leaf: Tensor) -> Tensor:
        out = net.forward(leaf, x, head(1), own=True)
        assert out.own_logits is not None
        return mixed(out.logits, out.own_logits)

    expected = gradient(row, lambda leaf: mixed(*hand.logits(leaf, x, 1)))
    assert all(part.any() for name, part in hand.cut(expected).items() if K < 2 or "head" in name)
    torch.testing.assert_close(gradient(row, ours), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kind", "width", "K"), CASES)
def test_dropout_equals_masks_by_hand(kind: str, width: int, K: int) -> None:
    net, hand = make(kind, width, K)
    row, x = net.initial([4])[0].double(), images(kind)
    both = executions(net, kind)
    size = both["looped"].noise_size(3)  # type: ignore[attr-defined]
    assert size == both["stacked"].noise_size(3)  # type: ignore[attr-defined]
    noise = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    keep = keep_factors(net, noise, 3, kind, width)
    together, own = hand.logits(row, x, 0, keep)
    expected = gradient(row, lambda leaf: mixed(*hand.logits(leaf, x, 0, keep)))
    for how in ("looped", "stacked"):
        net.executor = both[how]  # type: ignore[assignment]
        out = net.forward(row, x, head(0), noise=noise, own=True)
        torch.testing.assert_close(out.logits, together, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.own_logits, own, rtol=1e-10, atol=1e-12)

        def ours(leaf: Tensor) -> Tensor:
            out = net.forward(leaf, x, head(0), noise=noise, own=True)
            assert out.own_logits is not None
            return mixed(out.logits, out.own_logits)

        torch.testing.assert_close(gradient(row, ours), expected, rtol=1e-9, atol=1e-11)
    without = net.forward(row, x, head(0)).logits
    assert not torch.allclose(without, together)


@pytest.mark.parametrize(
    ("kind", "width", "K", "batch"), [("cifar", 4, 1, 43), ("cifar", 2, 3, 7), ("digits", 5, 2, 300)]
)
def test_parts_of_a_batch_equal_the_whole(kind: str, width: int, K: int, batch: int) -> None:
    """Computed in parts: values and gradients as by hand, and as runs are computed the same bits on any number of
    cores.
    """
    net, hand = make(kind, width, K)
    net.executor = executions(net, kind)["looped"]  # type: ignore[assignment]
    assert len(chunks_of(batch, K)) > K or batch < 20
    row, x = net.initial([5])[0].double(), images(kind, batch)

    def ours(leaf: Tensor) -> Tensor:
        return mixed(net.forward(leaf, x.to(leaf.dtype), head(1)).logits.double())

    expected = gradient(row, lambda leaf: mixed(hand.logits(leaf, x, 1)[0]))
    found = {}
    for cores in (1, 2, 3):
        with cpu_threads(cores):
            torch.testing.assert_close(gradient(row, ours), expected, rtol=1e-9, atol=1e-10)
            found[cores] = gradient(row.float(), ours)
    assert torch.equal(found[1], found[2]) and torch.equal(found[1], found[3])


def test_an_error_in_a_part_reaches_the_caller() -> None:
    net, _ = make("cifar", 2, 2)
    net.executor = executions(net, "cifar")["looped"]  # type: ignore[assignment]
    with cpu_threads(2), pytest.raises(RuntimeError, match="expected input"):
        net.forward(net.initial([5])[0].double(), images("cifar", 30)[:, :2], head(0))


def test_general_dropout_is_a_function_of_the_noise() -> None:
    net, _ = make("digits", 8, 2, diversity="medium")
    net.backbone.drop1.p = 0.0  # only the last dropout acts, so that what it keeps can be compared
    net.executor = General(net.backbone, 2)
    row, x = net.initial([0])[0].double(), images("digits", 50)
    one, other = torch.arange(8, dtype=torch.uint8), torch.arange(1, 9, dtype=torch.uint8)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = net._features(row, x, one)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(net._features(row, x, one), first)
    assert not torch.equal(net._features(row, x, other), first)
    assert not torch.equal(first[0], first[1])  # equal weights, different masks
    evaluation = net._features(row, x, None)
    assert torch.equal(evaluation[0], evaluation[1])
    kept = first[0] != 0
    torch.testing.assert_close(first[0][kept], evaluation[0][kept] / 0.5)


@pytest.mark.parametrize("K", [1, 3])
def test_padded_input_channels_change_nothing(K: int) -> None:
    net, _ = make("cifar", 2, K)
    net.executor = executions(net, "cifar")["stacked"]  # type: ignore[assignment]
    row, x = net.initial([5])[0].double(), images("cifar")
    wide = torch.cat([x, torch.zeros(3, 5, 32, 32, dtype=torch.float64)], 1)
    plain, padded = (net.forward(row, i, head(0), own=True) for i in (x, wide))
    torch.testing.assert_close(plain.logits, padded.logits, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(plain.own_logits, padded.own_logits, rtol=1e-12, atol=1e-13)
    grads = [gradient(row, lambda leaf, i=i: mixed(net.forward(leaf, i, head(0)).logits)) for i in (x, wide)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", ["looped", "stacked"])
def test_a_layer_used_twice_acts_twice(how: str) -> None:
    """One ReLU or Dropout object in several places is an ordinary way to write a network."""
    act, drop = nn.ReLU(), nn.Dropout(0.5)
    backbone = nn.Sequential(
        nn.Conv2d(1, 3, 3), act, drop, nn.Conv2d(3, 4, 3), act, drop, nn.Flatten(), nn.Linear(64, 6), nn.Tanh()
    )
    net = Net(backbone, (1, 8, 8), (2,), learners=2, dtype=torch.float64)
    net.executor = executions(net, "digits")[how]  # type: ignore[assignment]
    row, x = net.initial([0])[0].double(), images("digits")
    expected = General(net.backbone, 2).forward(
        {n: v for n, v in net.layout.views(row).items() if n in net.backbone_names}, x, None
    )
    torch.testing.assert_close(net._features(row, x, None), expected, rtol=1e-10, atol=1e-12)
    assert len(net.executor.sites) == 2  # type: ignore[attr-defined]


def test_a_weight_used_twice_is_understood() -> None:
    dense = nn.Linear(64, 64)
    net = Net(nn.Sequential(nn.Flatten(), dense, nn.ReLU(), dense), (1, 8, 8), (2,), learners=2, dtype=torch.float64)
    row, x = net.initial([0])[0].double(), images("digits")
    w, b = row[: 2 * 64 * 64].view(2, 64, 64), row[2 * 64 * 64 : 2 * 64 * 65].view(2, 64)
    expected = torch.stack([torch.relu(x.flatten(1) @ w[k].T + b[k]) @ w[k].T + b[k] for k in range(2)])
    torch.testing.assert_close(net._features(row, x, None), expected, rtol=1e-10, atol=1e-12)


def test_flatten_may_keep_axes() -> None:
    """Not a network anyone wants, but it must not be computed as another one."""
    backbone = nn.Sequential(nn.Flatten(2), nn.Linear(64, 6), nn.Flatten())
    net = Net(backbone, (3, 8, 8), (2,), learners=2, dtype=torch.float64)
    row, x = net.initial([0])[0].double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    w, b = row[: 2 * 6 * 64].view(2, 6, 64), row[2 * 6 * 64 : 2 * 6 * 65].view(2, 6)
    expected = torch.stack([(x.flatten(2) @ w[k].T + b[k]).flatten(1) for k in range(2)])
    torch.testing.assert_close(net._features(row, x, None), expected, rtol=1e-10, atol=1e-12)


def test_a_sequential_with_its_own_forward_is_not_taken_apart() -> None:
    class Residual(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return x + super().forward(x)

    net = Net(Residual(nn.Linear(64, 64), nn.ReLU()), (1, 8, 8), (2,), dtype=torch.float64)
    row, x = net.initial([0])[0].double(), images("digits")
    flat, w, b = x.flatten(1), row[: 64 * 64].view(64, 64), row[64 * 64 : 64 * 65]
    expected = flat + torch.relu(flat @ w.T + b)
    torch.testing.assert_close(net._features(row, x, None)[0], expected, rtol=1e-10, atol=1e-12)


def test_dropout_on_the_input_is_each_learners_own() -> None:
    backbone = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 6))
    net = Net(backbone, (1, 8, 8), (2,), learners=2, diversity="medium", dtype=torch.float64)
    row, x = net.initial([0])[0].double(), images("digits")
    noise = torch.randint(0, 256, (net.executor.noise_size(3),), generator=torch.Generator().manual_seed(1))
    f = net._features(row, x, noise.to(torch.uint8))
    assert not torch.allclose(f[0], f[1])  # the same weights
