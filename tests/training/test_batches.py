"""Batches of a fleet against loops: the same samples, however they are asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kenyon.training.batches import Batch, Fleet, Loader, Samples
from tests.references import hand_stream

SIZE = 4
SIZES = ([9, 6], [5, 3])  # of two runs' two tasks: 15 samples and 8, in batches of 4


def fleet_of(sizes: tuple[list[int], ...] = SIZES) -> Fleet:
    streams = [hand_stream(each, seed=seed) for seed, each in enumerate(sizes)]
    return Fleet(streams, torch.device("cpu"), by_reference=False)


def teacher(samples: Samples) -> Tensor:
    """Logits that tell every run and place: (R, N, 3)."""
    R, N = samples.index.shape
    return torch.arange(R * N * 3, dtype=torch.float32).view(R, N, 3)


def filled(fleet: Fleet, *, joint: bool, wrap: bool = False, said: bool = False) -> tuple[Loader, Samples, Tensor]:
    samples = fleet.samples("train", [0, 1])
    if said:
        samples = replace(samples, teacher_logits=teacher(samples))
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.cat([torch.randperm(n, generator=generator), torch.arange(n, 15)]) for n in (15, 8)])
    loader = Loader(fleet, SIZE, 15, joint=joint, wrap=wrap)
    loader.fill(samples, order)
    return loader, samples, order


def by_loops(fleet: Fleet, samples: Samples, order: Tensor, run: int, step: int) -> list[tuple[int, int, int, int]]:
    """(place, index, label, member) of the samples of a batch, from the streams."""
    tasks = fleet.streams[run].tasks
    every = [
        (int(i), int(label), member)
        for member, task in enumerate(tasks)
        for i, label in zip(task.train.index, task.train.labels, strict=True)
    ]
    places = [int(p) for p in order[run] if int(p) < len(every)][step * SIZE : (step + 1) * SIZE]
    return [(p, *every[p]) for p in places]


def check(batch: Batch, fleet: Fleet, run: int, expected: list[tuple[int, int, int, int]], joint: bool) -> None:
    """One run's batch: its samples in their order, each with weight 1 / their number, and padding without."""
    n = len(expected)
    assert batch.labels[:n].tolist() == [label for _, _, label, _ in expected]
    assert batch.weight.tolist() == pytest.approx([1 / n] * n + [0] * (SIZE - n) if n else [0] * SIZE)
    assert batch.valid.tolist() == [1] * n + [0] * (SIZE - n)
    index = torch.tensor([i for _, i, _, _ in expected], dtype=torch.long)
    images = fleet.images(run, index)
    assert isinstance(batch.images, Tensor) and torch.equal(batch.images[:n], images)
    assert (batch.member is not None) == joint
    if batch.member is not None:
        assert batch.member[:n].tolist() == [member for _, _, _, member in expected]


@pytest.mark.parametrize("joint", [False, True])
def test_batches_of_a_run_at_a_step_and_where_the_counter_stands(joint: bool) -> None:
    fleet = fleet_of()
    loader, samples, order = filled(fleet, joint=joint, said=True)
    assert loader.steps == loader.capacity == 4
    for step in range(4):
        loader.step.fill_((step + 1) % 4)
        whole = loader.batch(slice(0, 2), step)
        for run in range(2):
            expected = by_loops(fleet, samples, order, run, step)
            asked = loader.batch(run, step)
            check(asked, fleet, run, expected, joint)
            assert torch.equal(whole.labels[run], asked.labels) and torch.equal(whole.weight[run], asked.weight)
            assert (
                asked.teacher_logits is not None
                and whole.teacher_logits is not None
                and samples.teacher_logits is not None
            )
            assert torch.equal(whole.teacher_logits[run], asked.teacher_logits)
            places = [place for place, _, _, _ in expected]
            assert torch.equal(asked.teacher_logits[: len(places)], samples.teacher_logits[run, places])
        loader.step.fill_(step)
        assert loader.present().tolist() == [1.0, float(step < 2)]
        for run in range(2):
            check(loader.batch(run), fleet, run, by_loops(fleet, samples, order, run, step), joint)


def test_a_counter_on_the_device_reads_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a captured step does: without knowing the number."""
    fleet = fleet_of()
    loader, _, _ = filled(fleet, joint=True, said=True)
    known = [[loader.batch(run, step) for run in (0, 1, slice(0, 2))] for step in range(4)]
    monkeypatch.setattr(fleet, "device", torch.device("meta"))  # any but the CPU
    for step in range(4):
        loader.step.fill_(step)
        for expected, run in zip(known[step], (0, 1, slice(0, 2)), strict=True):
            found = loader.batch(run)
            for name in ("images", "labels", "weight", "member", "teacher_logits"):
                assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("joint", [False, True])
def test_batches_ahead_are_those_to_come(joint: bool) -> None:
    fleet = fleet_of()
    loader, samples, order = filled(fleet, joint=joint)
    loader.step.fill_(1)
    assert loader.steps_ahead(2).tolist() == [1, 2]
    for run in range(2):
        both = loader.ahead(run, 2)
        assert (both.member is not None) == joint
        for place, step in enumerate((1, 2)):
            part = slice(place * SIZE, (place + 1) * SIZE)
            assert isinstance(both.images, Tensor)
            member = None if both.member is None else both.member[part]
            one = Batch(both.images[part], both.labels[part], both.weight[part], member)
            check(one, fleet, run, by_loops(fleet, samples, order, run, step), joint)


def test_a_batch_that_wraps_is_filled_up_from_the_first_samples_without_weight() -> None:
    fleet = fleet_of()
    loader, samples, order = filled(fleet, joint=True, wrap=True)
    for run, count in enumerate((15, 8)):
        first = [i for step in range(4) for _, i, _, _ in by_loops(fleet, samples, order, run, step)]
        around = [first[place % count] for place in range(16)]
        assert loader.index[run].flatten().tolist() == around
        assert loader.valid[run].flatten().tolist() == [1.0] * count + [0.0] * (16 - count)


def test_padded_samples_are_those_of_the_streams() -> None:
    fleet = fleet_of()
    samples = fleet.samples("train", [1, 0], multiple=4)
    assert samples.index.shape == (2, 16) and samples.sizes.tolist() == [15, 8]
    for run, stream in enumerate(fleet.streams):
        first, second = stream.tasks[1].train, stream.tasks[0].train
        n = len(first) + len(second)
        assert samples.index[run].tolist() == [*first.index.tolist(), *second.index.tolist()] + [0] * (16 - n)
        assert samples.labels[run, :n].tolist() == [*first.labels.tolist(), *second.labels.tolist()]
        assert samples.member[run, :n].tolist() == [0] * len(first) + [1] * len(second)
    assert fleet.largest("train", [[0], [1], [0, 1]]) == 15 and fleet.largest("train", [[0], [1]]) == 9
