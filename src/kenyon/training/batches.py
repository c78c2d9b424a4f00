"""R streams on one device, gathered there in batches.

    Images  uint8 with the channel last, shown by the streams' views, scaled and normalized batch by batch
    Values  numbers or tokens of any shape, normalized once

Every pool goes to the device once, however many streams share it. Batches are padded to one size and carry a 0/1
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

from kenyon.backends.cuda.interface import Pictures
from kenyon.backends.layers import Frame
from kenyon.data.tasks import Augmentation, Pool, Ragged, Split, Stream, Testing, holds_images
from kenyon.errors import ConfigError
from kenyon.random import Noise
from kenyon.training.augmentation import augmented
from kenyon.training.device import Runs

P = TypeVar("P")


class Images:
    """Images of all streams on the device."""

    def __init__(
        self, streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
    ) -> None:
        """`refer`: images of all runs at once are given as positions in their pools."""
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
        """Return the images of one run at index (B,), normalized, (B, C, H, W) in channels_last memory, or those of
        all runs at index (R, B), perhaps by reference. With `noise` they are shown as in training, without as in
        tests.
        """
        if isinstance(run, slice) and self.by_reference and self._view(noise) is None:
            laid_out = partial(self._laid_out, run, index)
            return Pictures(self.addresses, index, self.gains, self.shifts, laid_out)
        return self._laid_out(run, index, noise)

    def repeated(self, index: Tensor, count: int) -> Pictures:
        """Return images by reference at index (R * count, B): every run is repeated `count` times."""
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
            noises = [None if noise is None else noise.of_runs(slice(r, r + 1)) for r in range(len(self.pools))]
            runs = zip(self.pools, index, noises, strict=True)
            pixels = torch.stack([augmented(view, pool, i, of_run) for pool, i, of_run in runs])
        if view is None:
            pixels = pixels[..., self.rows, self.columns, :]
        return torch.addcmul(self.shift, pixels.to(torch.float32), self.scale).movedim(-1, -3)


class Values:
    """Numbers or tokens of all streams on the device."""

    augmentation: Augmentation = None

    def __init__(self, streams: Sequence[Stream], device: torch.device) -> None:
        def normalized(stream: Stream) -> Tensor:
            pool = stream.pool
            assert isinstance(pool, Tensor)
            values = pool.to(device)
            if not stream.mean:
                return values
            mean, std = (
                torch.tensor(v, device=device).view(-1, *(1,) * (pool.ndim - 2)) for v in (stream.mean, stream.std)
            )
            return (values - mean).div_(std)

        self.pools = _each(streams, normalized)
        self.one_pool = _one(self.pools)

    def __call__(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor:
        """Return the samples of one run at index (B,), (B, *shape), or those of all runs at index (R, B)."""
        if not isinstance(run, slice):
            return self.pools[run].index_select(0, index)
        if self.one_pool:
            return self.pools[0].index_select(0, index.flatten()).unflatten(0, index.shape)
        return torch.stack([pool.index_select(0, i) for pool, i in zip(self.pools, index, strict=True)])


Inputs = Images | Values


def choose_inputs(
    streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
) -> Inputs:
    if holds_images(streams[0].pool):
        return Images(streams, device, channels, frame, refer)
    return Values(streams, device)


def _each(streams: Sequence[Stream], lay: Callable[[Stream], P]) -> list[P]:
    """Return the pool of every stream on the device, one for all streams that share it."""
    keys = [(id(stream.pool), stream.mean, stream.std) for stream in streams]
    laid = {key: lay(stream) for key, stream in dict(zip(keys, streams, strict=True)).items()}
    return [laid[key] for key in keys]


def _one(pools: Sequence[Pool]) -> bool:
    return all(pool is pools[0] for pool in pools)


def _laid(pool: Pool, device: torch.device, pad: int, frame: Frame | None) -> Pool:
    """Return the pool with the channel last and `pad` empty channels, images of equal sizes in their frame."""
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
    member: Tensor  # (R, N) position among the phase's tasks
    sizes: Tensor  # (R,)
    teacher_logits: Tensor | None = None  # (R, N, C)


class Fleet:
    """The streams of all runs on the device."""

    def __init__(
        self,
        streams: Sequence[Stream],
        device: torch.device,
        channels: int | None = None,
        *,
        frame: Frame | None = None,
        by_reference: bool = True,
    ) -> None:
        """`channels` pads images with empty channels up to that number, for alignment; `by_reference`: images of all
        runs at once are given as positions in their pools, laid into a `frame`.
        """
        first = streams[0]
        for stream in streams[1:]:
            if _form(stream) != _form(first):
                raise ConfigError(
                    f"Runs that train together need tasks of the same shapes in the same order; those of seed "
                    f"{stream.seed} and seed {first.seed} differ. Train them one after another."
                )
        self.streams, self.device = tuple(streams), device
        self.seeds = tuple(stream.seed for stream in streams)
        self.tasks = len(first.tasks)
        self.inputs = choose_inputs(streams, device, channels, frame, by_reference)
        self.augmentation = self.inputs.augmentation

    def __len__(self) -> int:
        return len(self.streams)

    def images(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor | Pictures:
        """Return the samples of one run at index (B,) as the network sees them, (B, *shape), or those of all runs at
        index (R, B), perhaps by reference. With `noise` they are shown as in training, without as in tests.
        """
        return self.inputs(run, index, noise)

    def samples(self, part: str, tasks: Sequence[int], *, multiple: int = 1) -> Samples:
        """Return `part` of the given tasks (positions in the streams) for all runs, padded to a multiple."""
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
        """Return the largest number of samples that a run has in any phase."""
        return max(
            sum(len(getattr(stream.tasks[t], part)) for t in tasks) for stream in self.streams for tasks in phases
        )


def _form(stream: Stream) -> tuple[object, ...]:
    """Return the properties that runs which train together share."""
    images = (stream.mean, stream.std) if holds_images(stream.pool) else None
    return stream.class_counts, stream.heads, stream.input_shape, stream.input_dtype, images


@dataclass(frozen=True)
class Batch:
    """The batch of one run, or of all runs with a leading run axis."""

    images: Tensor | Pictures  # (..., B, *shape), or by reference
    labels: Tensor  # (..., B)
    weight: Tensor  # (..., B) 1 / number of samples; 0 for padding
    member: Tensor | None  # (..., B) position among the phase's tasks; None if there is one
    teacher_logits: Tensor | None = None  # (..., B, C) if they were computed beforehand

    @property
    def valid(self) -> Tensor:
        """(..., B) 1 for a sample, 0 for padding."""
        return (self.weight > 0).to(self.weight.dtype)


class Loader:
    """Batches of a phase, in buffers that stay in place so that a CUDA graph can read them.

    `step` is a counter on the device, which a captured training step advances.
    """

    def __init__(
        self,
        fleet: Fleet,
        batch: int,
        samples: int,
        *,
        joint: bool,
        together: int = 1,
        memory_size: int = 0,
        heads: Tensor | None = None,
        wrap: bool = False,
    ) -> None:
        """`together`: batches of a run that `stacked` takes at once; `memory_size`: samples that replay puts at the
        end of every batch, and `heads` the tasks that `member` then counts (None: those of the phase). `wrap`:
        batches are filled up with samples of the run, from the first of the pass, with weight 0.
        """
        R, S = len(fleet), -(-samples // (batch * together)) * together
        self.fleet, self.size, self.capacity, self.joint = fleet, batch, S, joint
        self.memory_size, self.heads, self.wrap = memory_size, heads, wrap
        self.index, self.labels, self.member = (
            torch.zeros(R, S, batch + memory_size, dtype=torch.long, device=fleet.device) for _ in range(3)
        )
        self.valid, self.weight = (torch.zeros(R, S, batch + memory_size, device=fleet.device) for _ in range(2))
        self.there = torch.zeros(R, S, device=fleet.device)  # 1 if a step has samples
        self.teacher_logits: Tensor | None = None  # (R, S, batch, C)
        self.has_teacher = False  # in this pass
        self.windows: Noise | None = None  # of all steps, with augmentation
        self.step = torch.zeros(1, dtype=torch.long, device=fleet.device)
        self.steps = 0  # of the current phase, for the run with most samples

    def fill(self, samples: Samples, order: Tensor | None = None) -> None:
        """Lay out all batches of a pass, in the given order (R, N) or in that of the samples."""
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
        self.has_teacher = samples.teacher_logits is not None
        if samples.teacher_logits is not None:
            C = samples.teacher_logits.shape[2]
            if self.teacher_logits is None:
                self.teacher_logits = samples.teacher_logits.new_zeros(R, self.capacity, self.size, C)
            picked = samples.teacher_logits.gather(1, pick.unsqueeze(2).expand(-1, -1, C))
            self.teacher_logits.copy_(picked.view_as(self.teacher_logits))

    def present(self) -> Tensor:
        """Return 1 for runs that have samples in this step, 0 for others: (R,)."""
        return self.there.index_select(1, self.step).squeeze(1)

    def steps_ahead(self, count: int) -> Tensor:
        """Return the numbers of the next steps, (count,)."""
        return self.step + torch.arange(count, device=self.step.device)

    def stacked(self, count: int) -> Batch:
        """Return the next batches of all runs, each as a run of its own: (R * count, B), run by run."""

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
        """Return the next batches of a run as one, batch by batch: (count * B,)."""
        steps = self.steps_ahead(count)

        def now(buffer: Tensor) -> Tensor:
            return buffer[run].index_select(0, steps)

        def shown(index: Tensor, noise: Noise | None = None) -> Tensor:
            images = self.fleet.images(run, index, noise)
            assert isinstance(images, Tensor)  # images of one run are never by reference
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
        """Return the batch of a run, or of all, at the given step or at that of the counter."""
        if step is None and self.fleet.device.type == "cpu":
            step = int(self.step)

        def now(buffer: Tensor) -> Tensor:
            if step is None:
                return buffer[run].index_select(-2, self.step).squeeze(-2)
            return buffer[run, step].contiguous()

        logits = None
        if self.has_teacher and self.teacher_logits is not None:
            steps = self.teacher_logits[run]
            logits = steps.select(-3, step) if step is not None else steps.index_select(-3, self.step).squeeze(-3)
        windows = None
        if self.windows is not None:
            windows = self.windows.of_step(self.step).of_runs(run if isinstance(run, slice) else slice(run, run + 1))
        return Batch(
            images=self.fleet.images(run, now(self.index), windows),
            labels=now(self.labels),
            weight=now(self.weight),
            member=now(self.member) if self.joint else None,
            teacher_logits=logits,
        )
