"""Networks of the library, and the same networks written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kenyon.backends.cpu.looped import Looped
from kenyon.backends.torch.module import General
from kenyon.backends.triton.stacked import Stacked
from kenyon.models import Net, cifar_cnn, digits_mlp
from tests.references import CifarLearner, DigitsLearner, Hand

SHAPES = {"cifar": (3, 32, 32), "digits": (1, 8, 8)}
BUILD: dict[str, Callable[[int], nn.Module]] = {"cifar": cifar_cnn, "digits": digits_mlp}
LEARNER = {"cifar": CifarLearner, "digits": DigitsLearner}
CASES = [("cifar", 3, 1), ("cifar", 1, 2), ("cifar", 2, 3), ("cifar", 3, 5)]
CASES += [("digits", 7, 1), ("digits", 16, 2), ("digits", 5, 3), ("digits", 3, 5)]


def make(kind: str, width: int, K: int, counts: tuple[int, ...] = (4, 4), **options: object) -> tuple[Net, Hand]:
    net = Net(BUILD[kind](width), SHAPES[kind], counts, learners=K, dtype=torch.float64, **options)  # type: ignore[arg-type]
    return net, Hand(LEARNER[kind](width), K, counts, gate=bool(options.get("gate", False)))


def executions(net: Net, kind: str) -> dict[str, object]:
    shape, K = SHAPES[kind], net.learners
    assert isinstance(net.backbone, nn.Sequential)
    return {
        "looped": Looped(net.backbone, shape, K),
        "stacked": Stacked(net.backbone, shape, K),
        "general": General(net.backbone, K),
    }


def images(kind: str, batch: int = 3) -> Tensor:
    return torch.randn(batch, *SHAPES[kind], generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def head(*tasks: int) -> Tensor:
    return torch.tensor(tasks)


def gradient(row: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = row.clone().requires_grad_()
    return torch.autograd.grad(value(leaf), leaf)[0]


def mixed(*outputs: Tensor) -> Tensor:
    """A scalar that depends on every entry in its own way."""
    return sum(((torch.arange(o.numel()).view_as(o) % 7 - 2.5) * o + 0.1 * o.square()).sum() for o in outputs)


def keep_factors(net: Net, noise: Tensor, batch: int, kind: str, width: int) -> list[list[Tensor]]:
    """Masks by hand: a site's bytes are (B, H, W, K C rounded up to 16); 64 of 256 byte values drop a quarter."""
    if kind == "cifar":
        sites = [(16, 16, width, 64), (8, 8, 2 * width, 64), (4, 4, 4 * width, 64), (1, 1, 256, 128)]
    else:
        sites = [(1, 1, width, 64), (1, 1, 128, 128)]
    K, start = net.learners, 0
    keep: list[list[Tensor]] = [[] for _ in range(K)]
    for h, w, channels, dropped in sites:
        wide = (K * channels + 15) // 16 * 16
        block = noise[start : start + batch * h * w * wide].view(batch, h, w, wide)
        start += block.numel()
        for k in range(K):
            mine = (block[..., k * channels : (k + 1) * channels] >= dropped).permute(0, 3, 1, 2).double()
            keep[k].append((mine * 256 / (256 - dropped)) if h > 1 else (mine.flatten(1) * 256 / (256 - dropped)))
    assert start == len(noise)
    return keep
