"""The estimator: the loop's own numbers, whatever form the data have, and both readings of a score."""

from __future__ import annotations

import copy
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import kenyon
from kenyon import ContinualLearner, KenyonError, metrics
from kenyon.data.tasks import Split, Stream
from kenyon.estimator import InputError, NothingLearnedError, SettingError
from kenyon.estimator.knowledge import PastTask
from kenyon.methods import METHODS, find_method
from kenyon.training import Trainer, Training
from kenyon.utils.threads import single_precision
from tests.estimator.small import blobs, quick, taught


def test_the_numbers_are_those_of_a_trainer_that_knew_all_tasks() -> None:
    """From arrays that arrive one by one to the same weights, bit for bit."""
    learner = quick(method="caf-ewc", learners=3)
    for t in range(3):
        learner.fit(*blobs(t), task=f"t{t}", validation=blobs(t + 10, labels=(2 * t, 2 * t + 1)), test=blobs(t))
    known = learner.knowledge_
    inputs, tasks, start = [], [], 0
    for t in range(3):
        parts = []
        for x, y in (blobs(t), blobs(t + 10, labels=(2 * t, 2 * t + 1)), blobs(t)):
            inputs.append(torch.from_numpy(x))
            parts.append((torch.arange(start, start + len(x)), torch.from_numpy(y - 2 * t)))
            start += len(x)
        tasks.append(parts)
    pool = torch.cat(inputs)
    met = tuple(
        PastTask(f"t{t}", ("a", "b"), *(Split(pool, *part) for part in parts)) for t, parts in enumerate(tasks)
    )
    stream = Stream("whole", 0, met, known.form.mean, known.form.std)
    method = find_method("caf-ewc")(find_method("caf-ewc").defaults)
    trainer = Trainer(known.net, [stream], method, Training(epochs=4, batch=16, rate=1e-2))
    trainer.run()
    assert torch.equal(trainer.theta, known.tensors["theta"])
    assert torch.equal(trainer.importance, known.tensors["importance"])
    matrix = np.array([record["accuracy"][0] for record in trainer.position.records])
    seen = np.tril(np.ones((3, 3), dtype=bool))
    assert np.allclose(learner.accuracy_matrix()[seen], matrix[seen])


def test_all_forms_of_data_teach_the_same(tmp_path: Path) -> None:
    x, y = blobs(0)
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    forms = [
        (x, y),
        (x.tolist(), y.tolist()),
        (x.astype(np.float64), y.astype(np.int8)),
        tensors,
        (TensorDataset(*tensors), None),
        (DataLoader(TensorDataset(*tensors), batch_size=7), None),
        ((x, y), None),
        ([x, y], None),
    ]
    said = [quick(epochs=1).fit(*form, task="one").predict_proba(x) for form in forms]
    assert all(np.array_equal(one, said[0]) for one in said)


def test_tables_keep_their_columns() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = blobs(0)
    table = pandas.DataFrame(x, columns=list("abcdef"))
    learner = quick(epochs=1).fit(table, pandas.Series(y), task="one")
    assert learner.feature_names_in_.tolist() == list("abcdef")
    assert np.array_equal(learner.predict_proba(table), quick(epochs=1).fit(x, y, task="one").predict_proba(x))
    assert learner.readings(table, pandas.Series(y), task="one").named == learner.score(table, pandas.Series(y))
    with pytest.raises(ValueError, match="feature names"):
        learner.predict(table[list("bacdef")])


def test_names_of_columns_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data read from a table have no names, of which scikit-learn warns; here that is an error."""

    class Table(np.ndarray):  # type: ignore[type-arg]
        """Stands in for one of pandas."""

    names = np.array(list("abcdef"), dtype=object)
    monkeypatch.setattr(
        "sklearn.utils.validation._get_feature_names", lambda data: names if isinstance(data, Table) else None
    )
    x, y = blobs(0)
    plain, learner = (quick(epochs=1).fit(form, y, task="one") for form in (x, x.view(Table)))
    assert learner.feature_names_in_.tolist() == list("abcdef")
    assert learner.score(x.view(Table), y) == learner.score(x.view(Table), y, task="one") == plain.score(x, y)
    assert learner.readings(x.view(Table), y, task="one") == plain.readings(x, y, task="one")


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for place in ("one/dark", "one/light", "both/train/x", "both/test/x"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 120, (6, 6, 3), dtype=np.uint8) + (120 if "light" in place else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    learner = quick(side=4, epochs=20).fit(tmp_path / "one", task="one", test=tmp_path / "one")
    assert learner.classes_.tolist() == ["dark", "light"] and learner.knowledge_.form.shape == (3, 4, 4)
    assert learner.score(str(tmp_path / "one"), task="one") == learner.accuracy_matrix()[0, 0] / 100 == 1.0
    with pytest.raises(KenyonError, match="train and test"):
        learner.fit(tmp_path / "both", task="both")


def test_classes_of_a_folder_are_those_of_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def draw(folder: Path) -> None:
        folder.mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (6, 6), (len(folder.name) * 20, 0, number)).save(folder / f"{number}.png")

    pets, cats = tmp_path / "pets", tmp_path / "cats"
    for folder in (pets / "cat", pets / "donkey", pets / ".ipynb_checkpoints", cats / "cat"):
        draw(folder)
    (pets / "empty").mkdir()
    learner = quick(side=np.int64(4), epochs=1).fit(pets, task="pets", test=cats)
    assert learner.classes_.tolist() == ["cat", "donkey"]
    assert learner.predict_proba(cats).shape == (8, 2) and len(learner.predict(cats, task="pets")) == 8
    assert learner.score(cats, task="pets") == learner.accuracy_matrix()[0, 0] / 100
    with pytest.raises(InputError, match="one class only, 'cat'"):
        learner.fit(cats, task="cats")
    for folder, strange in ((cats / "cat", "0.png"), (tmp_path, "cats/cat/0.png")):
        with pytest.raises(InputError, match=f"in a folder for each class, as CLASS/image, not as {strange}"):
            learner.predict(folder)
    with pytest.raises(SettingError, match="side must be a whole number of at least 1, not 0"):
        learner.set_params(side=0).predict(cats)


def test_images_of_bytes_and_of_numbers_agree() -> None:
    """Both are centred and scaled, so that a factor of 255 makes no difference but rounding."""
    x, y = blobs(0, shape=(1, 4, 4))
    pixels = np.clip(x * 20 + 128, 0, 255).astype(np.uint8)
    as_bytes, as_floats = (quick(epochs=2).fit(form, y, task="one") for form in (pixels, pixels.astype(np.float32)))
    said = as_bytes.predict_proba(pixels), as_floats.predict_proba(pixels.astype(np.float32))
    assert np.allclose(*said, atol=1e-4)
    assert as_bytes.knowledge_.pool.dtype == torch.uint8


@pytest.mark.parametrize("name", sorted(n for n in METHODS if find_method(n).schedule not in ("joint", "restart")))
def test_every_method_learns_and_answers(name: str) -> None:
    learner = quick(method=name, learners=2 if find_method(name).multi else None, epochs=1)
    for task in range(2):
        learner.fit(*blobs(task, size=20), task=f"t{task}")
    said = learner.predict_proba(blobs(0)[0])
    assert said.shape == (60, 4) and np.allclose(said.sum(1), 1)


@pytest.mark.parametrize("name", ["joint", "joint-caf", "random-init"])
def test_methods_that_cannot_grow_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"one by one|keeps nothing"):
        quick(method=name).fit(*blobs(0))


def test_both_readings() -> None:
    learner = taught(3, epochs=10)
    x, y = blobs(0)
    found = learner.readings(x, y, task="t0")
    assert found.named == learner.score(x, y, task="t0") == np.mean(learner.predict(x, task="t0") == y)
    assert found.inferred == learner.score(x, y) == np.mean(learner.predict(x) == y) <= found.named
    assert found.task == np.mean(learner.predict_task(x) == "t0") >= found.inferred
    for reading, share in (("named", found.named), ("inferred", found.inferred)):
        matrix = learner.accuracy_matrix(reading)  # type: ignore[arg-type]
        assert matrix[-1, 0] == pytest.approx(100 * share)
        assert np.isnan(matrix[np.triu_indices(3, 1)]).all() and not np.isnan(matrix[np.tril_indices(3)]).any()
        lost = learner.forgetting(reading)  # type: ignore[arg-type]
        assert list(lost) == ["t0", "t1"]
        assert np.mean(list(lost.values())) == pytest.approx(-metrics.backward_transfer(matrix))


def test_labels_may_be_strings_and_tasks_may_share_them() -> None:
    learner = quick(epochs=10)
    for task, labels in enumerate((("cat", "dog"), ("dog", "horse", "cow"))):
        learner.fit(*blobs(task, labels=labels), task=f"t{task}")
    assert learner.classes_.tolist() == ["cat", "cow", "dog", "horse"]
    x, y = blobs(1, labels=("dog", "horse", "cow"))
    assert set(learner.predict(x, task="t1")) <= {"dog", "horse", "cow"}
    assert learner.score(x, y, task="t1") > 0.9
    assert learner.predict_proba(x).shape == (60, 4)


def test_one_head_for_all_times() -> None:
    learner = quick(heads="shared", epochs=10)
    for month in range(3):
        x, y = blobs(0)
        learner.fit(x + month, y + 5, task=f"month {month}", test=(x + month, y + 5), classes=[5, 6, 7])
    assert learner.classes_.tolist() == [5, 6, 7] and learner.predict_proba(x).shape == (60, 3)
    assert np.array_equal(learner.predict(x), learner.predict(x, task="month 0"))  # the task need not be named
    found = learner.readings(x, y + 5, task="month 1")
    assert found.named == found.inferred and np.isnan(found.task)
    learner.fit(x[::2], y[::2] + 5, task="a month with one class", classes=[7, 5, 6])
    for others in ([7, 8, 9], [5, 6], ["5", "6", "7"]):
        with pytest.raises(InputError, match=r"same classes: 5, 6, 7; now classes names .* Leave|and others numbers"):
            learner.partial_fit(x, y + 5, classes=others)
    with pytest.raises(KenyonError, match="told apart"):
        learner.predict_task(x)
    with pytest.raises(KenyonError, match=r"label 8.*named at first"):
        learner.fit(x, y + 7, task="a month with another class")


def test_tokens() -> None:
    """Whole numbers are looked up where the backbone has a layer that does, and are measures elsewhere."""
    backbone = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 8), nn.ReLU())
    words = np.random.default_rng(0).integers(0, 9, (40, 5))
    y = (words[:, 0] > 4).astype(int)
    learner = quick(backbone=backbone, epochs=20, validation=0.0).fit(words, y, task="one")
    assert learner.score(words, y, task="one") > 0.9
    assert learner.knowledge_.form.kind == "tokens"
    assert quick(epochs=1).fit(words, words[:, 0] > 4).knowledge_.form.kind == "floats"


def test_what_fit_without_a_task_means() -> None:
    learner = quick(epochs=1).fit(*blobs(0))
    assert learner.tasks_ == ["unnamed"]
    again = learner.predict_proba(blobs(0)[0])
    assert np.array_equal(learner.fit(*blobs(0)).predict_proba(blobs(0)[0]), again)  # starts over, as in scikit-learn
    learner.fit(*blobs(1), task="more")
    with pytest.raises(ValueError, match="start over"):
        learner.fit(*blobs(2))
    assert learner.tasks_ == ["unnamed", "more"]


def test_what_arrives_together_is_a_task() -> None:
    learner = quick(epochs=1).partial_fit(*blobs(0)).partial_fit(*blobs(1))
    assert learner.tasks_ == ["1", "2"]
    named = quick(epochs=1).fit(*blobs(0), task="1").fit(*blobs(1), task="2")
    assert np.array_equal(learner.predict_proba(blobs(1)[0]), named.predict_proba(blobs(1)[0]))
    after = quick(epochs=1).fit(*blobs(0), task="2").partial_fit(*blobs(1))
    assert after.tasks_ == ["2", "3"]  # the next number that is free


def test_parameters_and_clones() -> None:
    learner = taught(1, lambda_sp=7.0)
    fresh = clone(learner)
    assert fresh.get_params()["lambda_sp"] == 7.0
    with pytest.raises(NothingLearnedError, match="not fitted"):
        fresh.predict(blobs(0)[0])
    learner.set_params(epochs=1, rate=1e-3, validation=0.0, lambda_sp=2.0)
    learner.fit(*blobs(1), task="other regime")
    assert learner.tasks_ == ["t0", "other regime"]


def test_the_same_seed_the_same_numbers_and_the_global_generator_untouched() -> None:
    state = torch.random.get_rng_state()
    one, other, third = taught(), taught(), taught(seed=5)
    x = blobs(0)[0]
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))
    assert not np.array_equal(one.predict_proba(x), third.predict_proba(x))
    assert torch.equal(state, torch.random.get_rng_state())


def test_doubles_by_default_elsewhere_change_nothing(tmp_path: Path) -> None:
    def mine() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU())

    x = blobs(0)[0]
    for backbone in (None, mine):
        expected = taught(2, method="caf-ewc", epochs=1, backbone=backbone).predict_proba(x)
        torch.set_default_dtype(torch.float64)
        try:
            learner = taught(2, method="caf-ewc", epochs=1, backbone=backbone)
            learner.save(tmp_path / "it")
            again = ContinualLearner.load(tmp_path / "it", backbone, device="cpu")
            assert np.array_equal(again.predict_proba(x), expected)
            assert learner.export(tmp_path / "it.pt2").difference < 1e-5
            assert torch.get_default_dtype() == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_it_tells_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    learner = quick(verbose=True, epochs=2)
    learner.fit(*blobs(0), task="cats", test=blobs(0)).fit(*blobs(1), task="dogs")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("cats: 2 classes") and "1 tasks tested" in first and "with the task named" in first
    assert second.startswith("dogs: 2 classes")


def test_the_package_offers_it() -> None:
    assert kenyon.ContinualLearner is ContinualLearner
    assert "kenyon.estimator" in sys.modules


def test_labels_of_any_kind_that_is_one() -> None:
    x, y = blobs(0)
    words = np.array(["zero", "one"])
    for labels, kind in (
        (y.astype(object), "i"),
        (y.astype(bool).astype(object), "b"),
        (y.astype(float).astype(object), "f"),
        (words[y].astype(object), "U"),
    ):
        said = quick(epochs=2).fit(x, labels).predict(x)
        assert said.dtype.kind == kind and set(said.tolist()) <= set(labels.tolist())


LARGE = 2**60 + 1, 2**60 + 2  # as floats they are one


def test_whole_numbers_of_all_kinds_go_together() -> None:
    learner = quick(epochs=1)
    for task, labels in enumerate((np.array(LARGE), np.array([3, 5], np.uint64), np.array([5, 7], np.int8))):
        x, y = blobs(task, labels=(0, 1))
        learner.fit(x, labels[y], task=f"t{task}")
    assert learner.classes_.tolist() == [3, 5, 7, *LARGE] and learner.classes_.dtype == np.int64
    assert np.allclose(learner.predict_proba(x).sum(1), 1)
    assert set(learner.predict(x, task="t0").tolist()) <= set(LARGE)


def test_numbers_that_would_merge_are_refused() -> None:
    x, y = blobs(0)
    large, small = np.array(LARGE)[y], y.astype(np.float64)
    for first, second in ((large, small), (small, large)):
        learner = quick(epochs=1).fit(x, first, task="one")
        with pytest.raises(InputError, match=r"is not the same as both\. Give those of all tasks as whole numbers"):
            learner.fit(x, second, task="two")
    with pytest.raises(InputError, match="is not the same as both"):
        quick(epochs=1).fit(x, large, task="one").score(x, large.astype(np.float64))
    for labels in ([2**63, 1], [2**70, 1], [-(2**63) - 1, 1], np.array([2**63, 1], np.uint64)):
        with pytest.raises(InputError, match=r"does not fit into whole numbers of 64 bits.*strings"):
            quick(epochs=1).fit(x, [labels[i] for i in y], task="one")


def test_an_iterable_dataset_is_read_whole() -> None:
    x, y = blobs(0)

    class InTurn(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return zip(torch.from_numpy(x), y.tolist(), strict=True)

    given, whole = (quick(epochs=2) for _ in range(2))
    given.fit(InTurn(), task="t")
    whole.fit(x, y, task="t")
    assert np.array_equal(given.predict_proba(x), whole.predict_proba(x))


def test_numbers_of_numpy_are_settings(tmp_path: Path) -> None:
    x, y = blobs(0)
    learner = quick(epochs=np.int64(2), rate=np.float32(1e-3), seed=np.int32(1)).fit(x, y, task="t")
    learner.save(tmp_path / "it.safetensors")
    again = ContinualLearner.load(tmp_path / "it.safetensors", device="cpu")
    assert again.get_params()["epochs"] == 2 and np.array_equal(again.predict_proba(x), learner.predict_proba(x))


def test_a_learner_with_a_layer_under_two_names_can_be_copied() -> None:
    layer = nn.Linear(6, 6)
    learner = quick(backbone=nn.Sequential(layer, nn.ReLU(), layer)).fit(*blobs(0), task="t0")
    other = copy.deepcopy(learner)
    assert np.array_equal(other.predict(blobs(0)[0]), learner.predict(blobs(0)[0]))


def test_threads_that_ask_together_leave_the_default_type_as_it_was() -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with single_precision():
            entered.set()
            leave.wait(60)

    torch.set_default_dtype(torch.float64)
    try:
        thread = threading.Thread(target=first)
        thread.start()
        assert entered.wait(60)
        with single_precision():
            leave.set()
            thread.join()
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_where_nothing_was_tested_that_is_said() -> None:
    learner = quick(epochs=1)
    learner.fit(*blobs(0), task="t0")
    with pytest.warns(UserWarning, match=r"No task came with test samples.*test=\(X, y\)"):
        assert np.isnan(learner.accuracy_matrix()).all()


@pytest.mark.parametrize("method", ["ewc", "caf-ewc"])
def test_a_batch_is_no_larger_than_the_data(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked for: buffers are of the data's size, and the numbers those of one batch with all samples."""
    from kenyon.training import engine

    sizes: list[int] = []
    loader = engine.Loader

    class Seen(loader):  # type: ignore[misc, valid-type]
        def __init__(self, fleet: object, batch: int, *more: Any, **options: Any) -> None:
            sizes.append(batch)
            super().__init__(fleet, batch, *more, **options)

    monkeypatch.setattr(engine, "Loader", Seen)
    whole, more, most = (quick(method=method, batch=batch).fit(*blobs(0)) for batch in (60, 61, 2**60))
    assert set(sizes) == {60}
    for other in (more, most):
        assert torch.equal(other.knowledge_.tensors["theta"], whole.knowledge_.tensors["theta"])
    # By a plain sum over the samples, wherever they lie: those of a batch with as much room again.
    monkeypatch.setattr(engine, "min", lambda batch, data: batch, raising=False)
    roomy = quick(method=method, batch=120).fit(*blobs(0))
    assert sizes[-1] == 120
    assert torch.allclose(roomy.knowledge_.tensors["theta"], whole.knowledge_.tensors["theta"], atol=1e-6)
