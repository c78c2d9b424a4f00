"""The memory of replay: the samples that are kept of every task, and the draws of every step.

The kept samples are a function of seed and task, the draws one of seed, epoch and step: a memory is rebuilt at any
time and never saved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.data.tasks import Split, Stream
from kenyon.methods.base import Replay
from kenyon.random import Purpose, key, random_words, shuffled
from kenyon.training.batches import Fleet, Loader

LAST = torch.iinfo(torch.int32).max + 1  # sorts behind every random word


class Memory:
    """Kept samples of all runs. W is the capacity of a task: `memory` samples of every class of the largest task."""

    def __init__(self, fleet: Fleet, replay: Replay) -> None:
        self.fleet, self.replay = fleet, replay
        counts = fleet.streams[0].class_counts
        # No class has more samples than all tasks together, whatever the runs.
        R, T, W = len(fleet), fleet.tasks, min(replay.memory, len(fleet.streams[0].pool)) * max(counts)
        self.index, self.labels = (torch.zeros(R, T, W, dtype=torch.long, device=fleet.device) for _ in range(2))
        self.sizes = torch.zeros(R, T, dtype=torch.long, device=fleet.device)
        self.filled = 0  # tasks

    def loader(self, batch: int, samples: int, task: int) -> Loader:
        """Return batches of a task with room for samples of all tasks before it."""
        if task == 0:
            return Loader(self.fleet, batch, samples, joint=False)
        self._fill(task)
        W, published = self.index.shape[2], self.replay.form == "published"
        room = task * min(self.replay.batch, W) if published else min(self.replay.batch, task * W)
        if self.fleet.streams[0].heads == "shared":
            return Loader(self.fleet, batch, samples, joint=False, memory_size=room)
        heads = torch.tensor([task, *range(task)], device=self.fleet.device)  # member 0 is the new task
        return Loader(self.fleet, batch, samples, joint=True, memory_size=room, heads=heads)

    def draw(self, loader: Loader, task: int, keys: Tensor) -> None:
        """Draw the kept samples of all steps of a pass from keys (R,), without replacement within a step."""
        if task == 0:
            return
        R, W, S = len(self.fleet), self.index.shape[2], loader.capacity
        # Samples are drawn in groups, and their losses averaged in them.
        groups = task if self.replay.form == "published" else 1
        place = torch.arange(W, device=keys.device).expand(R, task, W)
        there = (place < self.sizes[:, :task].unsqueeze(2)).view(R, 1, groups, -1).expand(R, S, groups, -1)
        words = random_words(keys, torch.zeros(1, dtype=torch.long, device=keys.device), there.numel() // R)
        drawn = first_places(
            words.to(torch.long).view_as(there).masked_fill(~there, LAST), loader.memory_size // groups
        )
        valid = there.gather(-1, drawn).float()
        weight = valid / valid.sum(-1, keepdim=True).clamp(min=1)
        member = torch.arange(1, task + 1, device=keys.device).view(1, task, 1).expand(R, task, W)
        for buffer, kept in ((loader.index, self.index), (loader.labels, self.labels), (loader.member, member)):
            values = kept[:, :task].reshape(R, 1, groups, -1).expand(R, S, groups, -1).gather(-1, drawn)
            buffer[..., loader.size :].copy_(values.mul_(valid.long()).flatten(2))
        loader.valid[..., loader.size :].copy_(valid.flatten(2))
        loader.weight[..., loader.size :].copy_(weight.flatten(2))

    def _fill(self, tasks: int) -> None:
        """Keep samples of the first tasks."""
        for task in range(self.filled, tasks):
            for run, stream in enumerate(self.fleet.streams):
                kept = kept_samples(stream, task, self.replay.memory)
                split, size = stream.tasks[task].train, len(kept)
                self.sizes[run, task] = size
                self.index[run, task, :size] = split.index[kept].to(self.fleet.device)
                self.labels[run, task, :size] = split.labels[kept].to(self.fleet.device)
        self.filled = max(self.filled, tasks)


def first_places(lots: Tensor, count: int) -> Tensor:
    """Return the positions (..., count) of the smallest lots (..., n) in ascending order; of equal ones the first
    comes first. A step draws few of the many kept samples: sorting all of them would take most of its time.
    """
    n = lots.shape[-1]
    numbered = lots * n + torch.arange(n, device=lots.device)
    return numbered.topk(count, dim=-1, largest=False).indices


def kept_samples(stream: Stream, task: int, memory: int) -> Tensor:
    """Return the kept training samples of a task, as positions in its split: `memory` of every class, or all it has,
    in their order. Of samples that were kept, the same are kept again.
    """
    split: Split = stream.tasks[task].train
    kept = []
    for label in range(len(stream.tasks[task].classes)):
        members = torch.nonzero(split.labels == label).flatten()
        seed_key = torch.tensor([key(stream.seed, Purpose.MEMORY, task, label)])
        order = shuffled(seed_key, torch.tensor([len(members)]), len(members))[0]
        kept.append(members[order[:memory]] if len(members) > memory else members)
    return torch.cat(kept)
