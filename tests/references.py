"""Networks, rows and data written out by hand, for tests to hold the engine against.

Nothing here calls the code it is compared with: learners are plain modules with the layers of Supplementary Table 1
(or of the digits network) written out, a row is cut by counting, and everything is in float64.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from kenyon.data import Split, Stream, Task
from kenyon.methods import Method
from kenyon.models import Net, digits_mlp
from kenyon.training import Trainer, Training

Shapes = dict[str, tuple[int, ...]]


class CifarLearner(nn.Module):
    """`keep` are the four dropout layers: factors to multiply by, none in evaluation."""

    features = 256
    drops = (0.25, 0.25, 0.25, 0.5)

    def __init__(self, nc: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, nc, 3, padding=1)
        self.conv2 = nn.Conv2d(nc, nc, 3, padding=1)
        self.conv3 = nn.Conv2d(nc, 2 * nc, 3, padding=1)
        self.conv4 = nn.Conv2d(2 * nc, 2 * nc, 3, padding=1)
        self.conv5 = nn.Conv2d(2 * nc, 4 * nc, 3, padding=1)
        self.conv6 = nn.Conv2d(4 * nc, 4 * nc, 3, padding=1)
        self.dense1 = nn.Linear(64 * nc, 256)

    def forward(self, x: Tensor, keep: Sequence[Tensor | float] = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.max_pool2d(x, 2) * keep[0]
        x = F.relu(self.conv4(F.relu(self.conv3(x))))
        x = F.max_pool2d(x, 2) * keep[1]
        x = F.relu(self.conv6(F.relu(self.conv5(x))))
        x = F.max_pool2d(x, 2) * keep[2]
        return F.relu(self.dense1(x.reshape(len(x), -1))) * keep[3]


class DigitsLearner(nn.Module):
    features = 128
    drops = (0.25, 0.5)

    def __init__(self, width: int, smooth: bool = False) -> None:
        super().__init__()
        self.dense1 = nn.Linear(64, width)
        self.dense2 = nn.Linear(width, 128)
        self.act = torch.tanh if smooth else torch.relu

    def forward(self, x: Tensor, keep: Sequence[Tensor | float] = (1.0, 1.0)) -> Tensor:
        return self.act(self.dense2(self.act(self.dense1(x.reshape(len(x), -1))) * keep[0])) * keep[1]


class Hand:
    """K learners and the heads of a run, cut from its row by counting."""

    def __init__(
        self,
        learner: CifarLearner | DigitsLearner,
        learners: int,
        counts: Sequence[int],
        *,
        gate: bool = False,
        learned: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.learner, self.K, self.gate = learner.double(), learners, gate
        T, C = len(counts), max(counts)
        self.counts = counts
        self.shapes: Shapes = {n: (learners, *p.shape) for n, p in learner.named_parameters()}
        self.tensors = tuple(self.shapes)
        if gate:
            self.shapes["gate"] = (learners, T, learner.features)
        self.protected = sum(prod(s) for s in self.shapes.values())
        self.shapes |= {"head.weight": (T, C, learner.features), "head.bias": (T, C), **(learned or {})}

    def cut(self, row: Tensor) -> dict[str, Tensor]:
        parts, start = {}, 0
        for name, shape in self.shapes.items():
            parts[name] = row[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        assert start == len(row)
        return parts

    def features(
        self, row: Tensor, x: Tensor, task: int = 0, keep: Sequence[Sequence[Tensor]] | None = None
    ) -> Tensor:
        """(K, B, F), learner after learner; keep[k] are the dropout factors of learner k."""
        p = self.cut(row)
        out = []
        for k in range(self.K):
            args = (x.double(),) if keep is None else (x.double(), keep[k])
            f = functional_call(self.learner, {n: p[n][k] for n in self.tensors}, args)
            out.append(f * torch.sigmoid(100 * p["gate"][k, task]) if self.gate else f)
        return torch.stack(out)

    def logits(
        self, row: Tensor, x: Tensor, task: int = 0, keep: Sequence[Sequence[Tensor]] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of the learners together (B, count) and of each alone (K, B, count), only classes that are there."""
        p, f, n = self.cut(row), self.features(row, x, task, keep), self.counts[task]
        w, b = p["head.weight"][task, :n], p["head.bias"][task, :n]
        return sum(f) @ w.T + b, torch.stack([one @ w.T + b for one in f])


def hand_stream(
    sizes: Sequence[int],
    *,
    seed: int = 0,
    classes: Sequence[int] | None = None,
    side: int = 8,
    held_out: int = 6,
    noise: int = 60,
) -> Stream:
    """A stream of made-up images, sizes[t] of them for training task t. Each class has a picture of its own."""
    generator = torch.Generator().manual_seed(1000 + seed)
    counts = list(classes or [2] * len(sizes))
    parts, labels, places, start = [], [], [], 0
    for size, count in zip(sizes, counts, strict=True):
        pictures = torch.randint(0, 256, (count, 1, side, side), generator=generator)
        place = []
        for n in (size, held_out, 10):
            y = torch.arange(n) % count
            dirt = torch.randint(-noise, noise, (n, 1, side, side), generator=generator)
            parts.append((pictures[y] + dirt).clamp(0, 255).to(torch.uint8))
            labels.append(y)
            place.append(torch.arange(start, start + n))
            start += n
        places.append(place)
    pool, label = torch.cat(parts), torch.cat(labels)
    tasks = tuple(
        Task(f"task {t}", tuple(map(str, range(counts[t]))), *(Split(pool, index, label[index]) for index in place))
        for t, place in enumerate(places)
    )
    return Stream("made up", seed, tasks, (0.5,), (0.25,))


def normalised(split: Split, stream: Stream) -> Tensor:
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (stream.mean, stream.std))
    return (split.images.double() / 255 - mean) / std


def plain_mlp(width: int, smooth: bool = False) -> nn.Module:
    """The digits network without dropout; smooth without corners too, so that rounding stays rounding."""
    act = nn.Tanh if smooth else nn.ReLU
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            dense1=nn.Linear(64, width),
            relu1=act(),
            dense2=nn.Linear(width, 128),
            relu2=act(),
        )
    )


def make_trainer(
    method: Method,
    streams: Sequence[Stream],
    training: Training,
    *,
    backbone: nn.Module | None = None,
    width: int = 4,
    learners: int | None = None,
) -> Trainer:
    """A fleet of small networks on a CPU, put together from the library's parts."""
    several = learners or (3 if method.multi else 1)
    K, members = (1, several) if method.apart else (several, 1)
    module = backbone or digits_mlp(width)
    first = streams[0]
    form = (module, first.input_shape, first.class_counts)
    options: dict[str, Any] = {
        "input_dtype": first.input_dtype,
        "shared_head": first.heads == "shared",
        "learners": K,
    }
    bare = Net(*form, **options)
    learned = {name: s for p in method.penalties for name, s in p.learned(bare).items()}
    net = Net(*form, **options, learned=learned, active_column=method.active_column)
    return Trainer(net, streams, method, training, members=members)
