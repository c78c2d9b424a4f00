"""Labels as they come, as one array of numbers or strings, and the classes that they name.

What inputs look like, learned from the first task: their shape and kind, and how they are centred and scaled.

The tasks to come are not known yet and those before are gone, so it stays as it is.

Data as they come (arrays, tensors, tables, datasets, loaders, folders) as one tensor of inputs and their labels.

Everything is read whole into memory. What scikit-learn checks of arrays (shapes, numbers that are finite, names of
columns) it checks here too.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from kenyon.estimator.errors import InputError, InputTypeError, SettingError
from kenyon.estimator.settings import whole
from kenyon.training.device import require_memory
from kenyon.utils.files import is_folder

Labels = npt.NDArray[Any]


def as_labels(labels: Any) -> Labels:
    """(N,): bool, int64, floats or strings."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    elif hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()  # whole numbers of a table's own kind would become floats below
    elif isinstance(labels, (list, tuple)) and labels and all(isinstance(label, Integral) for label in labels):
        labels = np.array(labels, dtype=object)  # and large ones of Python's too
    found = column_or_1d(labels, warn=True)
    if found.dtype.kind == "O":
        found = _of_one_kind(found)
    if found.dtype.kind in "iu":
        found = _as_int64(found)
    check_classification_targets(found)
    if found.dtype.kind not in "biufU":
        raise InputError(f"Labels are numbers or strings; these are {found.dtype}. Turn them into strings.")
    return found


def _of_one_kind(labels: Labels) -> Labels:
    """Objects as what they are."""
    for kind in (str, (bool, np.bool_), Integral, Real):
        if all(isinstance(label, kind) for label in labels):
            return _as_int64(labels) if kind is Integral else np.array(labels.tolist())
    kinds = sorted({type(label).__name__ for label in labels})
    raise InputError(
        f"Unknown label type: labels are numbers or strings, all of one kind; these are {', '.join(kinds)}. Leave "
        "out samples whose label is missing, and turn the others into strings."
    )


def _as_int64(labels: Labels) -> Labels:
    """Whole numbers as one kind of them, so that those of all tasks go together."""
    within = np.iinfo(np.int64)
    ends = (int(end(labels, initial=0)) for end in (np.min, np.max))
    strange = next((label for label in ends if not within.min <= label <= within.max), None)
    if strange is not None:
        raise InputError(
            f"The label {strange} does not fit into whole numbers of 64 bits (int64). Turn labels into strings."
        )
    return labels.astype(np.int64)


def classes_of(labels: Labels, named: Any = None, *, known: Labels | None = None) -> Labels:
    """The classes of a task, sorted: those named, or those there are. `known`: those of the tasks before."""
    classes = np.unique(labels) if named is None else _named(named)
    _check_together(classes, np.unique(labels) if known is None else known)
    if len(classes) < 2:
        raise InputError(
            f"The task has one class only, {classes[0].item()!r}, and there is nothing to tell apart. "
            "A task needs samples of at least two classes."
        )
    return classes


def same_classes(known: Labels, named: Any = None) -> Labels:
    """Those of a task that shares its head with the tasks before, whose classes are `known`."""
    if named is not None:
        classes = _named(named)
        _check_together(classes, known)
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
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:  # what makes no array of labels
        raise InputError(f"classes is a list of the task's labels: {error}") from error
    raise InputError(f"classes is a list of the task's labels, not {shown(classes)}.")


def counted(labels: Labels, classes: Labels, what: str) -> Tensor:
    """Labels as places among the classes, from 0."""
    _check_together(np.unique(labels), classes)
    new = np.setdiff1d(labels, classes)
    if len(new):
        raise InputError(
            f"{what} samples have the label {new[0].item()!r}, which is none of those learned: "
            f"{', '.join(map(repr, classes.tolist()))}. Classes that come later are named at first (classes=...)."
        )
    return torch.from_numpy(np.searchsorted(classes, labels))


def _check_together(some: Labels, others: Labels) -> None:
    """That all stay what they are in one array. Whole numbers become floats beside floats, and large ones merge."""
    mine, theirs = _kind(some), _kind(others)
    if mine != theirs:
        raise InputError(f"These labels are {mine}, and others {theirs}. Give all labels as {theirs}.")
    changed = {*some.tolist(), *others.tolist()} - set(np.concatenate([some, others]).tolist())
    if changed:
        raise InputError(
            f"Labels were given as {others.dtype} and now as {some.dtype}, and {min(changed)!r} is not the same as "
            "both. Give those of all tasks as whole numbers of 64 bits (int64), or as strings."
        )


def _kind(labels: Labels) -> str:
    return "strings" if labels.dtype.kind == "U" else "numbers"


Kind = Literal["bytes", "floats", "tokens"]
DTYPES: dict[Kind, torch.dtype] = {"bytes": torch.uint8, "floats": torch.float32, "tokens": torch.int64}
WORDS: dict[torch.dtype, str] = {
    torch.uint8: "images of bytes (uint8, 0 to 255)",
    torch.float32: "floating-point numbers",
    torch.int64: "whole numbers (tokens)",
}


@dataclass(frozen=True)
class Form:
    """`mean` and `std` are along the first axis of a sample, the columns of a table or the channels of anything else;
    those of images of bytes are of pixels from 0 to 1. Both are empty where inputs are taken as they are.
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
        """Of a sample as the network sees it."""
        return torch.int64 if self.kind == "tokens" else torch.float32

    def check(self, inputs: Tensor) -> Tensor:
        """The same inputs, if they are of this form."""
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


def arrived(
    owner: BaseEstimator, data: Any, labels: Any = None, *, first: bool, tokens: bool, side: int | None
) -> tuple[Tensor, Labels | None]:
    """Inputs (N, *shape): uint8 images (N, C, H, W), int64 tokens or float32; and labels (N,), if there are any.

    `owner` is told what it will be held to (features and their names) where it is the `first` time, and held to it
    elsewhere; `tokens`: whole numbers are meant as such; `side`: of images that are read from folders.
    """
    try:
        if labels is None and (isinstance(data, tuple) or _is_pair(data)):
            if len(data) != 2:
                raise InputError(f"A tuple of data is (inputs, labels); this one has {len(data)} parts.")
            data, labels = data
        if isinstance(data, (str, Path, Dataset, DataLoader)):
            if labels is not None:
                raise InputError("A Dataset, a DataLoader or a folder brings its own labels. Leave y out.")
            data, labels = _folder(Path(data), side) if isinstance(data, (str, Path)) else _items(data)
        with np.errstate(over="ignore", invalid="ignore"):  # what is infinite in single precision is refused as such
            inputs = _inputs(owner, data, first=first, tokens=tokens)
            found = None if labels is None else as_labels(labels)
    except (InputError, SettingError):
        raise
    except DataError as error:
        raise InputError(str(error)) from error
    except (TypeError, ValueError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(_told(str(error), data)) from error
    except KenyonError:
        raise
    except MemoryError as error:
        raise InputError(
            f"There is no memory for these data ({_first_line(error)}). Give fewer at a time."
        ) from error
    except Exception as error:  # tensors without data, nested ones, and arrays that only seem to be some
        told = f"These data make no array of numbers: {_first_line(error)}."
        raise InputError(f"{told} Give arrays or tensors of numbers.") from error
    if found is not None and len(found) != len(inputs):
        raise InputError(
            f"There are {len(inputs)} samples and {len(found)} labels: inconsistent numbers of samples. "
            "Give one label a sample."
        )
    return inputs, found


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def _is_pair(data: Any) -> bool:
    """Whether a list is [inputs, labels], and not two samples, which would be of one shape."""
    if not (isinstance(data, list) and len(data) == 2 and all(hasattr(part, "ndim") for part in data)):
        return False
    return bool(data[0].ndim > 1 and data[1].ndim == 1 and len(data[0]) == len(data[1]))


def _told(error: str, data: Any) -> str:
    """What to do about data that make no array of finite numbers, where that can be told, and what NumPy or
    scikit-learn said of them.
    """
    first = error.partition("\n")[0]
    if "contains NaN" in first:
        fill = "Fill in what is missing (sklearn.impute.SimpleImputer), or leave" if " X " in first else "Leave"
        return f"{first} {fill} such samples out."
    advice = _advice(data)
    return f"{advice} ({first[:160].rstrip('.')}{'...' if len(first) > 160 else ''})" if advice else error


def _advice(data: Any) -> str:
    if hasattr(data, "columns") and hasattr(data, "dtypes"):  # a table
        columns = [str(name) for name, kind in zip(data.columns, data.dtypes, strict=True) if not _numeric(kind)]
        if columns:
            return (
                f"X has columns that are not numbers: {', '.join(columns)}. Make numbers of them, for instance with "
                "sklearn.preprocessing.OneHotEncoder, or leave them out."
            )
    if isinstance(data, list) and data and isinstance(data[0], (tuple, list)) and len(data[0]) == 2:
        return "X seems to be a list of pairs (sample, label). Give a list of samples, and y."
    if hasattr(data, "__next__"):
        return "X is an iterator. Give arrays, or a torch.utils.data.DataLoader of (inputs, labels)."
    return ""


def _numeric(kind: Any) -> bool:
    """Whether a column's dtype, NumPy's or a table's own, is one of numbers."""
    return getattr(kind, "kind", "O") in "biuf"


def _inputs(owner: BaseEstimator, data: Any, *, first: bool, tokens: bool) -> Tensor:
    if isinstance(data, Tensor):
        data = data.detach().cpu()
        narrow = data.is_floating_point() and data.dtype not in (torch.float32, torch.float64)
        data = (data.float() if narrow else data).numpy()
    shape = getattr(data, "shape", ())
    if isinstance(shape, tuple):  # a view may be larger than any memory
        require_memory(torch.device("cpu"), 4 * prod(shape))
    many = getattr(data, "ndim", 2) > 2
    if many:
        array = check_array(data, dtype=None, ensure_2d=False, allow_nd=True, input_name="X")
    else:
        array = validate_data(owner, data, reset=first, dtype=None if tokens else np.float32)
    if array.dtype == np.uint8 and array.ndim == 4:
        check_channels("X", array.shape)
        return as_tensor(array)
    if tokens and np.issubdtype(array.dtype, np.integer):
        return as_tensor(np.ascontiguousarray(array, dtype=np.int64))
    if many:
        array = check_array(array, dtype=np.float32, ensure_2d=False, allow_nd=True, input_name="X")
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _items(data: Dataset[Any] | DataLoader[Any]) -> tuple[Tensor, Any]:
    """The samples of a dataset or the batches of a loader, one after another."""
    if not isinstance(data, DataLoader):
        samples, labels = sample_pairs(data, "The dataset")
        return stack_samples(samples, "The dataset"), labels
    batches = list(data)
    if not batches:
        raise InputError("The loader has no samples (0 samples): at least one is needed.")
    if not all(isinstance(batch, (tuple, list)) and len(batch) == 2 for batch in batches):
        raise InputError("A DataLoader must give batches (inputs, labels).")
    inputs, found = ([batch[part] for batch in batches] for part in (0, 1))
    return torch.cat([torch.as_tensor(some) for some in inputs]), np.concatenate([np.asarray(some) for some in found])


def _folder(path: Path, side: int | None) -> tuple[Tensor, Any]:
    """The images of a folder of classes, and their classes."""
    if not is_folder(path):
        raise InputError(f"There is no folder {shown(str(path))}. Give one with a folder of images for each class.")
    if side is None:
        raise InputError(f"How large shall the images of {path} be? Say so: ContinualLearner(..., side=32).")
    images = ImageFiles.of(path)
    folders = images.folders
    if {"train", "test"} <= {place[0].lower() for place in folders if place}:
        raise InputError(f"{path} has folders for train and test. Give {path / 'train'}, and the other as test=...")
    strange = next((name for name, place in zip(images.names, folders, strict=True) if len(place) != 1), None)
    if strange is not None:
        raise InputError(f"{path} must hold its images in a folder for each class, as CLASS/image, not as {strange}.")
    return images.scaled(whole("side", side, 1)), np.array([place[0] for place in folders])
