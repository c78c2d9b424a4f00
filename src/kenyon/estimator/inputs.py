"""Data of any kind (arrays, tensors, tables, datasets, loaders, folders) as a tensor of inputs and an array of
labels.

Data are read whole into memory. Arrays are checked as scikit-learn checks them: shapes, finite numbers, names of
columns. The first task fixes the form of inputs: their shape and kind, and how they are centred and scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kenyon.data.arrays import as_tensor, moments
from kenyon.data.external import sample_pairs, stack_samples
from kenyon.data.folders import ImageFiles
from kenyon.data.tasks import check_channels
from kenyon.errors import DataError, KenyonError, shown
from kenyon.estimator.errors import InputError, InputTypeError, SettingError, whole
from kenyon.training.device import require_memory
from kenyon.utils.files import is_folder

Labels = npt.NDArray[Any]


# ---------------------------------------------------------------------- labels


def as_labels(labels: Any) -> Labels:
    """Return labels (N,) as bool, int64, floats or strings."""
    array = column_or_1d(_label_array(labels), warn=True)
    if array.dtype.kind == "O":
        array = _of_one_kind(array)
    if array.dtype.kind in "iu":
        array = _as_int64(array)
    check_classification_targets(array)
    if array.dtype.kind not in "biufU":
        raise InputError(f"Labels are numbers or strings; these are {array.dtype}. Turn them into strings.")
    return array


@singledispatch
def _label_array(labels: Any) -> Any:
    """Return labels in a container in which whole numbers stay what they are, also those of tables."""
    return labels.to_numpy() if hasattr(labels, "to_numpy") else labels


@_label_array.register
def _(labels: Tensor) -> Any:
    return labels.detach().cpu().numpy()


@_label_array.register(list)
@_label_array.register(tuple)
def _(labels: Any) -> Any:
    return np.array(labels, dtype=object) if labels and _all_of(labels, Integral) else labels


def _all_of(labels: Iterable[Any], kind: Any) -> bool:
    return all(issubclass(present, kind) for present in set(map(type, labels)))


def _of_one_kind(labels: Labels) -> Labels:
    """Return an array of objects in the dtype of their kind."""
    for kind in (str, (bool, np.bool_), Integral, Real):
        if _all_of(labels, kind):
            return _as_int64(labels) if kind is Integral else np.array(labels.tolist())
    kinds = sorted({type(label).__name__ for label in labels})
    raise InputError(
        f"Unknown label type: labels are numbers or strings, all of one kind; these are {', '.join(kinds)}. Leave "
        "out samples whose label is missing, and turn the others into strings."
    )


def _as_int64(labels: Labels) -> Labels:
    """Return whole numbers as int64, so that those of all tasks have one dtype."""
    limits = np.iinfo(np.int64)
    extremes = (int(end(labels, initial=0)) for end in (np.min, np.max))
    outside = next((label for label in extremes if not limits.min <= label <= limits.max), None)
    if outside is not None:
        raise InputError(
            f"The label {outside} does not fit into whole numbers of 64 bits (int64). Turn labels into strings."
        )
    return labels.astype(np.int64)


def task_classes(labels: Labels, named: Any = None, *, known: Labels | None = None) -> Labels:
    """Return the classes of a task, sorted: named, or those of the labels. `known`: those of earlier tasks."""
    classes = np.unique(labels) if named is None else _named(named)
    _check_comparable(classes, np.unique(labels) if known is None else known)
    if len(classes) < 2:
        raise InputError(
            f"The task has one class only, {classes[0].item()!r}, and there is nothing to tell apart. "
            "A task needs samples of at least two classes."
        )
    return classes


def shared_classes(known: Labels, named: Any = None) -> Labels:
    """Return the classes `known` of tasks that share a head; raise InputError if the named ones differ."""
    if named is not None:
        classes = _named(named)
        _check_comparable(classes, known)
        if not np.array_equal(classes, known):
            raise InputError(
                f"Tasks that share a head have the same classes: {', '.join(map(repr, known.tolist()))}; now classes "
                f"names {', '.join(map(repr, classes.tolist()))}. Leave classes out, or name those of the first task."
            )
    return known


def _named(classes: Any) -> Labels:
    try:
        if np.ndim(classes) == 1 and len(classes):
            return np.unique(as_labels(classes))
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:  # no array of labels
        raise InputError(f"classes is a list of the task's labels: {error}") from error
    raise InputError(f"classes is a list of the task's labels, not {shown(classes)}.")


def class_indices(labels: Labels, classes: Labels, what: str) -> Tensor:
    """Return the index of each label among the classes, (N,) int64."""
    _check_comparable(np.unique(labels), classes)
    new = np.setdiff1d(labels, classes)
    if len(new):
        raise InputError(
            f"{what} samples have the label {new[0].item()!r}, which is none of those learned: "
            f"{', '.join(map(repr, classes.tolist()))}. Classes that come later are named at first (classes=...)."
        )
    return torch.from_numpy(np.searchsorted(classes, labels))


def _check_comparable(labels: Labels, others: Labels) -> None:
    """Raise InputError if labels change in one array with others: with floats, whole numbers become floats, and large
    ones merge.
    """
    kind, other_kind = ("strings" if array.dtype.kind == "U" else "numbers" for array in (labels, others))
    if kind != other_kind:
        raise InputError(f"These labels are {kind}, and others {other_kind}. Give all labels as {other_kind}.")
    changed = {*labels.tolist(), *others.tolist()} - set(np.concatenate([labels, others]).tolist())
    if changed:
        raise InputError(
            f"Labels were given as {others.dtype} and now as {labels.dtype}, and {min(changed)!r} is not the same as "
            "both. Give those of all tasks as whole numbers of 64 bits (int64), or as strings."
        )


# ---------------------------------------------------------------------- form


Kind = Literal["bytes", "floats", "tokens"]
DTYPES: dict[Kind, torch.dtype] = {"bytes": torch.uint8, "floats": torch.float32, "tokens": torch.int64}
WORDS: dict[torch.dtype, str] = {
    torch.uint8: "images of bytes (uint8, 0 to 255)",
    torch.float32: "floating-point numbers",
    torch.int64: "whole numbers (tokens)",
}


@dataclass(frozen=True)
class Form:
    """The form of inputs. `mean` and `std` are along the first axis of a sample, the columns of a table or channels;
    those of images of bytes are of pixels scaled to [0, 1]. Both are empty if inputs are taken as they are.
    """

    kind: Kind
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, inputs: Tensor, *, standardise: bool) -> Form:
        kind = next(kind for kind, dtype in DTYPES.items() if dtype == inputs.dtype)
        return cls(kind, tuple(inputs.shape[1:]), *moments(inputs, standardise))

    @property
    def input_dtype(self) -> torch.dtype:
        """Dtype of a sample at the input of the network."""
        return torch.int64 if self.kind == "tokens" else torch.float32

    def check(self, inputs: Tensor) -> Tensor:
        """Return the inputs; raise InputError if they have another form."""
        shape, dtype = tuple(inputs.shape[1:]), DTYPES[self.kind]
        if shape != self.shape:
            raise InputError(
                f"These samples have the shape {shape}; those that were learned have {self.shape}. "
                "Bring them to that shape, or learn them with another learner."
            )
        if inputs.dtype != dtype:
            raise InputError(
                f"These samples are {WORDS[inputs.dtype]}; those that were learned are {WORDS[dtype]}. "
                "Give the same kind."
            )
        return inputs


# ---------------------------------------------------------------------- samples


def read_samples(
    owner: BaseEstimator, data: Any, labels: Any = None, *, first: bool, tokens: bool, side: int | None
) -> tuple[Tensor, Labels | None]:
    """Return inputs (N, *shape), as uint8 images (N, C, H, W), int64 tokens or float32, and labels (N,), if any.

    `first`: the estimator `owner` notes the features and their names; later calls check them. `tokens`: whole numbers
    are tokens. `side`: size of images from folders, in pixels.
    """
    try:
        data, labels = _inputs_and_labels(data, labels, side)
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 are refused as infinite
            inputs = _as_inputs(owner, data, first=first, tokens=tokens)
            checked = None if labels is None else as_labels(labels)
    except (InputError, SettingError):
        raise
    except DataError as error:
        raise InputError(str(error)) from error
    except TypeError as error:
        raise InputTypeError(_explain(str(error), data)) from error
    except ValueError as error:
        raise InputError(_explain(str(error), data)) from error
    except KenyonError:
        raise
    except MemoryError as error:
        raise InputError(
            f"There is no memory for these data ({_first_line(error)}). Give fewer at a time."
        ) from error
    except Exception as error:  # tensors without data, nested tensors, objects that imitate arrays
        raise InputError(
            f"These data make no array of numbers: {_first_line(error)}. Give arrays or tensors of numbers."
        ) from error
    if checked is not None and len(checked) != len(inputs):
        raise InputError(
            f"There are {len(inputs)} samples and {len(checked)} labels: inconsistent numbers of samples. "
            "Give one label a sample."
        )
    return inputs, checked


@singledispatch
def _inputs_and_labels(data: Any, labels: Any, side: int | None) -> tuple[Any, Any]:
    """Return inputs and labels, read from containers that hold both. Arrays stay as they are."""
    return data, labels


@_inputs_and_labels.register
def _(data: tuple, labels: Any, side: int | None) -> tuple[Any, Any]:  # type: ignore[type-arg]
    if labels is not None:
        return data, labels
    if len(data) != 2:
        raise InputError(f"A tuple of data is (inputs, labels); this one has {len(data)} parts.")
    return _inputs_and_labels(data[0], data[1], side)


@_inputs_and_labels.register
def _(data: list, labels: Any, side: int | None) -> tuple[Any, Any]:  # type: ignore[type-arg]
    """A list may be [inputs, labels], or two samples, which have one shape."""
    pair = labels is None and len(data) == 2 and all(hasattr(part, "ndim") for part in data)
    if pair and data[0].ndim > 1 and data[1].ndim == 1 and len(data[0]) == len(data[1]):
        return _inputs_and_labels(data[0], data[1], side)
    return data, labels


@_inputs_and_labels.register
def _(data: Dataset, labels: Any, side: int | None) -> tuple[Any, Any]:  # type: ignore[type-arg]
    _check_no_labels(labels)
    samples, labels = sample_pairs(data, "The dataset")
    return stack_samples(samples, "The dataset"), labels


@_inputs_and_labels.register
def _(data: DataLoader, labels: Any, side: int | None) -> tuple[Any, Any]:  # type: ignore[type-arg]
    _check_no_labels(labels)
    batches = list(data)
    if not batches:
        raise InputError("The loader has no samples (0 samples): at least one is needed.")
    if not all(isinstance(batch, (tuple, list)) and len(batch) == 2 for batch in batches):
        raise InputError("A DataLoader must give batches (inputs, labels).")
    inputs = torch.cat([torch.as_tensor(batch) for batch, _ in batches])
    return inputs, np.concatenate([np.asarray(batch) for _, batch in batches])


@_inputs_and_labels.register(str)
@_inputs_and_labels.register(Path)
def _(data: str | Path, labels: Any, side: int | None) -> tuple[Any, Any]:
    """The images of a folder of classes, and their classes."""
    _check_no_labels(labels)
    path = Path(data)
    if not is_folder(path):
        raise InputError(f"There is no folder {shown(str(path))}. Give one with a folder of images for each class.")
    if side is None:
        raise InputError(f"How large shall the images of {path} be? Say so: ContinualLearner(..., side=32).")
    images = ImageFiles.of(path)
    folders = images.folders
    if {"train", "test"} <= {place[0].lower() for place in folders if place}:
        raise InputError(f"{path} has folders for train and test. Give {path / 'train'}, and the other as test=...")
    other = next((name for name, place in zip(images.names, folders, strict=True) if len(place) != 1), None)
    if other is not None:
        raise InputError(f"{path} must hold its images in a folder for each class, as CLASS/image, not as {other}.")
    return images.scaled(whole("side", side, 1)), np.array([place[0] for place in folders])


def _check_no_labels(labels: Any) -> None:
    if labels is not None:
        raise InputError("A Dataset, a DataLoader or a folder brings its own labels. Leave y out.")


def _as_inputs(owner: BaseEstimator, data: Any, *, first: bool, tokens: bool) -> Tensor:
    if isinstance(data, Tensor):
        data = data.detach().cpu()
        narrow = data.is_floating_point() and data.dtype not in (torch.float32, torch.float64)
        data = (data.float() if narrow else data).numpy()
    shape = getattr(data, "shape", ())
    if isinstance(shape, tuple):  # a view may be larger than any memory
        require_memory(torch.device("cpu"), 4 * prod(shape))
    several_axes = getattr(data, "ndim", 2) > 2
    if several_axes:
        array = check_array(data, dtype=None, ensure_2d=False, allow_nd=True, input_name="X")
    else:
        array = validate_data(owner, data, reset=first, dtype=None if tokens else np.float32)
    if array.dtype == np.uint8 and array.ndim == 4:
        check_channels("X", array.shape)
        return as_tensor(array)
    if tokens and np.issubdtype(array.dtype, np.integer):
        return as_tensor(np.ascontiguousarray(array, dtype=np.int64))
    if several_axes:
        array = check_array(array, dtype=np.float32, ensure_2d=False, allow_nd=True, input_name="X")
    return torch.from_numpy(np.array(array, dtype=np.float32))


# ---------------------------------------------------------------------- messages


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def _explain(error: str, data: Any) -> str:
    """Return an error of NumPy or scikit-learn on data, with a remedy if the cause is known."""
    first = error.partition("\n")[0]
    if "contains NaN" in first:
        fill = "Fill in what is missing (sklearn.impute.SimpleImputer), or leave" if " X " in first else "Leave"
        return f"{first} {fill} such samples out."
    advice = _advice(data)
    return f"{advice} ({first[:160].rstrip('.')}{'...' if len(first) > 160 else ''})" if advice else error


def _advice(data: Any) -> str:
    if hasattr(data, "columns") and hasattr(data, "dtypes"):  # a table
        dtypes = zip(data.columns, data.dtypes, strict=True)
        columns = [str(name) for name, dtype in dtypes if getattr(dtype, "kind", "O") not in "biuf"]
        if columns:
            return (
                f"X has columns that are not numbers: {', '.join(columns)}. Make numbers of them, for instance with "
                "sklearn.preprocessing.OneHotEncoder, or leave them out."
            )
    if type(data) is list and data and type(data[0]) in (tuple, list) and len(data[0]) == 2:
        return "X seems to be a list of pairs (sample, label). Give a list of samples, and y."
    if hasattr(data, "__next__"):
        return "X is an iterator. Give arrays, or a torch.utils.data.DataLoader of (inputs, labels)."
    return ""
