"""Saved learners: safetensors with a JSON header and a checksum. Loading executes no code.

The architecture of a backbone is code and is not saved: `ContinualLearner.load` takes the backbone again and checks
that every weight fits. Everything else is saved, so that a loaded learner continues with the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kenyon.data.tasks import Split, Stream
from kenyon.errors import KenyonError, ResultsError, shown
from kenyon.estimator.errors import SettingError, as_write_errors
from kenyon.estimator.inputs import Form
from kenyon.estimator.knowledge import Knowledge, PastTask
from kenyon.metrics import Array
from kenyon.models import Net
from kenyon.utils.formats import Formats, tensors_intact, write_tensors
from kenyon.version import __version__

FORMATS = Formats("learner", 1, instead="load another file")
PARTS = ("train", "test")  # the splits of a task that are saved
GIVEN_AGAIN = ("backbone", "device")  # parameters of `load`
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a file, before its network is built."""

    path: Path
    parameters: dict[str, Any]  # of the estimator, without the backbone
    attributes: dict[str, Any]  # of scikit-learn's conventions
    form: Form
    class_counts: tuple[int, ...]
    _head: dict[str, Any]
    _tensors: dict[str, Tensor]

    def knowledge(self, net: Net) -> Knowledge:
        """Return the knowledge of a network with the saved weights."""
        self._check(net)
        head, tensors = self._head, self._tensors
        state = {n.removeprefix("state."): t.to(net.device) for n, t in tensors.items() if n.startswith("state.")}
        labels = tuple(np.array(task["labels"], dtype=task["dtype"]) for task in head["tasks"])
        if any(array.dtype.kind not in "biufU" or np.unique(array).shape != array.shape for array in labels):
            raise ValueError("its labels are none")
        pool, tasks = tensors["pool"], []
        for number, (task, classes) in enumerate(zip(head["tasks"], labels, strict=True)):
            train, test = (
                Split(pool, tensors[f"{part}.{number}.index"], tensors[f"{part}.{number}.labels"]) for part in PARTS
            )
            if any(bool((s.index >= len(pool)).any() or (s.labels >= len(classes)).any()) for s in (train, test)):
                raise ValueError("its samples are elsewhere")
            none = Split(pool, train.index[:0], train.labels[:0])
            tasks.append(PastTask(task["name"], tuple(map(str, classes)), train, none, test))
        seed, heads = head["fixed"]["seed"], head["fixed"]["heads"]
        stream = Stream("arriving", seed, tuple(tasks), self.form.mean, self.form.std, heads=heads)
        matrix, inferred = (_matrix(head[name]) for name in ("matrix", "inferred"))
        if not matrix.shape == inferred.shape == (len(tasks), len(tasks)):
            raise ValueError("its accuracies are not those of its tasks")
        known = Knowledge(net, stream, labels, self.form, state, matrix, inferred, dict(head["fixed"]))
        known.across_tasks(self.form.check(known.examples(1)))  # it predicts
        return known

    def _check(self, net: Net) -> None:
        saved = {name: tuple(shape) for name, shape in self._head["layout"]}
        given = {name: segment.shape for name, segment in net.layout.segments.items()}
        for name in sorted({*saved, *given}):
            if saved.get(name) != given.get(name):
                raise SettingError(
                    f"{self.path} was saved with another backbone: {name} is {_shape(saved.get(name))} there and "
                    f"{_shape(given.get(name))} in this one. Give the backbone that the learner was made with."
                )
        if self._tensors["state.theta"].shape[1:] != (net.layout.size,):
            raise ValueError("its weights do not fit its header")


def save_learner(
    path: Path, known: Knowledge, parameters: dict[str, Any], attributes: dict[str, Any], *, tests: bool
) -> None:
    """Write a learner. `tests`: save the test samples, which later tasks need to measure accuracies. Backbone and
    device are not saved: `load` takes them.
    """
    tensors = {f"state.{name}": tensor for name, tensor in known.tensors.items()}
    kept = [[task.train, task.test if tests else _empty(task.test)] for task in known.stream.tasks]
    used = torch.cat([split.index for splits in kept for split in splits])
    tensors["pool"], start = known.pool[used], 0
    for number, splits in enumerate(kept):
        for part, split in zip(PARTS, splits, strict=True):
            tensors[f"{part}.{number}.index"] = torch.arange(start, start + len(split))
            tensors[f"{part}.{number}.labels"] = split.labels
            start += len(split)
    head = {
        "format": FORMATS.present,
        "kenyon": __version__,
        "parameters": _plain({name: parameters[name] for name in parameters if name not in GIVEN_AGAIN}),
        "attributes": attributes,
        "fixed": _plain(known.fixed),
        "form": asdict(known.form),
        "layout": [(name, segment.shape) for name, segment in known.net.layout.segments.items()],
        "tasks": [
            {"name": name, "labels": labels.tolist(), "dtype": labels.dtype.str}
            for name, labels in zip(known.names, known.labels, strict=True)
        ],
        "matrix": _rows(known.matrix),
        "inferred": _rows(known.inferred),
    }
    with as_write_errors(path):
        write_tensors(path, tensors, {"learner": json.dumps(head)})


def read_learner(path: Path) -> Saved:
    if not path.is_file():
        raise ResultsError(f"There is no file {path}. Give one that `save` has written.")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if "learner" not in metadata:
            raise ResultsError(f"{path} is not a saved learner. Give a file that `save` has written.")
        head = FORMATS.read(json.loads(metadata["learner"]), path)
        if not tensors_intact(path, metadata["checksum"]):
            raise ResultsError(f"{path} is damaged: its checksum is wrong. Take another copy of it.")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    shape, mean, std = (tuple(head["form"][name]) for name in ("shape", "mean", "std"))
    form = Form(head["form"]["kind"], shape, mean, std)
    counts = tuple(len(task["labels"]) for task in head["tasks"])
    return Saved(path, dict(head["parameters"]), dict(head["attributes"]), form, counts, head, tensors)


@contextmanager
def as_damage(path: Path) -> Iterator[None]:
    """Raise any error of a damaged file as ResultsError."""
    try:
        yield
    except KenyonError:
        raise
    except (SafetensorError, OSError, MemoryError, RuntimeError, *DAMAGE) as error:
        raise ResultsError(
            f"{path} cannot be read: it is damaged, or no saved learner ({error}). Take another copy of it."
        ) from error


def _empty(split: Split) -> Split:
    return Split(split.pool, split.index[:0], split.labels[:0])


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as plain JSON values."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        try:
            plain[name] = json.loads(json.dumps(value, default=_as_python))
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"{name} cannot be saved: {error}, and parameters are saved as JSON. Set it to plain numbers or "
                "words with set_params."
            ) from error
    return plain


@singledispatch
def _as_python(value: Any) -> Any:
    """Return a value that JSON does not know as one that it knows."""
    raise TypeError(f"it has {shown(value)}")


_as_python.register(np.generic, np.generic.tolist)
_as_python.register(np.ndarray, np.ndarray.tolist)
_as_python.register(Mapping, dict)


def _rows(matrix: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]


def _matrix(rows: Sequence[Sequence[float | None]]) -> Array:
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(shape)
