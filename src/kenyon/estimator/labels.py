"""Labels as they come, as one array of numbers or strings, and the classes that they name."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from kenyon.errors import shown
from kenyon.estimator.errors import InputError

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
