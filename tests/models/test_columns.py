"""The active column against its equation written out, and what its rows hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.triton import fused
from kenyon.backends.triton.columns import Aligned
from kenyon.errors import ConfigError
from kenyon.models import Net, alexnet, cifar_cnn, digits_mlp, omniglot_cnn
from kenyon.random import Noise

HEADS = torch.zeros(1, dtype=torch.long)


def small_cnn() -> nn.Module:
    """Strides, no padding, a layer without bias, dropout behind maps and vectors."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(24, 7),
        nn.Tanh(),
        nn.Dropout(0.5),
    )


def cnn_net(counts: tuple[int, ...] = (3, 3)) -> Net:
    return Net(small_cnn(), (2, 12, 12), counts, active_column=True, dtype=torch.float64)


def mlp_net(width: int = 5, counts: tuple[int, ...] = (2, 2)) -> Net:
    return Net(digits_mlp(width), (1, 8, 8), counts, active_column=True, dtype=torch.float64)


def moved(net: Net, seeds: tuple[int, ...] = (3,)) -> Tensor:
    """Rows in which every part has weights of its own."""
    rows = net.initial(seeds).double()
    return rows + 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def images(net: Net, batch: int = 4, runs: int | None = None) -> Tensor:
    shape = (2, 12, 12) if isinstance(net.backbone[0], nn.Conv2d) else (1, 8, 8)  # type: ignore[index]
    lead = (batch,) if runs is None else (runs, batch)
    return torch.randn(*lead, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def by_hand_cnn(p: dict[str, Tensor], x: Tensor, keep: tuple[Tensor | float, Tensor | float] = (1.0, 1.0)) -> Tensor:
    """W h + b + a * U relu(V h' + c), layer after layer; h' is the knowledge base's input to the layer."""
    p = {n: v[0] if not n.startswith(("head", "active.head")) else v for n, v in p.items()}

    def first(column: str) -> Tensor:
        return F.relu(F.conv2d(x, p[f"{column}.0.weight"], p[f"{column}.0.bias"], stride=2, padding=1))

    h, base = first("active"), first("seen")
    inner = F.relu(F.conv2d(base, p["lateral.2.V"], p["lateral.2.c"]))
    lateral = torch.einsum("oi,bihw->bohw", p["lateral.2.U"], inner) * p["lateral.2.a"].view(1, -1, 1, 1)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["active.2.weight"]) + lateral), 2) * keep[0]
    base = F.max_pool2d(F.relu(F.conv2d(base, p["seen.2.weight"])), 2)
    h, base = h.flatten(1), base.flatten(1)
    inner = F.relu(base @ p["lateral.7.V"].T + p["lateral.7.c"])
    h = h @ p["active.7.weight"].T + p["active.7.bias"] + p["lateral.7.a"] * (inner @ p["lateral.7.U"].T)
    return (torch.tanh(h) * keep[1]) @ p["active.head.weight"].T + p["active.head.bias"]


def by_hand_mlp(p: dict[str, Tensor], x: Tensor) -> Tensor:
    p = {n: v[0] if not n.startswith(("head", "active.head")) else v for n, v in p.items()}
    h, base = (F.relu(x.flatten(1) @ p[f"{c}.dense1.weight"].T + p[f"{c}.dense1.bias"]) for c in ("active", "seen"))
    inner = F.relu(base @ p["lateral.dense2.V"].T + p["lateral.dense2.c"])
    lateral = p["lateral.dense2.a"] * (inner @ p["lateral.dense2.U"].T)
    h = F.relu(h @ p["active.dense2.weight"].T + p["active.dense2.bias"] + lateral)
    return h @ p["active.head.weight"].T + p["active.head.bias"]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_the_column_follows_its_equation(kind: str) -> None:
    net, hand = (cnn_net(), by_hand_cnn) if kind == "cnn" else (mlp_net(), by_hand_mlp)
    row, x = moved(net)[0].requires_grad_(), images(net, 33)  # enough samples for several parts
    ours, theirs = net.active_logits(row, x, HEADS), hand(net.layout.views(row), x)
    torch.testing.assert_close(ours, theirs)
    slope = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mine, other = (torch.autograd.grad(out, row, slope)[0] for out in (ours, theirs))
    for name in net.layout.segments:
        a, b = (net.layout.view(g, name) for g in (mine, other))
        if name.startswith(("active", "lateral")):
            torch.testing.assert_close(a, b)
            assert b.any(), name
        else:  # the knowledge base, which is held still
            assert not a.any(), name


def test_dropout_is_that_of_the_network() -> None:
    """Behind maps (B, H, W, channels padded to 16), behind vectors (B, units padded to 16)."""
    net, B = cnn_net(), 3
    noise = torch.randint(0, 256, (net.executor.noise_size(B),), generator=torch.Generator().manual_seed(4)).to(
        torch.uint8
    )
    maps, vectors = noise[: B * 2 * 2 * 16].view(B, 2, 2, 16), noise[B * 2 * 2 * 16 :].view(B, 16)
    keep = (
        (maps[..., :6] >= 64).permute(0, 3, 1, 2).double() * 256 / 192,
        (vectors[:, :7] >= 128).double() * 2,
    )
    row, x = moved(net)[0], images(net, B)
    ours = net.active_logits(row, x, HEADS, noise)
    torch.testing.assert_close(ours, by_hand_cnn(net.layout.views(row), x, keep))
    assert not torch.allclose(ours, net.active_logits(row, x, HEADS))


@pytest.mark.parametrize("noisy", [False, True])
def test_all_runs_at_once_equal_run_by_run(noisy: bool) -> None:
    net, R, B = mlp_net(), 3, 4
    rows, x = moved(net, (0, 1, 2)), images(net, B, runs=R)
    noise = Noise.at(torch.tensor([5, 6, 7]), torch.zeros(1, dtype=torch.long)) if noisy else None
    drawn = noise.bytes(net.executor.noise_size(B)) if noise is not None else [None] * R
    together = net.active_logits(rows, x, HEADS, noise)
    for run in range(R):
        torch.testing.assert_close(together[run], net.active_logits(rows[run], x[run], HEADS, drawn[run]))


# ---------------------------------------------------------------------- as on a GPU

KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "small": (small_cnn, (2, 12, 12)),
    "cifar": (lambda: cifar_cnn(5), (3, 32, 32)),
    "omniglot": (lambda: omniglot_cnn(5), (1, 28, 28)),
    "alexnet": (lambda: alexnet(2), (3, 64, 64)),
    "digits": (lambda: digits_mlp(5), (1, 8, 8)),
}


def kind_net(kind: str, dtype: torch.dtype = torch.float64) -> Net:
    build, shape = KINDS[kind]
    return Net(build(), shape, (3, 3), active_column=True, dtype=dtype)


def aligned(net: Net, shape: tuple[int, int, int]) -> Aligned:
    found = Aligned(net.backbone, shape)  # type: ignore[arg-type]
    assert found.known
    return found


def both_ways(net: Net, shape: tuple[int, int, int], noisy: bool, beside: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """What a GPU would compute of all runs at once, and one run after another: logits and the gradient of rows."""
    R, B, wide = 3, 5, net.dtype
    assert net.columns is not None
    x = torch.randn(R, B, *shape, generator=torch.Generator().manual_seed(2), dtype=wide)
    rows = moved(net, tuple(range(R))).to(wide)
    noise = Noise.at(torch.tensor([5, 6, 7]), torch.zeros(1, dtype=torch.long)) if noisy else None
    drawn = noise.bytes(net.columns.noise_size(B)) if noise is not None else [None] * R
    alone = []
    for run in range(R):
        leaf = rows[run].clone().requires_grad_()
        out = net.active_logits(leaf, x[run], HEADS, drawn[run])
        alone.append((out, torch.autograd.grad(out.sin().sum(), leaf)[0]))
    net.columns.aligned = aligned(net, shape)
    leaf = rows.clone().requires_grad_()
    seen = torch.cat([x, x.new_zeros(R, B, beside, *shape[1:])], dim=2)  # with empty channels for alignment
    together = net.active_logits(leaf, seen, HEADS, noise)
    yield together, torch.stack([out for out, _ in alone])
    yield torch.autograd.grad(together.sin().sum(), leaf)[0], torch.stack([slope for _, slope in alone])
    with torch.no_grad():
        yield net.active_logits(rows, seen, HEADS, noise), together
    yield net.active_logits(rows[1], seen[1], HEADS, drawn[1]), together[1]


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_computes_the_same(kind: str, noisy: bool) -> None:
    """Aligned memory, all runs at once: values and gradients."""
    beside = 0 if kind == "digits" else int(noisy)
    for ours, expected in both_ways(kind_net(kind), KINDS[kind][1], noisy, beside):
        torch.testing.assert_close(ours, expected)


@pytest.mark.kernels
@pytest.mark.parametrize("noisy", [False, True])
def test_with_kernels_behind_convolutions(noisy: bool) -> None:
    """On a CPU only in Triton's interpreter: bias, ReLU, pooling and dropout in one pass."""
    if torch.cuda.is_available() or not fused.available(
        torch.zeros(1, 16, 2, 2).contiguous(memory_format=torch.channels_last)
    ):
        pytest.skip("needs Triton's interpreter in a process of its own")
    for kind in ("omniglot", "cifar"):
        for ours, expected in both_ways(kind_net(kind, torch.float32), KINDS[kind][1], noisy):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_backbones_that_cannot_be_aligned_are_known() -> None:
    for layers in ((nn.Conv2d(1, 2, 3), nn.Linear(6, 4), nn.Flatten()), (nn.Linear(8, 4), nn.Flatten())):
        assert not Aligned(nn.Sequential(*layers), (1, 8, 8)).known


def test_classes_that_a_task_does_not_have_are_never_predicted() -> None:
    net = cnn_net((2, 4))
    row, x = net.initial([0])[0].double(), images(net)
    assert (net.active_logits(row, x, torch.tensor([0]))[:, 2:] == -1e9).all()
    assert (net.active_logits(row, x, torch.tensor([1])) > -1e3).all()
    head = net.layout.view(row, "active.head.weight")
    assert head[:2].all() and not head[2:].any()


# ---------------------------------------------------------------------- what the rows hold


@pytest.mark.parametrize("width", [2, 5])
def test_the_network_beside_the_column_is_the_network(width: int) -> None:
    """The same protected weights and heads, from the same draws, with as many parameters."""
    alone, both = (Net(cifar_cnn(width), (3, 32, 32), (5, 5), active_column=c) for c in (False, True))
    assert both.layout.protected == alone.layout.protected and both.parameter_count == alone.parameter_count
    assert both.columns is not None and both.layout.size == alone.layout.size + both.columns.size
    a, b = alone.initial([4, 9]), both.initial([4, 9])
    assert torch.equal(a, b[:, : alone.layout.size])
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(alone.forward(a[0], x, HEADS).logits, both.forward(b[0], x, HEADS).logits)


def test_a_column_begins_a_task() -> None:
    """Drawn from seed and task alone, with the knowledge base as it stands; the head is new in any case."""
    net, seeds = cnn_net(), (3, 8)
    first = net.initial(seeds).double()
    rows = first + 1.0
    assert net.columns is not None
    net.columns.begin(rows, seeds, 0, 3)
    names = {part: [n for n in net.layout.segments if n.startswith(part)] for part in ("active", "lateral", "seen")}
    for name in (*names["active"], *names["lateral"]):
        mine = net.layout.view(rows, name)
        assert torch.equal(mine, net.layout.view(first, name)), name
        assert not torch.equal(mine[0], mine[1])
    for name in names["seen"]:
        assert torch.equal(net.layout.view(rows, name), net.layout.view(first, name.removeprefix("seen.")) + 1.0)
    later = rows.clone()
    net.columns.begin(later, seeds, 1, 3)
    for name in (*names["active"], *names["lateral"]):
        assert not torch.equal(net.layout.view(later, name), net.layout.view(rows, name)), name
    kept = later.clone()
    net.columns.begin(kept, seeds, 2, 3, anew=False)
    changed = [n for n in net.layout.segments if not torch.equal(*(net.layout.view(r, n) for r in (kept, later)))]
    assert changed == ["active.head.weight", "active.head.bias"]
    scales = torch.cat([net.layout.view(rows, n).flatten() for n in net.layout.segments if n.endswith(".a")])
    assert (scales >= 0).all() and (scales < 0.1).all() and scales.max() > 0.05


def test_what_a_column_cannot_stand_beside() -> None:
    with pytest.raises(ConfigError, match="layers it knows"):
        Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4)), (1, 8, 8), (2,), active_column=True)
    for options in ({"learners": 2}, {"gate": True}):
        with pytest.raises(ConfigError, match="one learner"):
            Net(digits_mlp(4), (1, 8, 8), (2,), active_column=True, **options)  # type: ignore[arg-type]
