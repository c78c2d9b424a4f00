"""A learner in a file, and as a program without Kenyon."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from kenyon import ContinualLearner, KenyonError
from kenyon.estimator import SettingError
from kenyon.estimator.export import Plain
from kenyon.estimator.settings import default_backbone
from kenyon.utils.formats import write_tensors
from tests.estimator.small import blobs, quick, taught


def mlp(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh())


def said(learner: ContinualLearner) -> Any:
    return np.concatenate([learner.predict_proba(blobs(task)[0]) for task in range(2)])


@pytest.mark.parametrize(
    "method, options",
    [("caf-ewc", {"learners": 2, "gate": True}), ("er", {}), ("icl-mas", {"learners": 2})],
)
def test_what_was_saved_goes_on_as_if_nothing_had_happened(method: str, options: Any, tmp_path: Path) -> None:
    learner = taught(2, method=method, backbone=mlp(), **options)
    learner.save(tmp_path / "it.safetensors")
    back = ContinualLearner.load(tmp_path / "it.safetensors", mlp(), device="cpu")
    assert np.array_equal(said(back), said(learner))
    assert back.tasks_ == learner.tasks_ and np.array_equal(back.classes_, learner.classes_)
    assert np.array_equal(back.accuracy_matrix(), learner.accuracy_matrix(), equal_nan=True)
    mine, theirs = (it.get_params() | {"backbone": None} for it in (learner, back))
    assert mine == theirs and back.n_features_in_ == 6
    for it in (learner, back):
        it.fit(*blobs(2), task="t2", test=blobs(2))
    assert np.array_equal(said(back), said(learner))
    assert np.array_equal(back.accuracy_matrix(), learner.accuracy_matrix(), equal_nan=True)
    assert len(learner.knowledge_.stream.tasks[0].train) == (40 if method == "er" else 0)


def test_strings_and_no_tests(tmp_path: Path) -> None:
    learner = quick(epochs=1).fit(*blobs(0, labels=("tic", "tac")), task="one", test=blobs(0, labels=("tic", "tac")))
    learner.save(tmp_path / "with")
    learner.save(tmp_path / "without", tests=False)
    back = ContinualLearner.load(tmp_path / "without")
    assert back.classes_.tolist() == ["tac", "tic"] and back.classes_.dtype.kind == "U"
    assert (
        len(back.knowledge_.pool) == 0 and (tmp_path / "without").stat().st_size < (tmp_path / "with").stat().st_size
    )
    back.fit(*blobs(1, labels=("a", "b")), task="two")
    assert (
        np.isnan(back.accuracy_matrix()[1]).all() and back.accuracy_matrix()[0, 0] == learner.accuracy_matrix()[0, 0]
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"seed": 7}, "seed was 0"),
        ({"learners": 3}, "learners was 2 .* now it is 3"),
        ({"backbone": mlp(7)}, r"backbone is another .*: 0.weight was \(5, 6\) and is \(7, 6\)"),
        ({"backbone": None}, "backbone is another"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"lambda_sp": -1.0}, "lambda_sp"),
        ({"lambda_sp": torch.tensor(2.0)}, r"lambda_sp cannot be saved: it has tensor\(2"),
        ({"options": {"lambda_sp": torch.tensor(2.0)}}, r"options cannot be saved: it has tensor\(2"),
    ],
)
def test_no_file_is_written_that_could_not_be_loaded(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    learner = taught(1, backbone=mlp(), method="caf-ewc", learners=2, epochs=1).set_params(**changes)
    with pytest.raises(SettingError, match=words):
        learner.save(tmp_path / "it")
    assert not list(tmp_path.iterdir())


def test_parameters_that_json_does_not_know(tmp_path: Path) -> None:
    options = MappingProxyType({"lambda_cpr": np.float32(0.5)})
    learner = quick(method="cpr-ewc", epochs=1, options=options, gate=np.bool_(True), device=torch.device("cpu"))
    learner.fit(*blobs(0), task="t0").set_params(device="a machine far away").save(tmp_path / "it")
    back = ContinualLearner.load(tmp_path / "it", device="cpu")
    assert back.get_params()["options"] == {"lambda_cpr": 0.5} and back.get_params()["gate"] is True
    assert np.array_equal(back.predict_proba(blobs(0)[0]), learner.predict_proba(blobs(0)[0]))


def test_pickles_too() -> None:
    learner = taught(1)
    assert np.array_equal(pickle.loads(pickle.dumps(learner)).predict(blobs(0)[0]), learner.predict(blobs(0)[0]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "it"
    taught(1, backbone=mlp(), epochs=1).save(path)
    return path


def with_head(data: bytes, change: Any) -> bytes:
    """The same file with another header."""
    length = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + length])
    said = json.loads(head["__metadata__"]["learner"])
    change(said)
    head["__metadata__"]["learner"] = json.dumps(said)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def test_files_that_cannot_be_used(saved: Path, tmp_path: Path) -> None:
    data, bad = saved.read_bytes(), tmp_path / "bad"

    def refused(words: str, backbone: nn.Module | None = None) -> None:
        with pytest.raises(KenyonError, match=words):
            ContinualLearner.load(bad, backbone or mlp())

    refused("There is no file")
    for content in (b"", b"nothing of the kind", data[:100], data[:-1]):
        bad.write_bytes(content)
        refused("damaged, or no saved learner")
    bad.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    refused("checksum")
    save_file({"x": torch.zeros(1)}, bad)
    refused("not a saved learner")
    bad.write_bytes(with_head(data, lambda head: head.update(format=99)))
    refused("newer version of Kenyon.*load another file")
    bad.write_bytes(with_head(data, lambda head: head["tasks"].clear()))
    refused("checksum")
    bad.write_bytes(data)
    refused(r"another backbone: 0.bias is \(1, 5\) there and \(1, 7\) in this one", mlp(7))
    refused("another backbone", nn.Sequential(nn.Flatten(), nn.Linear(6, 5)))
    with pytest.raises(KenyonError, match="another backbone"):
        ContinualLearner.load(saved)  # without any


def everywhere(head: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the place of an entry in a header."""
    for key in head if isinstance(head, dict) else range(len(head)) if isinstance(head, list) else ():
        yield (*place, key)
        yield from everywhere(head[key], (*place, key))


def test_headers_that_make_no_sense(saved: Path) -> None:
    """A file with a right checksum, from hands that did not save a learner: an error of ours, or a learner."""
    with safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = file.metadata()["learner"]
    path, refused = saved.with_name("strange"), 0
    for number, place in enumerate(everywhere(json.loads(text))):
        head = json.loads(text)
        inside = head
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = (None, -1, "?", [], {"a": 1})[number % 5]
        write_tensors(path, tensors, {"learner": json.dumps(head)})
        try:
            ContinualLearner.load(path, mlp(), device="cpu").predict(blobs(0)[0])
        except KenyonError:
            refused += 1
    assert refused > number // 2


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_no_changed_byte_goes_unnoticed(saved: Path, data: st.DataObject) -> None:
    whole = saved.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path = saved.with_name("flipped")
    path.write_bytes(flipped)
    with pytest.raises(KenyonError):
        ContinualLearner.load(path, mlp())


@pytest.mark.parametrize(
    "method, options",
    [("caf-ewc", {"learners": 3, "gate": True}), ("icl-ewc", {"learners": 2}), ("discrete", {}), ("ewc", {})],
)
@pytest.mark.parametrize("task", [None, "t1"])
def test_a_learner_is_what_its_definition_says(method: str, options: Any, task: str | None) -> None:
    """Copies of the backbone, a sum, a head: the plain module, written slowly, against the answers."""
    learner = taught(2, method=method, backbone=mlp(), **options)
    x, known = blobs(0)[0], learner.knowledge_
    plain = Plain(known, mlp(), None if task is None else known.index_of(task)).eval()
    with torch.no_grad():
        expected = plain(torch.from_numpy(x)).numpy()
    assert np.allclose(learner.predict_proba(x, task=task), expected, atol=1e-5)


def normed() -> nn.Module:
    """With running statistics, a frozen layer and a constant."""
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    module[3].requires_grad_(False)
    with torch.no_grad():
        module[3].weight.copy_(torch.eye(4))
        module[3].bias.zero_()
    return module


def test_statistics_belong_to_tasks_and_frozen_weights_to_the_backbone(tmp_path: Path) -> None:
    learner = taught(2, backbone=normed(), method="caf-ewc", learners=2)
    x = blobs(0)[0]
    with torch.no_grad():
        expected = Plain(learner.knowledge_, normed(), None).eval()(torch.from_numpy(x)).numpy()
    assert np.allclose(learner.predict_proba(x), expected, atol=1e-5)
    learner.save(tmp_path / "it")
    back = ContinualLearner.load(tmp_path / "it", normed())
    assert np.array_equal(back.predict_proba(x), learner.predict_proba(x))
    other = normed()
    other[3].bias.data.add_(1)
    with pytest.raises(KenyonError, match="frozen"):
        ContinualLearner.load(tmp_path / "it", other)
    with pytest.raises(KenyonError, match="frozen"):
        learner.set_params(backbone=other).fit(*blobs(2), task="t2")


def test_weights_may_be_given_and_backbones_built() -> None:
    module = mlp()
    given = quick(backbone=module, start="given", epochs=1, rate=1e-9).fit(*blobs(0))
    known = given.knowledge_
    assert torch.allclose(
        known.net.layout.view(known.tensors["theta"], "0.weight")[0, 0], module[0].weight, atol=1e-6
    )
    one, other = (quick(backbone=backbone, epochs=1).fit(*blobs(0)) for backbone in (mlp, mlp()))
    assert np.array_equal(one.predict_proba(blobs(0)[0]), other.predict_proba(blobs(0)[0]))


def test_programs_for_torch_export(tmp_path: Path) -> None:
    learner = quick(method="caf-ewc", learners=2, epochs=1)
    for task in range(2):
        pixels = np.clip(blobs(task, shape=(1, 3, 3))[0] * 20 + 128, 0, 255).astype(np.uint8)
        learner.fit(pixels, blobs(task)[1], task=f"t{task}")
    made = learner.export(tmp_path / "deep" / "it.pt2")
    assert made.difference < 1e-5
    answers = torch.export.load(made.path).module()(torch.from_numpy(pixels))
    assert np.allclose(answers.detach().numpy(), learner.predict_proba(pixels), atol=1e-5)
    with pytest.raises(KenyonError, match="pt2"):
        learner.export(tmp_path / "it.exe")
    (tmp_path / "file").write_text("in the way")
    for write in (learner.save, learner.export):
        with pytest.raises(KenyonError, match=r"Cannot write .* elsewhere"):
            write(tmp_path / "file" / "it.pt2")


def test_programs_of_inputs_that_are_taken_as_they_are(tmp_path: Path) -> None:
    """Numbers that are not standardised, and tokens, which never are."""
    plain = taught(2, epochs=1, standardise=False)
    assert plain.export(tmp_path / "numbers.pt2").difference < 1e-5
    words = np.arange(60).reshape(20, 3) % 5
    backbone = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 4))
    reader = quick(backbone=backbone, epochs=1).fit(words, np.arange(20) % 2, task="t")
    assert reader.export(tmp_path / "tokens.pt2", examples=words).difference < 1e-5


def test_onnx(tmp_path: Path) -> None:
    learner = taught(1, backbone=mlp(), epochs=1)
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        with pytest.raises(KenyonError, match=r"kenyon\[onnx\]"):
            learner.export(tmp_path / "it.onnx")
        return
    assert learner.export(tmp_path / "it.onnx", examples=blobs(0)[0]).difference < 1e-5


class Choosing(nn.Module):
    """Its steps depend on the numbers in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(x)
        return features.relu() if bool(x.sum() > 0) else features


def test_what_cannot_become_a_program_is_told(tmp_path: Path) -> None:
    learner = quick(backbone=Choosing(), epochs=1).fit(*blobs(0), task="t")
    with pytest.raises(KenyonError, match=r"cannot make a program of this backbone.*depend on the values"):
        learner.export(tmp_path / "it.pt2")
    assert not list(tmp_path.iterdir())


def test_the_default_backbone_can_be_exported_by_definition() -> None:
    learner = taught(1, epochs=1)
    x = blobs(0)[0]
    with torch.no_grad():
        expected = Plain(learner.knowledge_, default_backbone(6), 0).eval()(torch.from_numpy(x))
    assert np.allclose(learner.predict_proba(x, task="t0"), expected.numpy(), atol=1e-5)
