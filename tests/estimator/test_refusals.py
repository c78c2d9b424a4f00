"""Bad arguments are refused with a message, and the learner stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from kenyon import ContinualLearner, KenyonError
from kenyon.estimator import SettingError
from kenyon.methods import METHODS, Method, MethodSpec
from kenyon.methods.importance import fisher_published
from kenyon.methods.penalties.weights import StabilityProtection, Strength
from tests.estimator.small import blobs, taught

X, Y = blobs(2)
NAN, INFINITE = X.copy(), X.copy()
NAN[3, 1], INFINITE[0, 0] = np.nan, np.inf


class Alone(Dataset[Any]):
    """Samples without labels."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return X[number]


class Ragged(Alone):
    def __getitem__(self, number: int) -> Any:
        return X[number, : 1 + number], 0


class InTurn(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([X[0, :1]])


class Table:
    """The interface of a pandas table."""

    def __init__(self, numbers: Any) -> None:
        self.values = np.array([[*row, "north"] for row in numbers.tolist()], dtype=object)
        self.columns, self.shape = ["a", "b", "c", "d", "e", "f", "where"], self.values.shape
        self.dtypes = [np.dtype(float)] * 6 + [np.dtype(object)]

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype=dtype)


def task(*data: Any, **options: Any) -> Callable[[ContinualLearner], object]:
    return lambda learner: learner.fit(*data, **({"task": "new"} | options))


def changed(**settings: Any) -> Callable[[ContinualLearner], object]:
    return lambda learner: learner.set_params(**settings).fit(X, Y, task="new")


REFUSALS: dict[str, tuple[Callable[[ContinualLearner], object], str]] = {
    "fewer features": (task(X[:, :3], Y), "X has 3 features, but ContinualLearner is expecting 6"),
    "another shape": (task(X.reshape(-1, 1, 2, 3), Y), r"shape \(1, 2, 3\); those that were learned have \(6,\)"),
    "one axis": (task(X[:, 0], Y), "Expected 2D array"),
    "NaN": (task(NAN, Y), "X contains NaN. Fill in what is missing"),
    "labels that are NaN": (task(X, np.where(Y > 4, np.nan, 4)), "y contains NaN. Leave such samples out"),
    "labels that are missing": (task(X, np.array(["a", None] * 30)), "these are NoneType, str. Leave out"),
    "a table with words": (task(Table(X), Y), r"not numbers: where\. .*OneHotEncoder"),
    "pairs in a list": (task(list(zip(X, Y, strict=True))), "list of pairs"),
    "an iterator": (task(iter(X), Y), "DataLoader"),
    "channels last": (task(np.zeros((60, 8, 8, 3), np.uint8), Y), r"channels last.*moveaxis\(x, -1, 1\)"),
    "infinite": (task(INFINITE, Y), "contains infinity"),
    "infinite in single precision": (task(X.astype(np.float64) * 1e300, Y), "infinity"),
    "no samples": (task(X[:0], Y[:0]), r"0 sample"),
    "no labels": (task(X), "requires y"),
    "empty labels": (task(X, Y[:0]), "60 samples and 0 labels"),
    "labels missing": (task(X, Y[:-1]), "60 samples and 59 labels"),
    "one class": (task(X, np.zeros(60, dtype=int)), "one class only"),
    "labels that are measures": (task(X, np.linspace(0, 1, 60)), "Unknown label type"),
    "labels of two kinds": (task(X, np.array([1, "a"] * 30, dtype=object)), "all of one kind; these are int, str"),
    "labels of another kind than before": (task(X, np.array(["a", "b"] * 30)), "numbers.*strings|strings.*numbers"),
    "a task twice": (task(X, Y, task="t0"), "'t0' was learned already"),
    "no task": (task(X, Y, task=None), "start over"),
    "the name of no name": (task(X, Y, task="unnamed"), "without a name"),
    "a test without labels": (task(X, Y, test=X), "Test samples need labels"),
    "a name that is none": (task(X, Y, task=3), "task is a name"),
    "unseen labels in tests": (task(X, Y, test=blobs(3)), "Test samples have the label 6"),
    "unseen labels in validation": (task(X, Y, validation=blobs(3)), "Validation samples have the label 6"),
    "classes that leave some out": (task(X, Y, classes=[4, 9]), "Training samples have the label 5"),
    "a test of another shape": (task(X, Y, test=(X[:, :2], Y)), "2 features"),
    "labels twice": (task(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), Y), "its own labels"),
    "samples alone": (task(Alone()), "Expected 2D array"),
    "unequal samples": (task(Ragged()), "Bring them to one size"),
    "samples in turn without labels": (task(InTurn()), r"must have items \(sample, label\)"),
    "an empty loader": (task(DataLoader(TensorDataset(torch.zeros(0, 6), torch.zeros(0)))), "no samples"),
    "a folder without a size": (task(Path(__file__).parent), "side=32"),
    "a folder that is not there": (lambda it: it.set_params(side=8).fit("/nowhere/at/all", task="new"), "no folder"),
    "three parts": (task((X, Y, Y)), "3 parts"),
    "another method": (changed(method="mas"), "method was 'ewc'"),
    "another way of scaling": (changed(standardise=False), "standardise was True .* Set it back with set_params"),
    "another seed": (changed(seed=3), "seed was 0"),
    "another backbone": (changed(backbone=nn.Sequential(nn.Linear(6, 8))), "backbone is another"),
    "a backbone that is none": (changed(backbone="resnet"), "torch.nn.Module, or a function"),
    "a function that builds none": (changed(backbone=lambda: 3), "not int"),
    "a backbone of other inputs": (changed(backbone=nn.Sequential(nn.Linear(5, 8))), "cannot take a batch"),
    "a backbone without vectors": (
        changed(backbone=nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))),
        "one feature",
    ),
    "a backbone without parameters": (changed(backbone=nn.Tanh()), "no parameters"),
    "a backbone of doubles": (changed(backbone=nn.Linear(6, 8).double()), r"weights are float64: .* \.float\(\)"),
    "several learners of one": (changed(learners=3), "ewc has one learner"),
    "no epochs": (changed(epochs=0), "epochs must be a whole number of at least 1"),
    "half an epoch": (changed(epochs=0.5), "epochs must be a whole number"),
    "a rate of nothing": (changed(rate=0.0), "rate"),
    "a share of all": (changed(validation=1.0), "validation"),
    "a strength below zero": (changed(lambda_sp=-1.0), "lambda_sp"),
    "a strength that is none": (changed(lambda_sp="big"), "lambda_sp must be a finite number.* not 'big'"),
    "a seed that is none": (changed(seed="a"), "seed must be a whole number of at least 0, not 'a'"),
    "a method by half": (changed(method="caf"), "Did you mean caf-ewc or caf-mas"),
    "a method in capitals": (changed(method="EWC"), "Did you mean ewc"),
    "a strength that it has not": (changed(gamma=1.0), "gamma"),
    "an option that it has not": (changed(options={"fish": 1}), "Did you mean fisher"),
    "twice": (changed(lambda_sp=1.0, options={"lambda_sp": 1.0}), "given twice"),
    "a device that is not": (changed(device="abacus"), "abacus"),
    "a precision that is not": (changed(precision="half"), "precision"),
    "a method that is no name": (changed(method=5), "goes by its name in quotes, not by 5"),
    "options that are none": (changed(options=[1]), "options must be a dictionary"),
    "a share that is none": (changed(validation="a"), "validation is a share"),
    "a rate that is none": (changed(rate="a"), "rate must be a number, not 'a'"),
    "classes that are none": (lambda it: it.fit(X, Y, task="new", classes=5), "classes is a list"),
    "divergence": (changed(rate=1e30), "no longer finite in epoch .* smaller rate"),
    "a task that was never learned": (lambda it: it.predict(X, task="t7"), "There is no task called 't7'"),
    "a score with unseen labels": (lambda it: it.score(X, Y), "label 4"),
    "a score with labels of another task": (lambda it: it.score(*blobs(1), task="t0"), "label 2"),
    "a score with labels of another kind": (
        lambda it: it.score(blobs(0)[0], blobs(0)[1].astype(str)),
        "These labels are strings, and others numbers",
    ),
    "predictions of another shape": (lambda it: it.predict(X[:, :2]), "2 features"),
    "a loader that shuffles": (
        lambda it: it.predict(DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), shuffle=True)),
        "Set shuffle=False",
    ),
    "NaN in predictions": (lambda it: it.predict(NAN), "NaN"),
    "a reading that is none": (lambda it: it.accuracy_matrix("both"), "named or inferred"),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def learned() -> ContinualLearner:
    return taught(2, epochs=2)


@pytest.mark.parametrize("what", REFUSALS)
def test_refused(what: str, learned: ContinualLearner) -> None:
    settings, known = learned.get_params(), learned.knowledge_
    before = learned.predict_proba(blobs(0)[0])
    ask, words = REFUSALS[what]
    try:
        with pytest.raises(KenyonError, match=words) as caught:
            ask(learned)
    finally:
        learned.set_params(**settings)
    assert isinstance(caught.value, (ValueError, TypeError))  # as scikit-learn's conventions have it
    assert learned.knowledge_ is known
    assert np.array_equal(learned.predict_proba(blobs(0)[0]), before)


def test_a_learner_begun_anew_in_vain_is_as_it_was() -> None:
    learner = ContinualLearner(method="ewc", epochs=1, device="cpu").fit(X, Y)
    before = learner.predict_proba(X)
    with pytest.raises(KenyonError, match="one class only"):
        learner.fit(X[:, :2], np.zeros(60))
    assert learner.n_features_in_ == 6 and np.array_equal(learner.predict_proba(X), before)


def test_methods_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of who works in Python, not of the command line."""

    def own_needy(lambda_sp: Strength, lam: Strength, mu: Strength = 1.0) -> Method:
        return Method(fisher_published(), (StabilityProtection(lam),))

    monkeypatch.setitem(METHODS, "own-needy", MethodSpec("own-needy", "", own_needy))
    learner = ContinualLearner(method="own-needy", epochs=1, device="cpu")
    with pytest.raises(SettingError, match=r'needs lambda_sp, lam: .* lambda_sp=VALUE, options={"lam": VALUE}'):
        learner.fit(X, Y, task="t")
    learner.set_params(lambda_sp=1.0)
    with pytest.raises(SettingError, match=r'needs lam: give it with options={"lam": VALUE}\.'):
        learner.fit(X, Y, task="t")
    learner.set_params(options={"lam": 2.0}).fit(X, Y, task="t").save(tmp_path / "it")
    assert ContinualLearner.load(tmp_path / "it").tasks_ == ["t"]
    monkeypatch.delitem(METHODS, "own-needy")
    with pytest.raises(SettingError, match=r"no method called 'own-needy'.* import the module that defines it first"):
        ContinualLearner.load(tmp_path / "it")


class Moody(nn.Module):
    """As many features as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(x)
        return features if len(x) == 2 else features[:, :4]


def test_a_backbone_that_changes_its_output_size() -> None:
    with pytest.raises(ValueError, match="8 features at first and 4 now"):
        ContinualLearner(Moody(), method="ewc", epochs=1, device="cpu").fit(X, Y)


def test_images_of_bytes_stay_so() -> None:
    pixels = (np.arange(20 * 16) % 251).astype(np.uint8).reshape(20, 1, 4, 4)
    learner = ContinualLearner(method="ewc", epochs=1, device="cpu").fit(pixels, np.arange(20) % 2, task="one")
    with pytest.raises(KenyonError, match="floating-point numbers; those that were learned are images of bytes"):
        learner.predict(pixels / 255)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(x)
        return found.mean(1)


def test_tokens_that_the_backbone_does_not_know() -> None:
    words = np.arange(60).reshape(20, 3) % 5
    learner = ContinualLearner(Tokens(), method="ewc", epochs=1, device="cpu")
    for strange in (words + 1, words - 1):
        with pytest.raises(KenyonError, match=r"A token lies outside of the backbone's nn\.Embedding"):
            learner.fit(strange, np.arange(20) % 2, task="t")
    learner.fit(words, np.arange(20) % 2, task="t")
    with pytest.raises(KenyonError, match="A token lies outside"):
        learner.predict(words + 1)
