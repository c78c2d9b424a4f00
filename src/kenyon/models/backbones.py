"""Backbones: functions of width and number of learners that return an ordinary `nn.Module`.

A backbone maps a batch of images to features; `Net` adds the heads, and an executor computes all learners.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

Backbone = Callable[[int, int], nn.Module]  # (width, learners) -> module


def cifar_cnn(width: int, learners: int = 1) -> nn.Module:
    """Six convolutions and a dense layer for 3x32x32 images (Supplementary Table 1).

    The third pooling has padding 0, so the input of the dense layer is a 4x4 map: this gives the published parameter
    counts. The dense layer is the learner's output weight g_i.
    """
    nc = width
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, nc, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(nc, nc, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            drop2=nn.Dropout(0.25),
            conv3=nn.Conv2d(nc, 2 * nc, 3, padding=1),
            relu3=nn.ReLU(),
            conv4=nn.Conv2d(2 * nc, 2 * nc, 3, padding=1),
            relu4=nn.ReLU(),
            pool4=nn.MaxPool2d(2),
            drop4=nn.Dropout(0.25),
            conv5=nn.Conv2d(2 * nc, 4 * nc, 3, padding=1),
            relu5=nn.ReLU(),
            conv6=nn.Conv2d(4 * nc, 4 * nc, 3, padding=1),
            relu6=nn.ReLU(),
            pool6=nn.MaxPool2d(2),
            drop6=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            dense1=nn.Linear(64 * nc, 256),
            relu7=nn.ReLU(),
            drop7=nn.Dropout(0.5),
        )
    )


def omniglot_cnn(width: int, learners: int = 1) -> nn.Module:
    """Four convolutions without padding for 1x28x28 drawings (Supplementary Table 2), and no dropout.

    The features of a single network are its last map. Each of several learners has a dense layer as its output
    weight, and no ReLU after its last two convolutions, as published.
    """
    nc = width
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(1, nc, 3)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(nc, nc, 3)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("conv3", nn.Conv2d(nc, nc, 3)),
        ("conv4", nn.Conv2d(nc, nc, 3)),
        ("pool4", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
    ]
    if learners == 1:
        layers.insert(6, ("relu3", nn.ReLU()))
        layers.insert(8, ("relu4", nn.ReLU()))
    else:
        layers += [("dense1", nn.Linear(16 * nc, 16 * nc)), ("relu5", nn.ReLU())]
    return nn.Sequential(OrderedDict(layers))


def alexnet(width: int, learners: int = 1) -> nn.Module:
    """Five convolutions and dense layers for large images (Supplementary Table 3), dropout before each dense layer.

    For any size of image, the last map is averaged to 6x6. The single network has two dense layers; each of
    several learners has one, its output weight: this gives the published parameter counts.
    """
    nc = width
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, nc, 11, stride=4, padding=2)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(3, 2)),
        ("conv2", nn.Conv2d(nc, 3 * nc, 5, padding=2)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(3, 2)),
        ("conv3", nn.Conv2d(3 * nc, 6 * nc, 3, padding=1)),
        ("relu3", nn.ReLU()),
        ("conv4", nn.Conv2d(6 * nc, 4 * nc, 3, padding=1)),
        ("relu4", nn.ReLU()),
        ("conv5", nn.Conv2d(4 * nc, 4 * nc, 3, padding=1)),
        ("relu5", nn.ReLU()),
        ("pool5", nn.MaxPool2d(3, 2)),
        ("average", nn.AdaptiveAvgPool2d(6)),
        ("flatten", nn.Flatten()),
        ("drop6", nn.Dropout(0.5)),
        ("dense1", nn.Linear(144 * nc, 64 * nc)),
        ("relu6", nn.ReLU()),
    ]
    if learners == 1:
        layers += [("drop7", nn.Dropout(0.5)), ("dense2", nn.Linear(64 * nc, 64 * nc)), ("relu7", nn.ReLU())]
    return nn.Sequential(OrderedDict(layers))


def digits_mlp(width: int, learners: int = 1) -> nn.Module:
    """Two dense layers for 1x8x8 images: small enough for a laptop, and for five tasks to interfere."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            dense1=nn.Linear(64, width),
            relu1=nn.ReLU(),
            drop1=nn.Dropout(0.25),
            dense2=nn.Linear(width, 128),
            relu2=nn.ReLU(),
            drop2=nn.Dropout(0.5),
        )
    )


def digits_cnn(width: int, learners: int = 1) -> nn.Module:
    """Two convolutions and a dense layer for 1x8x8 images."""
    nc = width
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, nc, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(nc, nc, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense1=nn.Linear(16 * nc, 64),
            relu3=nn.ReLU(),
            drop3=nn.Dropout(0.5),
        )
    )


def atari_cnn(width: int, learners: int = 1) -> nn.Module:
    """Three convolutions and a dense layer for 4x84x84 frames of Atari games.

    The channels are nc, 2 nc, nc, and the dense layer maps 49 nc to 512: this gives the published parameter counts,
    which the rows of Supplementary Table 4 as printed do not. The dense layer is the learner's output weight.
    """
    nc = width
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(4, nc, 8, stride=4),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(nc, 2 * nc, 4, stride=2),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(2 * nc, nc, 3),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(49 * nc, 512),
            relu4=nn.ReLU(),
        )
    )


def small_games_mlp(width: int, learners: int = 1, *, pixels: int) -> nn.Module:
    """Two dense layers for games with few pixels, small enough for a laptop."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            dense1=nn.Linear(pixels, width),
            relu1=nn.ReLU(),
            dense2=nn.Linear(width, 64),
            relu2=nn.ReLU(),
        )
    )
