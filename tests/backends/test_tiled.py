"""All runs together by kernels against one run after another: the same network, the same dropout."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.cuda.compiler import CompileError
from kenyon.backends.cuda.interface import Kernel
from kenyon.backends.cuda.tiled import Tiled, plan_stages
from kenyon.backends.layers import ConvolutionStep, Params, PlannedLayers, Step
from kenyon.backends.triton.columns import Aligned
from kenyon.backends.triton.pooling import Maps
from kenyon.backends.triton.stacked import Stacked
from kenyon.errors import ConfigError
from kenyon.models import Net, Pictures, cifar_cnn, omniglot_cnn
from kenyon.random import Noise
from tests.backends import emulation

GAIN, SHIFT = (0.01, 0.012, 0.013), (-1.0, -1.1, -1.2)
SIDE = 16


def backbone(width: int, pooled: bool) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, width, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        drop2=nn.Dropout(0.25),
        conv3=nn.Conv2d(width, 2 * width, 3, padding=1),
        relu3=nn.ReLU(),
    )
    if pooled:
        layers["pool3"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(2 * width * (16 if pooled else 64), 12)
    layers["relu4"] = nn.ReLU()
    layers["drop4"] = nn.Dropout(0.5)
    return nn.Sequential(layers)


class Rounded(Stacked):
    """In float32, but sums are rounded where the kernels do it: the same units open, and the same win."""

    def _convolution(
        self,
        step: ConvolutionStep,
        params: Params,
        maps: Maps,
        drawn: Tensor | None,
        following: Step | None = None,
    ) -> Maps:
        maps = super()._convolution(ConvolutionStep(step.name, step.layer), params, maps, None).join()
        y = _rounded(maps.data)
        y = y.relu() if step.relu else y
        y = nn.functional.max_pool2d(y, 2) if step.pool else y
        if step.site is not None and drawn is not None:
            y = _rounded(y * (drawn >= step.site.threshold).movedim(-1, 1) * step.site.scale)
        return replace(maps, data=y)


def _rounded(x: Tensor) -> Tensor:
    return x + (x.bfloat16().float() - x).detach()


def tiled_net(
    layers: nn.Module, shape: tuple[int, int, int], learners: int, counts: list[int], column: bool = False
) -> Net:
    net = Net(layers, shape, counts, learners=learners, gate=learners > 1, active_column=column)
    steps = PlannedLayers(net.backbone, shape, learners, folds=True).steps  # type: ignore[arg-type]
    stages = plan_stages(steps, shape, net.layout, learners)
    assert stages is not None
    net.executor = Tiled(net.backbone, shape, learners, stages, torch.device("cpu"), emulation.build)  # type: ignore
    return net


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("learners", "width", "pooled", "counts", "joint"),
    [(3, 9, True, [5, 5], False), (1, 16, False, [4, 5], False), (2, 8, True, [5, 3], True)],
)
def test_all_runs_at_once_equal_one_after_another(
    learners: int, width: int, pooled: bool, counts: list[int], joint: bool
) -> None:
    shape = (3, SIDE, SIDE)
    check_against_one_after_another(tiled_net(backbone(width, pooled), shape, learners, counts), shape, joint)


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("learners", "width", "counts", "joint"),
    [
        (3, 6, [6, 4], False),
        (2, 9, [5, 3], True),
        (2, 28, [4, 3], False),
        pytest.param(1, 16, [4, 6], False, marks=pytest.mark.torture),
    ],
)
def test_without_padding_in_a_frame(learners: int, width: int, counts: list[int], joint: bool) -> None:
    """Drawings of one colour; with several learners there are convolutions without ReLU, with one no dense layer."""
    net = tiled_net(omniglot_cnn(width, learners), (1, 28, 28), learners, counts)
    assert isinstance(net.executor, Tiled) and net.executor.frame is not None and net.executor.frame.side == 32
    assert net.executor.independent == (learners if width == 28 else 1)
    check_against_one_after_another(net, (1, 28, 28), joint)


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
def test_learners_apart_do_not_feel_other_runs() -> None:
    """To the last bit, where numbers are to be steady: as many blocks of threads share a run's sums."""
    net = tiled_net(omniglot_cnn(28, 2), (1, 28, 28), 2, [4, 3])
    g = torch.Generator().manual_seed(2)
    theta, heads = net.initial([0, 1]), torch.tensor([0])
    pool = torch.randint(0, 256, (5, 32, 32, 4), generator=g, dtype=torch.uint8)
    index = torch.randint(0, 5, (2, 2), generator=g)

    def gradient(runs: slice) -> Tensor:
        rows, places = theta[runs].clone().requires_grad_(), index[runs].contiguous()
        pictures = Pictures(torch.tensor([pool.data_ptr()] * len(rows)), places, GAIN[:1], SHIFT[:1])
        return torch.autograd.grad(_loss(net.forward(rows, pictures, heads).logits), rows)[0]

    torch.use_deterministic_algorithms(True)
    try:
        both = gradient(slice(2))
        assert torch.equal(gradient(slice(1)), both[:1]) and torch.equal(gradient(slice(1, 2)), both[1:])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("learners", "width"), [(1, 64), (2, 28)])
def test_what_no_tile_covers_has_no_effect(learners: int, width: int) -> None:
    """With fresh memory full of nan and of codes that do not exist, all numbers are as they should be."""
    net = tiled_net(omniglot_cnn(width, learners), (1, 28, 28), learners, [4, 3])
    assert isinstance(net.executor, Tiled)
    assert any(s.tiling.tiles.wide * s.tiling.tiles.across < s.layer.map for s in net.executor.stages)
    torch.use_deterministic_algorithms(True)  # PyTorch then fills what it hands out
    try:
        assert torch.empty(3).isnan().all()
        check_against_one_after_another(net, (1, 28, 28), joint=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_kernels_that_do_not_compile_say_what_to_do() -> None:
    net = tiled_net(backbone(9, True), (3, SIDE, SIDE), 2, [5, 5])
    assert isinstance(net.executor, Tiled)

    def refuses(wanted: object) -> list[Kernel]:
        raise CompileError("convolve.cu(118): error: excessive recursion\n  each<...>")

    net.executor.build = refuses
    nothing = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"\(convolve.cu\(118\): error: excessive recursion\).*precision=float32"):
        net.forward(net.initial([0]), Pictures(nothing[0, :1], nothing, GAIN, SHIFT), torch.tensor([0]))


def check_against_one_after_another(net: Net, shape: tuple[int, int, int], joint: bool) -> None:
    R, B = 2, 3
    frame, (channels, side, _) = net.executor.frame, shape
    assert net.together and frame is not None
    g = torch.Generator().manual_seed(1)
    theta = net.initial([0, 1]).bfloat16().float()  # so that both see the same weights
    # Whatever lies around the images and in the bytes of other colours.
    pools = [torch.randint(0, 256, (6, frame.side, frame.side, 4), generator=g, dtype=torch.uint8) for _ in range(R)]
    inside = slice(frame.offset, frame.offset + side)
    gain, shift = GAIN[:channels], SHIFT[:channels]
    index = torch.randint(0, 6, (R, B), generator=g)
    pictures = Pictures(torch.tensor([p.data_ptr() for p in pools]), index, gain, shift)
    noise = Noise.at(torch.tensor([5, 77]), torch.tensor([3]))
    heads = torch.tensor([0, 1]) if joint else torch.tensor([1])
    member = torch.randint(0, 2, (R, B), generator=g) if joint else None

    leaf = theta.clone().requires_grad_()
    trained = net.forward(leaf, pictures, heads, member, noise=noise, own=True)
    tested = net.forward(theta, pictures, heads, member, own=True)
    gradient = torch.autograd.grad(_loss(trained.logits) + _loss(trained.own_logits), leaf)[0]

    net.executor = Rounded(net.backbone, shape, net.learners)  # type: ignore[arg-type]
    for r in range(R):
        x = pools[r][index[r]][:, inside, inside, :channels] * torch.tensor(gain) + torch.tensor(shift)
        x = x.bfloat16().float().permute(0, 3, 1, 2)
        mine = None if member is None else member[r]
        row = theta[r].clone().requires_grad_()
        drawn = noise.bytes(net.executor.noise_size(B))[r]
        for ours, bytes_ in ((trained, drawn), (tested, None)):
            plain = net.forward(row, x, heads, mine, noise=bytes_, own=True)
            assert _distance(ours.logits[r], plain.logits) < 0.01
            assert ours.own_logits is not None and plain.own_logits is not None
            assert _distance(ours.own_logits[r], plain.own_logits) < 0.01
            if bytes_ is not None:
                expected = torch.autograd.grad(_loss(plain.logits) + _loss(plain.own_logits), row)[0]
        for segment in net.layout.segments.values():
            a, b = gradient[r, segment.start : segment.stop], expected[segment.start : segment.stop]
            assert _distance(a, b) < 0.03, segment.name


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("framed", [False, True])
def test_an_active_column_sees_what_the_kernels_give(framed: bool) -> None:
    """Behind every convolution, of the copy of the network that its row keeps; and without dropout."""
    shape = (1, 28, 28) if framed else (3, SIDE, SIDE)
    net = tiled_net(omniglot_cnn(16) if framed else backbone(16, False), shape, 1, [4, 6], column=True)
    columns, frame, R, B = net.columns, net.executor.frame, 2, 3
    assert columns is not None and frame is not None
    columns.aligned = Aligned(net.backbone, shape)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(1)
    theta = (net.initial([0, 1]) + 0.01 * torch.randn(R, net.layout.size, generator=g)).bfloat16().float()
    pool = torch.randint(0, 256, (6, frame.side, frame.side, 4), generator=g, dtype=torch.uint8)
    inside = slice(frame.offset, frame.offset + shape[1])
    gain, shift = GAIN[: shape[0]], SHIFT[: shape[0]]
    index = torch.randint(0, 6, (R, B), generator=g)
    x = pool[index][..., inside, inside, : shape[0]] * torch.tensor(gain) + torch.tensor(shift)
    x = x.movedim(-1, 2)
    pictures = Pictures(torch.tensor([pool.data_ptr()] * R), index, gain, shift, lambda: x)
    noise, head = Noise.at(torch.tensor([5, 77]), torch.tensor([3])), torch.tensor([0])
    by_kernels, plainly = (net.active_logits(theta, images, head, noise) for images in (pictures, x))
    assert (by_kernels[..., 4:] == -1e9).all()  # the first task has four classes
    assert 0 < _distance(by_kernels[..., :4], plainly[..., :4]) < 0.02
    assert isinstance(net.executor, Tiled)
    maps = net.executor.maps(theta[:, columns.first_seen :], pictures)
    for run in range(R):
        views = net.layout.views(theta[run])
        weights = {name: views[f"seen.{name}"] for name in net.backbone_names}
        z = x[run]
        for (name, layer), found in zip(_by_layer(net.backbone), maps, strict=True):
            w, b = weights[f"{name}.weight"][0], weights[f"{name}.bias"][0]
            z = nn.functional.conv2d(z.bfloat16().float(), w, b, padding=layer[0].padding)
            for behind in layer[1:]:
                z = behind(z)
            assert _distance(found[run, ..., : z.shape[1]].float().movedim(-1, 1), z) < 0.01, name


def _by_layer(layers: nn.Module) -> list[tuple[str, list[nn.Module]]]:
    """Convolutions, each with the ReLU and the pooling behind it."""
    found: list[tuple[str, list[nn.Module]]] = []
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Flatten):
            break
        if isinstance(layer, nn.Conv2d):
            found.append((name, [layer]))
        elif not isinstance(layer, nn.Dropout):
            found[-1][1].append(layer)
    return found


def test_only_networks_that_the_kernels_know() -> None:
    def stages(layers: nn.Sequential, shape: tuple[int, int, int] = (3, 32, 32)) -> object:
        net = Net(layers, shape, [5])
        steps = PlannedLayers(net.backbone, shape, 1, folds=True).steps  # type: ignore[arg-type]
        return plan_stages(steps, shape, net.layout, 1)

    network = cifar_cnn(32, 1)
    assert isinstance(network, nn.Sequential)
    assert stages(network) is not None
    end = (nn.Flatten(), nn.Linear(32 * 32 * 32, 8))
    assert stages(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), *end)) is not None
    assert stages(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), *end)) is None
    assert stages(nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), *end)) is None
    assert stages(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU(), *end)) is None
    odd = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 8))
    assert stages(odd, (3, 30, 30)) is None
    pooled = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16 * 16, 8))
    assert stages(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *pooled)) is not None
    assert stages(nn.Sequential(nn.Conv2d(2, 32, 3, padding=1), nn.ReLU(), *end), (2, 32, 32)) is None
    for learners in (1, 5):
        assert stages(omniglot_cnn(28, learners), (1, 28, 28)) is not None  # type: ignore[arg-type]

    def two(first: int, second: int, *more: nn.Module) -> nn.Sequential:
        one, other = nn.Conv2d(3, 32, 3, padding=first), nn.Conv2d(32, 32, 3, padding=second)
        return nn.Sequential(one, nn.ReLU(), other, nn.ReLU(), nn.MaxPool2d(2), *more, nn.Flatten())

    assert stages(two(0, 0)) is not None
    assert stages(two(0, 1)) is None
    assert stages(two(1, 1, nn.Dropout(0.5))) is not None
    assert stages(two(0, 0, nn.Dropout(0.5))) is None  # dropout is drawn for whole maps
    small = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 24 * 24, 8))
    assert stages(small, (3, 24, 24)) is None


def _loss(logits: Tensor | None) -> Tensor:
    assert logits is not None
    return logits.where(logits > -1e8, 0.0).sin().sum()


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm().detach() / b.norm().detach().clamp(min=1e-9))
