"""Rows of weights on a model's stream: each row is a run of a fleet, so that all are computed as in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from kenyon.nets import Net, Pictures
from kenyon.streams import Stream
from kenyon.threads import cpu_threads
from kenyon.train import Fleet
from kenyon.train.device import Lanes, Runs, on_device
from kenyon.train.evaluate import chunk_of

ROOM = 1 << 28  # numbers that the rows of one fleet may have together: 1 GiB
WHOLE = 64  # samples that are computed together at least, where all rows are
MOST = 64  # rows of a fleet: more make no device busier


def rows_at_once(numbers: int) -> int:
    """How many rows of so many numbers are computed together."""
    return max(1, min(MOST, ROOM // numbers))


class Probe:
    def __init__(self, net: Net, stream: Stream, rows: int) -> None:
        """For fleets of so many rows."""
        execute = net.execute
        self.net, self.rows = net, rows
        self.fleet = Fleet(
            [stream] * rows, net.device, execute.input_channels, frame=execute.frame, by_reference=not net.small
        )
        self.lanes = Lanes(net.device, rows, together=net.together, threads=execute.threads)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """What computing with this network needs around it."""
        with torch.no_grad(), on_device(self.net.device), cpu_threads(1 if self.net.small else None):
            yield

    def label_log_probabilities(self, theta: Tensor, part: str, task: int) -> Tensor:
        """What each row (n, P) says of the true class of every sample of a task: (n, N). As many rows as the probe
        has, or fewer."""
        labels = getattr(self.fleet.streams[0].tasks[task], part).labels.to(self.net.device)
        head = self.net.heads_of([task])
        found = torch.zeros(self.rows, len(labels), device=self.net.device)

        def see(run: Runs, some: slice, rows: Tensor, images: Tensor | Pictures) -> None:
            logits = self.net.forward(rows, images, head).logits
            mine = labels[some]
            said = logits.log_softmax(-1)[..., : len(mine), :]
            found[run, some] = said.gather(-1, mine.expand(said.shape[:-1]).unsqueeze(-1)).squeeze(-1)

        self._walk(theta, part, task, see)
        return found[: len(theta)]

    def vectors(self, theta: Tensor, part: str, task: int) -> Tensor:
        """The learners' vectors for every sample of a task, without gates: (n, K, N, F). Heads see their sum."""
        size = len(getattr(self.fleet.streams[0].tasks[task], part))
        head = self.net.heads_of([task])
        found = torch.zeros(self.rows, self.net.learners, size, self.net.features, device=self.net.device)

        def see(run: Runs, some: slice, rows: Tensor, images: Tensor | Pictures) -> None:
            seen = self.net.vectors(rows, images, head)
            found[run, :, some] = seen[..., : found[:, :, some].shape[2], :].to(found.dtype)

        self._walk(theta, part, task, see)
        return found[: len(theta)]

    def _walk(
        self, theta: Tensor, part: str, task: int, see: Callable[[Runs, slice, Tensor, Tensor | Pictures], None]
    ) -> None:
        size = len(getattr(self.fleet.streams[0].tasks[task], part))
        chunk = chunk_of(self.net.input_shape)
        samples = self.fleet.samples(part, [task], multiple=min(chunk, -(-size // WHOLE) * WHOLE))
        asked = range(len(theta))
        if self.net.together and len(theta) < self.rows:  # always as many; what the others say is not used
            theta = torch.cat([theta, theta[:1].expand(self.rows - len(theta), -1)])

        def work(run: Runs) -> None:
            for start in range(0, size, chunk):
                stop = start + chunk if isinstance(run, slice) else min(start + chunk, size)
                index = samples.index[run, start:stop].contiguous()
                see(run, slice(start, min(stop, size)), theta[run], self.fleet.images(run, index))

        with self.ready():
            self.lanes.each(asked, work)


def thinned(stream: Stream, part: str, most: int) -> Stream:
    """The stream with at most so many samples of a part of every task, evenly spread over it; 0: all."""
    if most == 0:
        return stream
    tasks = []
    for task in stream.tasks:
        split = getattr(task, part)
        if len(split) > most:
            chosen = torch.arange(most) * len(split) // most
            split = replace(split, index=split.index[chosen], labels=split.labels[chosen])
        tasks.append(replace(task, **{part: split}))
    return replace(stream, tasks=tuple(tasks))
