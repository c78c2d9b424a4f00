"""Test accuracy of a fleet on every task, learners together and each alone, and how much the learners differ.

Runs of several networks that learn independently: each is a row of the fleet, and only tests bring them together.

The rows of run r are r * M ... r * M + M - 1. They meet the same tasks and samples, and differ in everything random.

Runs with a learner for every task, which nothing changes once its task is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import prod

import torch
from torch import Tensor

from kenyon.data.tasks import Stream
from kenyon.metrics import sample_diversity
from kenyon.models import Net, Outputs
from kenyon.random import Purpose, key
from kenyon.training.batches import Fleet
from kenyon.training.device import Lanes, Runs

CHUNK = 1024  # samples that are tested at once
VALUES = 1024 * 3 * 64 * 64  # elements of their images: large ones are tested in smaller chunks, for their maps
LEAST = 128  # samples of a chunk


def chunk_of(shape: Sequence[int]) -> int:
    """Return how many samples of a shape are tested at once: the same everywhere, so that sums have equal terms."""
    size = CHUNK
    while size > LEAST and size * prod(shape) > VALUES:
        size //= 2
    return size


@dataclass(frozen=True)
class Evaluation:
    """The results of a test on several tasks."""

    accuracy: Tensor  # (R, T) per cent
    own_accuracy: Tensor  # (R, T, K) of each learner alone
    cosine: Tensor  # (R, T) diversity of the learners' predictions
    euclidean: Tensor  # (R, T)

    @classmethod
    def of_means(cls, found: Tensor) -> Evaluation:
        """Make it from means over samples, (R, T, 3 + K): correct jointly, cosine, Euclidean, each learner."""
        right, alone, cosine, euclidean = found.cpu().split([1, found.shape[-1] - 3, 1, 1], dim=-1)
        return cls(100 * right.squeeze(-1), 100 * alone, cosine.squeeze(-1), euclidean.squeeze(-1))

    @classmethod
    def joined(cls, each: Sequence[Evaluation]) -> Evaluation:
        """Concatenate evaluations along the task axis."""
        names = (field.name for field in fields(cls))
        return cls(*(torch.cat([getattr(one, name) for one in each], dim=1) for name in names))


@torch.no_grad()
def evaluate(
    net: Net,
    theta: Tensor,
    fleet: Fleet,
    lanes: Lanes,
    runs: Sequence[int],
    *,
    tasks: Sequence[int] | None = None,
) -> Evaluation:
    """Test all tasks of the streams, also those not learned yet, or the given ones. Runs left out have NaN."""
    tested = range(fleet.tasks) if tasks is None else tasks
    R, T, K, chunk = len(fleet), len(tested), net.learners, chunk_of(net.input_shape)
    # In whole chunks: where all runs are computed at once, sums have equal terms whatever the runs.
    samples = fleet.samples("test", tested, multiple=chunk)
    heads = net.heads_of(tested)
    which = torch.arange(T, device=fleet.device)
    found = torch.full((R, T, 3 + K), torch.nan, device=fleet.device)

    def work(run: Runs) -> None:
        sums = torch.zeros(found[run].shape, device=fleet.device)
        count = torch.zeros(found[run].shape[:-1], device=fleet.device)
        width = samples.index.shape[1] if isinstance(run, slice) else int(samples.sizes[run])
        for start in range(0, width, chunk):
            some = slice(start, min(start + chunk, width))
            index, labels, member = (x[run, some] for x in (samples.index, samples.labels, samples.member))
            there = torch.arange(start, start + labels.shape[-1], device=fleet.device) < samples.sizes[run].unsqueeze(
                -1
            )
            images = fleet.images(run, index.contiguous())
            out = net.forward(theta[run], images, heads, None if net.shared else member, own=True)
            of_task = ((member.unsqueeze(-1) == which) & there.unsqueeze(-1)).float()  # (..., B, T)
            sums += of_task.transpose(-2, -1) @ _seen(out, labels)
            count += of_task.sum(-2)
        found[run] = sums / count.unsqueeze(-1)

    lanes.each(runs, work)
    found[[run for run in range(R) if run not in set(runs)]] = torch.nan
    return Evaluation.of_means(found)


def _seen(out: Outputs, labels: Tensor) -> Tensor:
    """Return the measures of each sample, (..., B, 3 + K)."""
    assert out.own_logits is not None
    alone = (out.own_logits.argmax(-1) == labels.unsqueeze(-2)).transpose(-2, -1)  # (..., B, K)
    right = (out.logits.argmax(-1) == labels).unsqueeze(-1)
    if out.own_logits.shape[-3] > 1:
        apart = torch.stack(sample_diversity(out.own_logits.softmax(-1)), dim=-1)
    else:
        apart = torch.full((*labels.shape, 2), torch.nan, device=labels.device)
    return torch.cat([right, alone, apart], dim=-1)


def member_seed(seed: int, member: int) -> int:
    """Return the seed of an independent network. The first network is the one that its run would have alone."""
    return seed if member == 0 else key(seed, Purpose.MEMBER, member)


def member_rows(streams: Sequence[Stream], members: int) -> list[Stream]:
    """Return the stream of every row: that of its run, with the network's own seed."""
    others = range(1, members)
    return [
        row
        for stream in streams
        for row in (stream, *(replace(stream, seed=member_seed(stream.seed, m)) for m in others))
    ]


@torch.no_grad()
def evaluate_members(
    net: Net, theta: torch.Tensor, fleet: Fleet, lanes: Lanes, rows: Sequence[int], members: int
) -> Evaluation:
    """Test runs (R,) of M rows each by the mean of their networks' probabilities, and each network alone."""
    T, M, C, chunk = fleet.tasks, members, max(net.class_counts), chunk_of(net.input_shape)
    samples = fleet.samples("test", range(T), multiple=chunk)
    width = samples.index.shape[1]
    heads, which = net.heads_of(range(T)), torch.arange(T, device=fleet.device)
    said = torch.zeros(len(fleet), width, C, device=fleet.device)  # probabilities

    def work(row: Runs) -> None:
        last = width if isinstance(row, slice) else int(samples.sizes[row])
        for start in range(0, last, chunk):
            some = slice(start, min(start + chunk, last))
            index, member = samples.index[row, some], samples.member[row, some]
            images = fleet.images(row, index.contiguous())
            out = net.forward(theta[row], images, heads, None if net.shared else member)
            said[row, some] = out.logits.softmax(-1)

    lanes.each(rows, work)
    found = torch.full((len(fleet) // M, T, 3 + M), torch.nan, device=fleet.device)
    for run in {row // M for row in rows}:
        first = run * M  # all rows of a run are tested on the same samples
        sums = torch.zeros(T, 3 + M, device=fleet.device)
        count = torch.zeros(T, 1, device=fleet.device)
        for start in range(0, width, chunk):
            some = slice(start, start + chunk)
            labels, place = samples.labels[first, some], torch.arange(start, start + chunk, device=fleet.device)
            of_task = (samples.member[first, some].unsqueeze(1) == which) & (place < samples.sizes[first]).unsqueeze(
                1
            )
            p = said[first : first + M, some]  # (M, chunk, C)
            right = (p.mean(0).argmax(-1) == labels).unsqueeze(1)
            alone = (p.argmax(-1) == labels).T
            sums += of_task.float().T @ torch.cat([right, alone, torch.stack(sample_diversity(p), dim=-1)], dim=-1)
            count += of_task.sum(0).unsqueeze(1)
        found[run] = sums / count
    return Evaluation.of_means(found)


class Discrete:
    """The learners of all tasks, a row each: before its task, a learner has first weights of its own."""

    def __init__(self, net: Net, fleet: Fleet) -> None:
        self.net, self.fleet = net, fleet
        each = (net.initial([member_seed(seed, task) for seed in fleet.seeds]) for task in range(fleet.tasks))
        self.learners = torch.stack(list(each), dim=1)  # (R, T, P)

    def tensors(self) -> dict[str, Tensor]:
        return {"learners": self.learners}

    def begin(self, theta: Tensor, task: int) -> None:
        theta.copy_(self.learners[:, task])

    def finish(self, theta: Tensor, task: int) -> None:
        self.learners[:, task].copy_(theta)

    def evaluate(self, lanes: Lanes, rows: Sequence[int]) -> Evaluation:
        """Test every task with its learner."""
        return Evaluation.joined(
            [
                evaluate(self.net, self.learners[:, task].contiguous(), self.fleet, lanes, rows, tasks=(task,))
                for task in range(self.fleet.tasks)
            ]
        )

    @property
    def parameter_count(self) -> int:
        """Trainable numbers: T backbones, and the head of each task once."""
        net = self.net
        heads = sum(net.layout.segments[name].size for name in net.head_names) if net.shared else 0  # not yet counted
        return net.parameter_count + (self.fleet.tasks - 1) * (net.layout.protected + heads)

    def weights(self, run: int) -> dict[str, Tensor]:
        """Return the weights of a run by name, with a leading task axis; of each learner only its own head."""
        views = self.net.layout.views(self.learners[run])  # (T, 1, ...) of backbones, (T, T, ...) of heads
        own = torch.arange(self.fleet.tasks, device=self.learners.device)
        head = self.net.heads_of(range(self.fleet.tasks))
        return {name: view[own, head] if name in self.net.per_head else view[:, 0] for name, view in views.items()}
