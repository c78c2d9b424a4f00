"""Gradients that are written where they are wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kenyon.backends.layout import Leaves
from kenyon.backends.triton.stacked import Stacked
from kenyon.models import Net

SHAPE = (2, 6, 6)


def make() -> Net:
    backbone = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)
    )
    net = Net(backbone, SHAPE, [2], learners=3)
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Stacked(net.backbone, SHAPE, 3)
    return net


def loss(net: Net, rows: Any, times: int) -> Tensor:
    images = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    return sum(
        (net.forward(rows, images + n, torch.tensor([0])).logits.sin().sum() for n in range(times)), torch.zeros(())
    )


def gradients(net: Net, row: Tensor, times: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    places = net.layout.views(torch.full_like(row, torch.nan))
    leaves = Leaves({name: part.requires_grad_() for name, part in net.layout.views(row.clone()).items()}, places)
    return torch.autograd.grad(loss(net, leaves, times), list(leaves.values())), places


def test_gradients_are_the_same_wherever_they_are_written() -> None:
    net = make()
    row = net.initial([0])[0]
    for times in (1, 2):  # used a second time, the gradients of a weight are added up
        leaf = row.clone().requires_grad_()
        whole = torch.autograd.grad(loss(net, leaf, times), leaf)[0]
        found, places = gradients(net, row, times)
        for name, one in zip(places, found, strict=True):
            torch.testing.assert_close(one, net.layout.view(whole, name))
        if times == 1:
            there = {
                name for name, one in zip(places, found, strict=True) if one.data_ptr() == places[name].data_ptr()
            }
            assert "2.weight" in there and "2.bias" not in there


def test_a_place_is_taken_once() -> None:
    part, place = torch.zeros(2), torch.zeros(2)
    leaves = Leaves({"a": part}, {"a": place})
    assert (
        leaves["a"] is part
        and leaves.take_gradient("a") is place
        and leaves.take_gradient("a") is None
        and leaves.take_gradient("b") is None
    )
