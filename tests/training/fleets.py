"""Small fleets on digits, for the tests of the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from kenyon.data import Source, Stream, find_source
from kenyon.methods import Method, find_method
from kenyon.training import Trainer, Training
from tests.references import make_trainer

HYPER = {"lambda_sp": 50.0, "lambda_af": 0.05, "gamma": 0.3, "lambda_cpr": 0.2, "mu": 20.0, "rho": 0.5}
SHORT = Training(epochs=2, batch=64, rate=5e-3, patience=1)


def method(name: str, **hyper: Any) -> Method:
    spec = find_method(name)
    given = {n: HYPER[n] for n in spec.required} | hyper
    return spec(given)


@cache
def digits() -> Source:
    return find_source("digits").load(None)


def digit_streams(seeds: Sequence[int], tasks: int = 2) -> list[Stream]:
    return [digits().stream(seed, tasks=tasks, validation=0.1) for seed in seeds]


def trained(name: str, streams: Sequence[Stream], training: Training = SHORT, **options: Any) -> Trainer:
    trainer = make_trainer(method(name), streams, training, **options)
    trainer.run()
    return trainer


def assert_same(one: Trainer, run: int, other: Trainer, other_run: int = 0) -> None:
    """To the last bit: everything that is kept of a run, and everything that was found."""
    mine, theirs = one.tensors(), other.tensors()
    assert set(mine) == set(theirs)
    for name in mine:
        ours = mine[name].unflatten(0, (-1, one.members))[run]
        assert torch.equal(ours, theirs[name].unflatten(0, (-1, other.members))[other_run]), name
    assert len(one.position.records) == len(other.position.records)
    for a, b in zip(one.position.records, other.position.records, strict=True):
        assert repr({n: v[run] for n, v in a.items()}) == repr({n: v[other_run] for n, v in b.items()})
    assert one.position.diverged[run] == other.position.diverged[other_run]
