"""Data as they come (arrays, tensors, tables, datasets, loaders, folders) as one tensor of inputs and their labels.

Everything is read whole into memory. What scikit-learn checks of arrays (shapes, numbers that are finite, names of
columns) it checks here too.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kenyon.errors import DataError, KenyonError, shown
from kenyon.estimator.errors import InputError, InputTypeError, SettingError
from kenyon.estimator.labels import Labels, as_labels
from kenyon.estimator.settings import whole
from kenyon.files import is_folder
from kenyon.streams.arrays import as_tensor
from kenyon.streams.datasets import pairs, stacked
from kenyon.streams.image_folders import ImageFiles
from kenyon.streams.pool import check_channels
from kenyon.train.device import require_memory


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
        samples, labels = pairs(data, "The dataset")
        return stacked(samples, "The dataset"), labels
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
