"""How the samples of R streams lie on a device, and how batches of them are gathered there.

    Images  uint8 with the channel last, shown as the streams' views say, scaled and normalised batch by batch
    Values  numbers or tokens of any shape, normalised once and gathered as they are

`choose_inputs` decides, once for a fleet. Every pool goes to the device once, however many streams share it.

R streams on one device, handed out in batches.

Samples go to the device once and are gathered there (see `inputs`). Batches are padded to one size and carry a 0/1
mask, so that runs whose tasks differ in size train together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.layers import Frame
from kenyon.data.tasks import Augmentation, Pool, Ragged, Split, Stream, Testing, holds_images
from kenyon.errors import ConfigError
from kenyon.models import Pictures
from kenyon.random import Noise
from kenyon.training.augmentation import augmented
from kenyon.training.device import Runs

P = TypeVar("P")


class Images:
    def __init__(
        self, streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
    ) -> None:
        """`refer`: whether images of all runs at once are given as places in their pools."""
        first = streams[0]
        self.augmentation, self.testing = first.augmentation, first.testing
        pad = (channels or first.input_shape[0]) - first.input_shape[0]
        self.pools = _each(streams, lambda stream: _laid(stream.pool, device, pad, frame))
        self.one_pool, self.by_reference = _one(self.pools), refer
        begin = 0 if frame is None else frame.offset
        self.rows, self.columns = (slice(begin, begin + side) for side in first.input_shape[1:])  # of a pool's images
        mean, std = torch.tensor(first.mean), torch.tensor(first.std)
        self.scale = F.pad(1 / (255 * std), (0, pad)).to(device)
        self.shift = F.pad(-mean / std, (0, pad)).to(device)
        addresses = [pool.data_ptr() if isinstance(pool, Tensor) else 0 for pool in self.pools]
        self.addresses = torch.tensor(addresses, device=device)
        self.gains, self.shifts = tuple((1 / (255 * std)).tolist()), tuple((-mean / std).tolist())

    def __call__(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor | Pictures:
        """One run's images at index (B,), normalised, (B, C, H, W) in channels_last memory; those of all runs at
        index (R, B) likewise, or by reference. With the `noise` of these runs they are shown as in training, without
        it as in tests.
        """
        if isinstance(run, slice) and self.by_reference and self._view(noise) is None:
            laid_out = partial(self._laid_out, run, index)
            return Pictures(self.addresses, index, self.gains, self.shifts, laid_out)
        return self._laid_out(run, index, noise)

    def repeated(self, index: Tensor, count: int) -> Pictures:
        """Images by reference at index (R * count, B), as if every run were so many, one after another."""
        return Pictures(self.addresses.repeat_interleave(count), index, self.gains, self.shifts)

    def _view(self, noise: Noise | None) -> Augmentation | Testing:
        return self.testing if noise is None else self.augmentation

    def _laid_out(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor:
        view = self._view(noise)
        if not isinstance(run, slice):
            pixels = augmented(view, self.pools[run], index, noise)
        elif self.one_pool:
            pixels = augmented(view, self.pools[0], index, noise)
        else:
            each = [None if noise is None else noise.of_runs(slice(r, r + 1)) for r in range(len(self.pools))]
            parts = zip(self.pools, index, each, strict=True)
            pixels = torch.stack([augmented(view, pool, i, mine) for pool, i, mine in parts])
        if view is None:
            pixels = pixels[..., self.rows, self.columns, :]
        return torch.addcmul(self.shift, pixels.to(torch.float32), self.scale).movedim(-1, -3)


class Values:
    augmentation: Augmentation = None

    def __init__(self, streams: Sequence[Stream], device: torch.device) -> None:
        def normalised(stream: Stream) -> Tensor:
            pool = stream.pool
            assert isinstance(pool, Tensor)
            values = pool.to(device)
            if not stream.mean:
                return values
            mean, std = (
                torch.tensor(v, device=device).view(-1, *(1,) * (pool.ndim - 2)) for v in (stream.mean, stream.std)
            )
            return (values - mean).div_(std)

        self.pools = _each(streams, normalised)
        self.one_pool = _one(self.pools)

    def __call__(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor:
        """One run's samples at index (B,), (B, *shape), or those of all runs at index (R, B)."""
        if not isinstance(run, slice):
            return self.pools[run].index_select(0, index)
        if self.one_pool:
            return self.pools[0].index_select(0, index.flatten()).unflatten(0, index.shape)
        return torch.stack([pool.index_select(0, mine) for pool, mine in zip(self.pools, index, strict=True)])


Inputs = Images | Values


def choose_inputs(
    streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
) -> Inputs:
    if holds_images(streams[0].pool):
        return Images(streams, device, channels, frame, refer)
    return Values(streams, device)


def _each(streams: Sequence[Stream], lay: Callable[[Stream], P]) -> list[P]:
    """The pool of every stream as it lies on the device, one for all streams that share it."""
    keys = [(id(stream.pool), stream.mean, stream.std) for stream in streams]
    laid = {key: lay(stream) for key, stream in dict(zip(keys, streams, strict=True)).items()}
    return [laid[key] for key in keys]


def _one(pools: Sequence[Pool]) -> bool:
    return all(pool is pools[0] for pool in pools)


def _laid(pool: Pool, device: torch.device, pad: int, frame: Frame | None) -> Pool:
    """With the channel last and so many empty channels behind it, images of equal sizes in their frame."""
    if isinstance(pool, Ragged):
        return replace(pool.to(device), pixels=F.pad(pool.pixels.to(device), (0, pad)))
    pool = pool.to(device).permute(0, 2, 3, 1)
    if not pad and frame is None:
        return pool.contiguous()
    N, H, W, C = pool.shape
    begin, more = (0, 0) if frame is None else (frame.offset, frame.side - H)
    laid = pool.new_zeros(N, H + more, W + more, C + pad)
    laid[:, begin : begin + H, begin : begin + W, :C] = pool
    return laid


@dataclass(frozen=True)
class Samples:
    """The same part (train, validation or test) of each run's tasks of one phase. N is the largest size."""

    index: Tensor  # (R, N) positions in the pool
    labels: Tensor  # (R, N)
    member: Tensor  # (R, N) which of the phase's tasks a sample belongs to
    sizes: Tensor  # (R,)
    said: Tensor | None = None  # (R, N, C) logits of a teacher, where there is one


class Fleet:
    """The data of all runs on the device: which images each run's batches have, epoch by epoch."""

    def __init__(
        self,
        streams: Sequence[Stream],
        device: torch.device,
        channels: int | None = None,
        *,
        frame: Frame | None = None,
        by_reference: bool = True,
    ) -> None:
        """`channels` pads images with empty channels up to that number, for the sake of alignment; `by_reference`:
        whether images of all runs at once are given as places in their pools, where they lie in a `frame`."""
        first = streams[0]
        for stream in streams[1:]:
            if _form(stream) != _form(first):
                raise ConfigError(
                    f"Runs of one fleet need tasks of the same shapes in the same order; those of seed {stream.seed} "
                    f"and seed {first.seed} differ. Train them apart."
                )
        self.streams, self.device = tuple(streams), device
        self.seeds = tuple(stream.seed for stream in streams)
        self.tasks = len(first.tasks)
        self.inputs = choose_inputs(streams, device, channels, frame, by_reference)
        self.augmentation = self.inputs.augmentation

    def __len__(self) -> int:
        return len(self.streams)

    def images(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor | Pictures:
        """One run's samples at index (B,) as the network sees them, (B, *shape); those of all runs at index (R, B)
        likewise, or by reference. With the `noise` of these runs they are shown as in training, without it as in
        tests.
        """
        return self.inputs(run, index, noise)

    def samples(self, part: str, tasks: Sequence[int], *, multiple: int = 1) -> Samples:
        """`part` of the given tasks (positions in the streams), for all runs, padded to a multiple."""
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for stream in self.streams:
            splits: list[Split] = [getattr(stream.tasks[t], part) for t in tasks]
            member = torch.cat([torch.full((len(s),), i) for i, s in enumerate(splits)])
            rows.append((torch.cat([s.index for s in splits]), torch.cat([s.labels for s in splits]), member))
        width = -(-max(len(row[0]) for row in rows) // multiple) * multiple

        def stack(column: int) -> Tensor:
            return torch.stack([F.pad(row[column], (0, width - len(row[column]))) for row in rows]).to(self.device)

        sizes = torch.tensor([len(row[0]) for row in rows], device=self.device)
        return Samples(stack(0), stack(1), stack(2), sizes)

    def largest(self, part: str, phases: Sequence[Sequence[int]]) -> int:
        """The largest number of samples a run meets in any phase."""
        return max(
            sum(len(getattr(stream.tasks[t], part)) for t in tasks) for stream in self.streams for tasks in phases
        )


def _form(stream: Stream) -> tuple[object, ...]:
    """What is the same for all runs of a fleet."""
    images = (stream.mean, stream.std) if holds_images(stream.pool) else None
    return stream.class_counts, stream.heads, stream.input_shape, stream.input_dtype, images


@dataclass(frozen=True)
class Batch:
    """One run's share of a step, or that of all runs with a leading run axis."""

    images: Tensor | Pictures  # (..., B, *shape), or by reference
    labels: Tensor  # (..., B)
    weight: Tensor  # (..., B) 1 / number of samples; 0 for padding
    member: Tensor | None  # (..., B) or None when the phase has one task
    said: Tensor | None = None  # (..., B, C) logits of a teacher that was asked beforehand

    @property
    def valid(self) -> Tensor:
        """(..., B) 1 for a sample, 0 for padding."""
        return (self.weight > 0).to(self.weight.dtype)


class Loader:
    """Batches of a phase, in buffers that stay where they are so that a CUDA graph can read them.

    `step` is a counter on the device: a captured training step moves it on by itself.
    """

    def __init__(
        self,
        fleet: Fleet,
        batch: int,
        samples: int,
        *,
        joint: bool,
        together: int = 1,
        beside: int = 0,
        heads: Tensor | None = None,
        wrap: bool = False,
    ) -> None:
        """`together`: how many batches of a run `stacked` takes at once; `beside`: room at the end of every batch for
        samples that others lay there, and `heads` the tasks that `member` then counts (None: those of the phase).
        `wrap`: what fills up a batch are the run's own samples, from the first of the pass on; without weight anyway.
        """
        R, S = len(fleet), -(-samples // (batch * together)) * together
        self.fleet, self.size, self.capacity, self.joint = fleet, batch, S, joint
        self.beside, self.heads, self.wrap = beside, heads, wrap
        self.index, self.labels, self.member = (
            torch.zeros(R, S, batch + beside, dtype=torch.long, device=fleet.device) for _ in range(3)
        )
        self.valid, self.weight = (torch.zeros(R, S, batch + beside, device=fleet.device) for _ in range(2))
        self.there = torch.zeros(R, S, device=fleet.device)  # whether a step has samples
        self.said: Tensor | None = None  # (R, S, batch, C), where samples come with what a teacher says
        self.taught = False  # whether those of this pass do
        self.windows: Noise | None = None  # of all steps, where training shows images at random
        self.step = torch.zeros(1, dtype=torch.long, device=fleet.device)
        self.steps = 0  # of the phase at hand, for the run with most samples

    def fill(self, samples: Samples, order: Tensor | None = None) -> None:
        """Lay out all batches of a pass, in the given order (R, N) or as the samples stand."""
        R, N = samples.index.shape
        self.step.zero_()
        self.steps = -(-N // self.size)
        place = torch.arange(self.capacity * self.size, device=self.fleet.device)
        there = place.expand(R, -1) < samples.sizes.unsqueeze(1)
        pick = place % samples.sizes.unsqueeze(1) if self.wrap else place.clamp(max=N - 1).expand(R, -1)
        shown = torch.ones_like(there) if self.wrap else there
        if order is not None:
            pick = order.gather(1, pick)
        for buffer, values in (
            (self.index, samples.index),
            (self.labels, samples.labels),
            (self.member, samples.member),
        ):
            buffer[..., : self.size].copy_(values.gather(1, pick).mul_(shown).view(R, -1, self.size))
        valid = there.view(R, -1, self.size).float()
        self.valid[..., : self.size].copy_(valid)
        self.weight[..., : self.size].copy_(valid / valid.sum(-1, keepdim=True).clamp(min=1))
        self.there.copy_(valid.amax(-1))
        self.taught = samples.said is not None
        if samples.said is not None:
            C = samples.said.shape[2]
            if self.said is None:
                self.said = samples.said.new_zeros(R, self.capacity, self.size, C)
            said = samples.said.gather(1, pick.unsqueeze(2).expand(-1, -1, C))
            self.said.copy_(said.view_as(self.said))

    def present(self) -> Tensor:
        """Which runs have samples in this step, (R,) 1 or 0."""
        return self.there.index_select(1, self.step).squeeze(1)

    def steps_ahead(self, count: int) -> Tensor:
        """The next so many steps, (count,)."""
        return self.step + torch.arange(count, device=self.step.device)

    def stacked(self, count: int) -> Batch:
        """The next batches of all runs, each as a run of its own: (R * count, B), run by run."""

        def now(buffer: Tensor) -> Tensor:
            return buffer.index_select(1, self.steps_ahead(count)).flatten(0, 1)

        assert isinstance(self.fleet.inputs, Images)
        return Batch(
            images=self.fleet.inputs.repeated(now(self.index), count),
            labels=now(self.labels),
            weight=now(self.weight),
            member=now(self.member) if self.joint else None,
        )

    def ahead(self, run: int, count: int) -> Batch:
        """The next batches of a run as one, batch by batch: (count * B,)."""
        steps = self.steps_ahead(count)

        def now(buffer: Tensor) -> Tensor:
            return buffer[run].index_select(0, steps)

        def shown(index: Tensor, noise: Noise | None = None) -> Tensor:
            images = self.fleet.images(run, index, noise)
            assert isinstance(images, Tensor)  # those of one run are never by reference
            return images

        index = now(self.index)
        if self.windows is None:
            images = shown(index.flatten())
        else:
            noises = (self.windows.of_step(step).of_runs(slice(run, run + 1)) for step in steps.split(1))
            images = torch.cat([shown(some, noise) for some, noise in zip(index, noises, strict=True)])
        return Batch(
            images=images,
            labels=now(self.labels).flatten(),
            weight=now(self.weight).flatten(),
            member=now(self.member).flatten() if self.joint else None,
        )

    def batch(self, run: Runs, step: int | None = None) -> Batch:
        """The batch of a run, or of all, at the given step or that the counter stands at."""

        if step is None and self.fleet.device.type == "cpu":
            step = int(self.step)

        def now(buffer: Tensor) -> Tensor:
            if step is None:
                return buffer[run].index_select(-2, self.step).squeeze(-2)
            return buffer[run, step].contiguous()

        said = None
        if self.taught and self.said is not None:
            mine = self.said[run]
            said = mine.select(-3, step) if step is not None else mine.index_select(-3, self.step).squeeze(-3)
        windows = None
        if self.windows is not None:
            windows = self.windows.of_step(self.step).of_runs(run if isinstance(run, slice) else slice(run, run + 1))
        return Batch(
            images=self.fleet.images(run, now(self.index), windows),
            labels=now(self.labels),
            weight=now(self.weight),
            member=now(self.member) if self.joint else None,
            said=said,
        )
