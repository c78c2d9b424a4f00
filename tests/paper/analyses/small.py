"""Small models to analyse: an untrained convolutional network on random images, and copies in plain PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kenyon.data import Source, Stream
from kenyon.data.sources import Group
from kenyon.models import Net
from kenyon.paper.analyses import Model

CLASSES = (2, 3)  # of the two tasks: heads of different sizes


def stream(seed: int = 0, each: int = 6, side: int = 6) -> Stream:
    """Two tasks of two and three classes; images of two colours and 6x6 pixels."""
    count = sum(CLASSES)
    g = torch.Generator().manual_seed(5)
    labels = torch.arange(count).repeat_interleave(2 * each)
    images = torch.randint(0, 256, (len(labels), 2, side, side), generator=g, dtype=torch.uint8)
    return Source(
        name="made-up",
        images=images,
        labels=labels,
        test=torch.arange(len(labels)) % 2 == 1,
        class_names=tuple("abcde"[:count]),
        groups=(Group("first", (0, 1), fixed=True), Group("second", (2, 3, 4), fixed=True)),
        mean=(0.4, 0.5),
        std=(0.2, 0.3),
    ).stream(seed, validation=0.0)


def backbone() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(2, 3, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(3, 4, 3, padding=1),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(36, 5),
            relu3=nn.ReLU(),
            drop3=nn.Dropout(0.5),
        )
    )


def conv_model(learners: int = 2, seed: int = 0, *, gate: bool = False) -> Model:
    met = stream(seed)
    net = Net(backbone(), met.input_shape, met.class_counts, learners=learners, gate=gate)
    return Model(net, net.initial([seed]), met)


def apart_model(members: int = 3) -> Model:
    met = stream()
    net = Net(backbone(), met.input_shape, met.class_counts)
    return Model(net, net.initial(list(range(members))), met, "apart")


def per_task_model() -> Model:
    met = stream()
    net = Net(backbone(), met.input_shape, met.class_counts)
    return Model(net, net.initial([3, 4]), met, "per task")


def images_of(model: Model, part: str, task: int) -> tuple[Tensor, Tensor]:
    """Return normalized images (N, C, H, W) and labels, by definition."""
    split = getattr(model.stream.tasks[task], part)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (model.stream.mean, model.stream.std))
    return (split.images.float() / 255 - mean) / std, split.labels


def plain_vector(model: Model, row: Tensor, k: int, x: Tensor) -> Tensor:
    """Return the vector of one learner by the PyTorch module."""
    views = model.net.layout.views(row)
    params = {name: views[name][k] for name in model.net.backbone_names}
    return functional_call(model.net.backbone.eval(), params, (x,))


def plain_head(model: Model, row: Tensor, task: int, f: Tensor) -> Tensor:
    views, count = model.net.layout.views(row), model.net.class_counts[task]
    return f @ views["head.weight"][task, :count].T + views["head.bias"][task, :count]


def plain_logits(model: Model, row: Tensor, x: Tensor, task: int) -> Tensor:
    total = sum(plain_vector(model, row, k, x) for k in range(model.net.learners))
    assert isinstance(total, Tensor)
    return plain_head(model, row, task, total)


def permuted(model: Model, order: list[int]) -> Model:
    """Return the model with its learners in another order."""
    rows = model.rows.clone()
    for name in (*model.net.backbone_names, *(["gate"] if model.net.gate else [])):
        view = model.net.layout.view(rows, name)
        view.copy_(view[:, order].clone())
    return model.with_rows(rows)
