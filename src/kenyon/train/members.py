"""Runs of several networks that learn independently: each is a row of the fleet, and only tests bring them together.

The rows of run r are r * M ... r * M + M - 1. They meet the same tasks and samples, and differ in everything random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kenyon.metrics import sample_diversity
from kenyon.nets import Net
from kenyon.random import Purpose, key
from kenyon.streams.task import Stream
from kenyon.train.device import Lanes, Runs
from kenyon.train.evaluate import Evaluation, chunk_of
from kenyon.train.fleet import Fleet


def member_seed(seed: int, member: int) -> int:
    """What the draws of a member come from. The first is the network that its run would have alone."""
    return seed if member == 0 else key(seed, Purpose.MEMBER, member)


def member_rows(streams: Sequence[Stream], members: int) -> list[Stream]:
    """The stream of every row: that of its run, with the member's own seed."""
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
    """Test runs (R,) of M rows each by the mean of their members' probabilities, and each member alone."""
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
