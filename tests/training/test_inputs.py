"""Samples of any shape and kind: values train as the images that they were made of, tokens and signals train too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.cpu.dense import Dense
from kenyon.backends.cpu.looped import Looped
from kenyon.backends.torch.module import General
from kenyon.backends.triton.stacked import Stacked
from kenyon.data import Group, Source, Split, Stream
from kenyon.errors import DataError
from kenyon.models import Net
from kenyon.training import Fleet, Trainer
from tests.references import hand_stream, make_trainer
from tests.training.fleets import SHORT, assert_same, method

CPU = torch.device("cpu")
SIZES = ([70, 40], [50, 33])


def with_pool(stream: Stream, pool: Tensor, **changes: Any) -> Stream:
    """The same tasks, cut from another pool."""

    def moved(split: Split) -> Split:
        return replace(split, pool=pool)

    tasks = tuple(
        replace(t, train=moved(t.train), validation=moved(t.validation), test=moved(t.test)) for t in stream.tasks
    )
    return replace(stream, tasks=tasks, mean=(), std=(), **changes)


def as_values(stream: Stream, *shape: int) -> Stream:
    """The images as the network sees them, as float32 values of this shape."""
    seen = Fleet([stream], CPU).images(0, torch.arange(len(stream.pool)))
    assert isinstance(seen, Tensor)
    return with_pool(stream, seen.reshape(len(seen), *shape).contiguous())


def trained(name: str, streams: list[Stream], backbone: nn.Module) -> Trainer:
    trainer = make_trainer(method(name), streams, SHORT, backbone=backbone)
    trainer.run()
    return trainer


def mlp(*before: nn.Module) -> nn.Module:
    return nn.Sequential(*before, nn.Linear(64, 6), nn.ReLU(), nn.Dropout(0.25), nn.Linear(6, 16), nn.ReLU())


@pytest.mark.parametrize("name", ["caf-ewc", "pnc", "er", "agscl"])
def test_values_train_as_the_images_they_were_made_of(name: str) -> None:
    """Bit for bit: as images of floats, as (C, L) and, without the flattening, as vectors."""
    pictures = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(SIZES)]
    expected = trained(name, pictures, mlp(nn.Flatten()))
    for shape, before in (((1, 8, 8), [nn.Flatten()]), ((4, 16), [nn.Flatten()]), ((64,), [])):
        found = trained(name, [as_values(stream, *shape) for stream in pictures], mlp(*before))
        assert isinstance(found.net.executor, Dense)
        for run in (0, 1):
            assert_same(found, run, expected, run)


def test_runs_on_one_pool_and_on_pools_of_their_own_agree() -> None:
    stream = as_values(hand_stream([30, 30]), 64)
    both = trained("ewc", [stream, replace(stream, seed=1)], mlp())
    apart = trained("ewc", [stream, with_pool(replace(stream, seed=1), stream.pool.clone())], mlp())  # type: ignore[union-attr]
    for run in (0, 1):
        assert_same(both, run, apart, run)


class Words(nn.Module):
    """Tokens -> their mean embedding, through a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(64, 5), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.embedding(x).mean(1)).relu()


@pytest.mark.parametrize(("backbone", "shape"), [(Words, (12,)), (None, (3, 9))])
def test_tokens_and_signals_are_learned(backbone: Any, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    stream = hand_stream([60, 60])
    n = len(stream.pool)
    labels = torch.zeros(n, dtype=torch.long)
    for task in stream.tasks:
        for split in (task.train, task.validation, task.test):
            labels[split.index] = split.labels
    if backbone is Words:  # the first class speaks in low words
        pool = torch.randint(0, 32, (n, *shape), generator=generator) + 32 * labels.view(-1, 1)
        module: nn.Module = Words()
    else:  # 1-D signals of two levels
        pool = torch.randn((n, *shape), generator=generator) + 2.0 * labels.view(-1, 1, 1)
        module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(28, 8))
    trainer = make_trainer(method("caf-ewc"), [with_pool(stream, pool)], replace(SHORT, epochs=12), backbone=module)
    assert isinstance(trainer.net.executor, General)
    trainer.run()
    assert min(trainer.position.records[-1]["accuracy"][0]) >= 90


def test_a_dense_layer_on_more_than_vectors_is_general_and_vectors_may_be_looped() -> None:
    stream = as_values(hand_stream([20]), 4, 16)
    over = nn.Sequential(nn.Linear(16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5))
    assert isinstance(make_trainer(method("ewc"), [stream], SHORT, backbone=over).net.executor, General)
    wide = nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    vectors = as_values(hand_stream([20]), 64)
    assert isinstance(make_trainer(method("ewc"), [vectors], SHORT, backbone=wide).net.executor, Looped)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_every_way_of_computing_takes_vectors_and_signals(shape: tuple[int, ...]) -> None:
    before = [] if len(shape) == 1 else [nn.Flatten()]
    module = nn.Sequential(*before, nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4))
    net = Net(module, shape, (2,), learners=3)
    row, x = net.initial([1])[0], torch.randn(7, *shape, generator=torch.Generator().manual_seed(0))
    params = {name: net.layout.view(row, name) for name in net.backbone_names}
    ways = [kind(net.backbone, net.input_shape, 3) for kind in (Looped, Stacked)]  # type: ignore[arg-type]
    noise = torch.randint(0, 256, (ways[0].noise_size(7),), generator=torch.Generator().manual_seed(1)).to(
        torch.uint8
    )
    first, last = (f"{len(before) + place}" for place in (0, 3))
    for k in range(3):
        hidden = (x.flatten(1) @ params[f"{first}.weight"][k].T + params[f"{first}.bias"][k]).tanh()
        kept = (noise.view(7, -1)[:, 5 * k : 5 * k + 5] >= 128) * 2.0
        for given, factor in ((None, 1.0), (noise, kept)):
            expected = hidden * factor @ params[f"{last}.weight"][k].T + params[f"{last}.bias"][k]
            for way in ways:
                torch.testing.assert_close(way.forward(params, x, given)[k], expected)


def table(**changes: Any) -> Source:
    values = torch.arange(80.0).view(20, 4)
    labels = torch.arange(20) % 2
    given = {"name": "t", "images": values, "labels": labels, "test": torch.arange(20) > 13} | changes
    return Source(**given, class_names=("a", "b"), groups=(Group("all", (0, 1)),))


def test_values_are_normalised_by_column_where_the_source_says_so() -> None:
    mean, std = (1.0, 2.0, 3.0, 4.0), (2.0, 4.0, 0.5, 1.0)
    stream = table(mean=mean, std=std).stream(0)
    seen = Fleet([stream], CPU).images(0, torch.tensor([3, 0]))
    expected = (np.arange(80.0).reshape(20, 4)[[3, 0]] - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(np.asarray(seen), expected, rtol=1e-6)
    assert stream.input_shape == (4,) and stream.input_dtype == torch.float32 and not stream.in_place


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": torch.zeros(20, 4, dtype=torch.float64)}, "float32 values or int64 tokens, not float64"),
        ({"images": torch.zeros(20, 4, dtype=torch.uint8)}, "must have the shape"),
        ({"images": torch.zeros(20)}, "Add an axis"),
        ({"images": torch.zeros(19, 4)}, "19 samples and 20 labels"),
        ({"images": torch.tensor([0.0, float("nan")]).repeat(20, 2)}, "sample 0 has values that are NaN"),
        ({"mean": (0.0,), "std": (1.0,)}, "need 4 numbers each"),
        ({"mean": (0.0,) * 4, "std": (1.0, 1.0, 0.0, 1.0)}, "every std must be above 0"),
        ({"images": torch.zeros(20, 4, dtype=torch.int64), "mean": (0.0,) * 4, "std": (1.0,) * 4}, "tokens have no"),
    ],
)
def test_what_no_network_could_take_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        table(**changes)
