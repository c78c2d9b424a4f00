"""What cannot be used is refused, with what it is, what was expected and what to do; nothing is half done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from kenyon.errors import ConfigError, DataError
from kenyon.methods.importance import fisher_exact, fisher_large
from kenyon.methods.path_importance import rwalk
from kenyon.regularizers import AF1, AF2, AFS, Collaborative, Protection
from tests.regularizers.small import batches, classifier, learners, moved, vectors


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda s: Protection(classifier(), strength=s),
        lambda s: AF1(classifier(), strength=s),
        lambda s: AF2(classifier(), strength=s),
        lambda s: AFS(3, strength=s),
    ],
)
def test_strengths(make: Callable[[float], Any], strength: float) -> None:
    with pytest.raises(ConfigError, match="strength must be a finite number, 0 or larger"):
        make(strength)


def _consolidated(labels: torch.Tensor) -> None:
    Protection(classifier(), strength=1.0).consolidate([(torch.zeros(len(labels), 4), labels)])


MADE: list[tuple[Callable[[], Any], str]] = [
    (lambda: Protection(classifier(), "ewk", strength=1.0), "no importance called 'ewk'. Did you mean ewc"),
    (lambda: Protection(classifier(), rwalk(), strength=1.0), "importance is one of ewc"),  # type: ignore[arg-type]
    (lambda: Protection(classifier(), fisher_large(), strength=1.0), "gradient of penalties"),
    (lambda: Protection(classifier(), strength=1.0, accumulate="often"), "not 'often'"),  # type: ignore[arg-type]
    (lambda: Protection(classifier(), "si", strength=1.0, accumulate=1.5), "from 0 to 1, not 1.5"),
    (lambda: Protection(classifier(), strength=1.0, exclude="haed"), "called 'haed'. Did you mean head"),
    (lambda: Protection(classifier(), strength=1.0, exclude=nn.Linear(5, 3)), "no part of the model"),
    (lambda: Protection(classifier(), strength=1.0, exclude=["head", "body"]), "No parameter"),
    (lambda: AF1(classifier(), strength=1.0, adaptive=True), "Sequential has no Collaborative"),
    (lambda: AF1(learners(), strength=1.0, adaptive=True, exclude="backbones.0.0.bias"), "of all or of none"),
    (
        lambda: AF1(
            Collaborative([nn.Linear(1, 1), nn.Linear(1, 1, bias=False)], nn.Linear(1, 1)),
            strength=1.0,
            adaptive=True,
        ),
        "same parameters",
    ),
    (lambda: AFS(1, strength=1.0), "at least 2, not 1"),
    (lambda: AFS(3, strength=1.0, form="third"), "not 'third'"),  # type: ignore[arg-type]
    (lambda: AFS(3, strength=1.0)(torch.zeros(4, 2)), r"not \(4, 2\)"),
    (lambda: AFS(3, strength=1.0)(torch.zeros(2, 4, 5)), r"\(3, samples, classes\)"),
    (lambda: AFS(3, strength=1.0)(torch.zeros(3, 0, 5)), r"not \(3, 0, 5\)"),
    (lambda: Protection(len, strength=1.0), "must be a torch.nn.Module, not a builtin"),  # type: ignore[arg-type]
    (lambda: Protection(nn.LazyLinear(3), strength=1.0), "weight has no shape yet. Send a batch"),
    (lambda: Protection(classifier(), strength=1.0).consolidate(TensorDataset(torch.zeros(2, 4))), "DataLoader"),
    (lambda: _consolidated(torch.tensor([0, 7])), "do not fit the logits .* from 0 to"),
    (lambda: _consolidated(torch.tensor([[0], [1]])), r"not on \(2, 3\) and \(2, 1\)\. Flatten them in predict="),
    (lambda: _consolidated(torch.eye(3)), r"and \(3, 3\)\. One-hot labels become classes by labels\.argmax\(1\)"),
    (lambda: _consolidated(torch.zeros(3, 2, 2, dtype=torch.long)), r"and \(3, 2, 2\)\. Flatten them"),
    (
        lambda: Protection(classifier(), strength=1.0).consolidate(
            batches(*vectors(5), 5), lambda model, batch: (model(batch[0]), batch[1][0])
        ),
        r"not on \(5, 3\) and \(\)",
    ),
    (
        lambda: Protection(
            classifier(),
            replace(fisher_exact(), objective=lambda logits, labels, valid: logits.sum(1)),
            strength=1.0,
        ).consolidate(batches(*vectors(5), 5)),
        r"fisher_exact gives \(1,\) for a batch",
    ),
    (lambda: _consolidated(torch.tensor([0.0, 1.0])), "do not fit the logits .* whole number"),
    (
        lambda: Collaborative([nn.Linear(2, 3), nn.Linear(2, 4)], nn.Linear(3, 2))(torch.zeros(1, 2)),
        "vectors of one length, to be summed, and these give 3, 4",
    ),
    (lambda: Collaborative([], nn.Linear(1, 1)), "at least one backbone"),
    (lambda: Collaborative([layer := nn.Linear(1, 1), layer], nn.Linear(1, 1)), "share their weights"),
]


@pytest.mark.parametrize(("make", "said"), MADE)
def test_what_cannot_be_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


LOADERS: list[tuple[Any, type[Exception], str]] = [
    ([], DataError, "gave no samples"),
    (iter(()), DataError, "gone through again"),
    ([(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))], DataError, "gave no samples"),
    ([torch.zeros(3, 4)], ConfigError, "batch is taken to be"),
    ([(torch.zeros(3, 4), torch.zeros(2, dtype=torch.long))], DataError, r"\[2, 3\] samples"),
    ([(torch.zeros(3, 4), ["a", "b", "c"])], DataError, "holds a str"),
    ([(torch.zeros(3, n), torch.zeros(3, dtype=torch.long)) for n in (4, 5)], RuntimeError, "multiplied"),
    ([(torch.full((3, 4), math.nan), torch.zeros(3, dtype=torch.long))], DataError, "body.0.weight is not finite"),
    (None, ConfigError, "consolidate\\(loader\\)"),
]  # fmt: skip


@pytest.mark.parametrize(("loader", "kind", "said"), LOADERS)
def test_what_cannot_be_measured_changes_nothing(loader: Any, kind: type[Exception], said: str) -> None:
    model = classifier()
    model.train()
    protection = Protection(model, strength=1.0)
    protection.consolidate(batches(*vectors(20), 20))
    before = {name: tensor.clone() for name, tensor in protection.importance.items()}
    moved(model)
    penalty = protection().item()
    with pytest.raises(kind, match=said):
        protection.consolidate(loader)
    assert protection.tasks == 1 and protection().item() == penalty and model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in protection.importance.items())


def test_a_model_that_gives_no_logits() -> None:
    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), None

    with pytest.raises(ConfigError, match=r"Pair gives a tuple and no logits. Say with predict="):
        Protection(Pair(4, 3), strength=1.0).consolidate(batches(*vectors(5), 5))
    with pytest.raises(ConfigError, match=r"not on \(5, 2, 3\)"):
        Protection(model := nn.Linear(4, 3), strength=1.0).consolidate(
            batches(*vectors(5), 5),
            lambda m, b: (model(b[0]).unsqueeze(1).expand(-1, 2, -1), b[1].unsqueeze(1).expand(-1, 2)),
        )


def test_frozen_altogether() -> None:
    model = classifier().requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        Protection(model, strength=1.0).consolidate(batches(*vectors(5), 5))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: setattr(m, "head", nn.Linear(5, 7)), r"head.weight was \(3, 5\) and is \(7, 5\) in the model"),
        (lambda m: delattr(m, "head"), "head.weight is not in the model any more"),
        (lambda m: m.add_module("more", nn.Linear(1, 1)), "more.weight in the model is new. Exclude it"),
    ],
)
def test_a_model_that_changed(change: Callable[[nn.Module], None], said: str) -> None:
    model = classifier()
    losses: list[Any] = [Protection(model, strength=1.0), AF1(model, strength=1.0), AF2(model, strength=1.0)]
    losses[0].consolidate(batches(*vectors(20), 20))
    change(model)
    for loss in losses:
        with pytest.raises(ConfigError, match=said):
            loss()


def test_what_is_excluded_may_change() -> None:
    model = learners(2, tasks=1)
    Protection(learners(2, tasks=0), strength=1.0, exclude="heads")  # none yet
    protection, forgetting = (
        Protection(model, strength=1.0, exclude="heads"),
        AF1(model, strength=1.0, exclude="heads"),
    )
    protection.consolidate(batches(*vectors(20), 20))
    model.heads.append(nn.Linear(5, 7))
    assert protection().item() == 0 and forgetting(model.heads[1]).item() > 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "no state of a Protection"),
        (None, "no state of a Protection"),
        (
            Protection(classifier(), "mas", strength=1.0).state_dict(),
            "one of mas, and this protection measures fisher",
        ),
    ],
)
def test_states_of_something_else(state: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Protection(classifier(), strength=1.0).load_state_dict(state)


def test_a_state_of_another_model() -> None:
    protection = Protection(classifier(), strength=1.0)
    protection.consolidate(batches(*vectors(20), 20))
    other = Protection(nn.Sequential(nn.Linear(4, 3)), strength=1.0)
    with pytest.raises(ConfigError, match=r"0.weight is not in the saved importance"):
        other.load_state_dict(protection.state_dict())
    assert other.tasks == 0
    forgetting = AF2(classifier(), strength=1.0)
    for state in (None, {"network": {}}):
        with pytest.raises(ConfigError, match="no state of AF2"):
            forgetting.load_state_dict(state)  # type: ignore[arg-type]


def test_synaptic_intelligence_that_followed_nothing() -> None:
    model = classifier()
    protection = Protection(model, "si", strength=1.0)
    with pytest.raises(ConfigError, match=r"Call track\(optimiser\) before training"):
        protection.consolidate()
    with pytest.raises(ConfigError, match=r"track takes optimizers of torch.optim, not a Sequential"):
        protection.track(model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"This Adam moves none of the parameters that are protected"):
        protection.track(torch.optim.Adam(classifier().parameters()))  # another model's


def test_what_is_excluded_is_a_name_or_a_module() -> None:
    with pytest.raises(ConfigError, match=r"exclude must be names or modules of the model.*not 2"):
        Protection(classifier(), strength=1.0, exclude=2)  # type: ignore[arg-type]


def test_a_head_that_is_not_there_is_told() -> None:
    together = Collaborative([nn.Linear(4, 3), nn.Linear(4, 3)], nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="There is no head 3: there are 1, counted from 0"):
        together(torch.zeros(2, 4), 3)


def test_synaptic_intelligence_with_gradients_that_are_nan() -> None:
    model = classifier()
    protection = Protection(model, "si", strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    protection.track(optimizer)
    (model(torch.full((2, 4), math.nan)).sum()).backward()
    optimizer.step()
    with pytest.raises(DataError, match=r"body.0.weight is not finite"):
        protection.consolidate()
    assert protection.tasks == 0 and not protection.importance


def test_labels_that_nothing_looks_at_may_have_any_shape() -> None:
    protection = Protection(classifier(), "mas", strength=1.0)
    protection.consolidate([(torch.ones(3, 4), torch.zeros(3, 2))])
    assert protection.tasks == 1
