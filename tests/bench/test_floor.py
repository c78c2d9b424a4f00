"""Counts of operations and bytes against numbers worked out by hand."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from kenyon.bench.device import Count, Work, floor_seconds, measure_ceilings
from kenyon.models import cifar_cnn


def tiny(width: int = 4) -> Work:
    """Two learners on one-channel images of 4x4.

    conv   16 inputs, 2 x 16 outputs of 9 products each = 288, 18 + 2 parameters; pooled to 8 numbers
    dense   8 inputs, 3 outputs of 8 products each = 24, 24 + 3 parameters
    head    3 features, 5 classes: 15 products, 15 + 5 parameters
    """
    backbone = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 2, 3, padding=1),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense=nn.Linear(8, 3),
            act=nn.ReLU(),
        )
    )
    return Work.of(backbone, (1, 4, 4), classes=5, learners=2, width=width)


def test_what_is_there() -> None:
    work = tiny()
    assert [(x.inputs, x.products, x.parameters) for x in work.layers] == [(16, 288, 20), (8, 24, 27)]
    assert (work.features, work.protected, work.head) == (3, 94, 20)


def test_a_training_step() -> None:
    # Products a sample: 2 x 288, 2 x 24, 15. Three times over, the convolution's but twice; two operations each.
    operations = 2 * (2 * 576 + 3 * 48 + 3 * 15)
    # Numbers a sample and learner. Forwards: conv writes 8; dense reads 8, writes 3; the head reads 3.
    # Backwards: the head reads and writes 3; dense reads 3 and 8, writes 8; conv reads 8. Images: 16 bytes, twice.
    numbers = 8 + 8 + 3 + 3 + 3 + 3 + 3 + 8 + 8 + 8
    count = tiny().training_step(10, own=False, protecting=False)
    assert count == Count(10 * operations, 10 * (32 + 2 * 4 * numbers) + 4 * 10 * (94 + 20))
    assert count == Count(26_820, 9_280)
    # With protection: importance and anchor of 94 weights. In two bytes: half the activations.
    assert tiny().training_step(10, own=False, protecting=True).bytes == 9_280 + 4 * 2 * 94
    assert tiny(2).training_step(10, own=False, protecting=False).bytes == 10 * (32 + 2 * 2 * numbers) + 4_560
    # Each learner's own prediction: the head twice instead of once.
    assert tiny().training_step(10, own=True, protecting=False).operations == 26_820 + 10 * 2 * 3 * 15


def test_importance_and_evaluation() -> None:
    # 25 images in batches of 20 and 5: activations as in training, and six passes over the learners' weights each.
    assert tiny().importance_pass(25, 20) == Count(25 * 2_682, 25 * 472 + 2 * 4 * 6 * 94)
    # Forwards alone, with each learner's own prediction.
    assert tiny().evaluation(10) == Count(10 * 2 * (576 + 48 + 30), 10 * (16 + 2 * 4 * 22) + 4 * (94 + 20))


def test_the_cifar_network() -> None:
    work = Work.of(cifar_cnn(32), (3, 32, 32), classes=5, learners=1, width=2)
    pixels = (1024, 1024, 256, 256, 64, 64)
    channels = ((3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128))
    products = [9 * p * i * o for p, (i, o) in zip(pixels, channels, strict=True)] + [2048 * 256]
    assert [layer.products for layer in work.layers] == products
    assert work.protected + 20 * work.head == 837_252


def test_the_floor_is_the_larger_of_the_two() -> None:
    assert floor_seconds(Count(100, 10), 10.0, 5.0) == (10.0, "operations")
    assert floor_seconds(Count(100, 10), 100.0, 5.0) == (2.0, "bytes")


def test_ceilings_of_this_machine() -> None:
    found = measure_ceilings(torch.device("cpu"), torch.float32, quick=True)
    assert found.bytes_per_s > 1e6 and found.operations_per_s > 1e6 and found.dtype == "float32"
    assert found.n == 6 and found.copied_mib * found.product_size > 0
