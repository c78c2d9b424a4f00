"""Networks of the library beside the same written out by hand, for their tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kenyon.nets import Net, cifar_cnn, digits_mlp
from kenyon.nets.execution import General, Looped, Stacked
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
