"""Streams from datasets of Hugging Face.

Columns of numbers are read from Arrow's own memory in the type that they have there, pictures are decoded batch by
batch. A dataset with a transformation of its own is read row by row, as it gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kenyon.errors import DataError, optional_import
from kenyon.streams.arrays import as_pool
from kenyon.streams.cuts import Cut, Domains
from kenyon.streams.datasets import in_color, joined, stacked, unequal
from kenyon.streams.source import Source

TOGETHER = 256  # rows that are read at once
Array = npt.NDArray[Any]


def from_hugging_face(
    dataset: Any,
    x: str,
    y: str,
    by: Cut | str | None = None,
    *,
    test: float = 0.2,
    normalise: bool = True,
    ordered: bool = False,
    name: str | None = None,
) -> Source:
    """A dataset of Hugging Face (`pip install 'kenyon[hf]'`), or its name in the Hub; `x` and `y` are its columns.

    Where it has the splits train and test, perhaps validation, they are what they say; of one split alone, `test` is
    the share that the seed draws. `by`: a cut, or the column that says the domain. Pictures and arrays of bytes are
    images, and classes have the names that the dataset gives them; a cut may also number them. Else as `from_arrays`.
    """
    told = name or (dataset if isinstance(dataset, str) else "hugging-face")
    if isinstance(dataset, str):
        dataset = _hub().load_dataset(dataset)
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    if "train" not in splits:
        raise DataError(f"{told} has the splits {', '.join(splits)}, and none called train. Give one of them.")
    used = [split for split in ("train", "test", "validation") if split in splits]
    columns = [x, y, *([by] if isinstance(by, str) else [])]
    parts: dict[str, tuple[Tensor, Array]] = {}
    domains: list[Array] = []
    classes: Sequence[str] | None = None
    for split in used:
        pool, values = read_columns(splits[split], columns, f"{told}: {split}")
        parts[split] = pool, values[0]
        domains += values[1:]
        classes = classes or class_names(splits[split], y)
    cut = Domains(np.concatenate(domains)) if isinstance(by, str) else by
    return joined(parts, cut, test, normalise, ordered, told, classes)


def class_names(split: Any, column: str) -> Sequence[str] | None:
    """The names of the classes that a column counts, where the dataset says them."""
    names = getattr((getattr(split, "features", None) or {}).get(column), "names", None)
    return None if names is None else list(names)


def read_columns(split: Any, columns: Sequence[str], what: str) -> tuple[Tensor, list[Array]]:
    """The samples of the first column as a pool, and the values of the others, (N,) each."""
    if not hasattr(split, "with_format") or _transformed(split):
        rows = list(split)
        _check_columns(rows[0] if rows else columns, columns, what)
        values = [np.asarray([row[column] for row in rows]) for column in columns[1:]]
        return stacked([row[columns[0]] for row in rows], what), values
    _check_columns(split.column_names or next(iter(split)), columns, what)
    split, samples = split.select_columns(list(columns)), columns[0]
    pictures = type((split.features or {}).get(samples)).__name__ == "Image"
    others: list[list[Array]] = [[] for _ in columns[1:]]

    def batches() -> Iterator[Array]:
        """Of samples; in the same pass, since a stream of rows need not have the same order twice."""
        for batch in split.with_format(None if pictures else "arrow").iter(batch_size=TOGETHER):
            for column, found in zip(columns[1:], others, strict=True):
                found.append(np.asarray(batch[column]) if pictures else _values(batch[column], f"{what}: {column}"))
            if pictures:
                yield stacked(batch[samples], what).numpy()
            else:
                yield _values(batch[samples], f"{what}: {samples}")

    pool = as_pool(_gathered(batches(), len(split) if hasattr(split, "__len__") else None, what))
    return pool, [np.concatenate(found) for found in others]


def _transformed(split: Any) -> bool:
    """Whether rows are made by a function of the user's."""
    form = getattr(split, "format", None)
    return isinstance(form, Mapping) and form.get("type") == "custom"


def _check_columns(there: Iterable[str], columns: Sequence[str], what: str) -> None:
    missing = next((column for column in columns if column not in there), None)
    if missing is not None:
        raise DataError(f"{what} has the columns {', '.join(there)}, and no {missing}.")


def _gathered(batches: Iterable[Array], total: int | None, what: str) -> Array:
    """One array of all batches; where their number of samples is known, in memory that is asked for once."""
    if total is None:
        parts = list(batches)
        batches, total = iter(parts), sum(map(len, parts))
    pool: Array | None = None
    start = 0
    for batch in batches:
        if pool is None:
            pool = np.empty((total, *batch.shape[1:]), batch.dtype)
        if batch.shape[1:] != pool.shape[1:] and _channels_differ(batch, pool):
            if pool.shape[1] != 3:  # until now all were grey, or had an alpha channel
                pool = in_color(pool)
            batch = in_color(batch)
        if batch.shape[1:] != pool.shape[1:]:
            raise unequal(what, start, batch.shape[1:], pool.shape[1:])
        pool[start : start + len(batch)] = batch
        start += len(batch)
    if pool is None:
        raise DataError(f"{what} has no samples.")
    return pool


def _channels_differ(one: Array, other: Array) -> bool:
    """Whether two arrays of pictures differ in their number of channels alone."""
    pictures = one.dtype == other.dtype == np.uint8 and one.ndim == other.ndim == 4
    return pictures and one.shape[2:] == other.shape[2:] and max(one.shape[1], other.shape[1]) <= 4


def _values(column: Any, what: str) -> Array:
    """A column of Arrow, numbers or nested lists of them of one length, as an array (N, ...) of the same type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(array)]
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if array.null_count:
            raise DataError(f"{what} has values that are missing. Leave such rows out, or fill them in.")
        if not (
            pa.types.is_list(array.type)
            or pa.types.is_large_list(array.type)
            or pa.types.is_fixed_size_list(array.type)
        ):
            break
        lengths = pc.list_value_length(array).to_numpy()
        other = np.flatnonzero(lengths != lengths[0])
        if len(other):
            raise DataError(
                f"{what} has lists of unequal lengths, such as {lengths[0]} and {lengths[other[0]]}. Bring all "
                "samples to one shape."
            )
        shape.append(int(lengths[0]))
        array = array.flatten()
    found: Array = array.to_numpy(zero_copy_only=False)
    return found.reshape(shape)


def _hub() -> Any:
    with optional_import("A dataset of the Hub", "hf", "datasets"):
        import datasets
    return datasets
