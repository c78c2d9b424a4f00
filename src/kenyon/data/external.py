"""Streams from datasets of other libraries: PyTorch, Avalanche and Hugging Face.

Datasets are read into memory, sample by sample, with their own transforms. Of Hugging Face, columns of numbers are
read from the memory of Arrow in their own type, and pictures are decoded batch by batch; a dataset with a transform
is read row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from kenyon.data.arrays import Cut, Domains, Times, as_pool, encode_labels, from_arrays, moments, to_numpy
from kenyon.data.sources import Group, Source
from kenyon.data.tasks import check_pool
from kenyon.datasets.images import UnfitError, as_bytes
from kenyon.errors import DataError, optional_import


def from_dataset(
    dataset: Any,
    by: Cut | None = None,
    *,
    test: Any = 0.2,
    validation: Any = None,
    normalise: bool = True,
    ordered: bool = False,
    name: str = "dataset",
) -> Source:
    """Return a source of a `torch.utils.data.Dataset` of (sample, label).

    `test`: another dataset, or the share that the seed draws; `validation`: another dataset. `Domains` takes those of
    all samples: of `dataset`, then of `test`, then of `validation`. Else as `from_arrays`.
    """
    given = {"train": dataset} | ({} if isinstance(test, float) else {"test": test})
    given |= {} if validation is None else {"validation": validation}
    parts = {}
    for part, split in given.items():
        samples, labels = sample_pairs(split, f"{name}: {part}")
        parts[part] = stack_samples(samples, f"{name}: {part}"), labels
    return _join(parts, by, test, normalise, ordered, name)


def from_avalanche(benchmark: Any, *, normalise: bool = True, name: str = "avalanche") -> Source:
    """Return a source of a benchmark of Avalanche: its experiences are the tasks, in their order.

    Experiences with the same classes share one head. Every experience of the training stream needs one of the test
    stream.
    """
    train, test = (list(getattr(benchmark, stream)) for stream in ("train_stream", "test_stream"))
    if len(train) != len(test):
        raise DataError(
            f"{name}: there are {len(train)} experiences to learn and {len(test)} to test. Make a benchmark with a "
            "test for every experience."
        )
    samples: list[Any] = []
    labels: list[int] = []
    part: list[int] = []
    tested: list[bool] = []
    for is_test, stream in ((False, train), (True, test)):
        for number, experience in enumerate(stream):
            new_samples, new_labels = sample_pairs(experience.dataset, f"{name}: experience {number + 1}")
            samples += new_samples
            labels += new_labels
            part += [number] * len(new_samples)
            tested += [is_test] * len(new_samples)
    pool = stack_samples(samples, name)
    check_pool(name, pool)
    numbers, names = encode_labels(labels)
    parts, mask = torch.tensor(part), torch.tensor(tested)
    classes = [tuple(numbers[parts == p].unique().tolist()) for p in range(len(train))]
    single = next((p for p, present in enumerate(classes) if len(present) < 2), None)
    if single is not None:
        raise DataError(
            f"{name}: experience {single + 1} has one class only. A task needs two or more to tell apart."
        )
    mean, std = moments(pool[~mask], normalise)
    return Source(
        name,
        pool,
        numbers,
        mask,
        names,
        tuple(Group(f"experience {p + 1}", present, fixed=True, part=p) for p, present in enumerate(classes)),
        mean,
        std,
        part=parts,
        heads="shared" if len(set(classes)) == 1 and len(classes) > 1 else "task",
    )


def _join(
    parts: Mapping[str, tuple[Tensor, Any]],
    by: Cut | None,
    share: Any,
    normalise: bool,
    ordered: bool,
    name: str,
    classes: Sequence[str] | None = None,
) -> Source:
    """Return a source of parts named train, test and validation; without a part test, the seed draws a share."""
    if isinstance(by, Times) and len(parts) > 1:
        raise DataError(
            f"{name}: Times cuts one sequence of samples, and test or validation samples are apart here. Say with "
            "Domains which part each belongs to."
        )
    purpose = np.repeat(list(parts), [len(labels) for _, labels in parts.values()])
    return from_arrays(
        _one_pool([pool for pool, _ in parts.values()], name),
        [label for _, labels in parts.values() for label in labels],
        by,
        test=purpose == "test" if "test" in parts else share,
        validation=purpose == "validation" if "validation" in parts else None,
        normalise=normalise,
        ordered=ordered,
        name=name,
        classes=classes,
    )


def _one_pool(pools: list[Tensor], name: str) -> Tensor:
    """Concatenate pools; pictures are in color if those of any pool are."""
    if len(pools) == 1:
        return pools[0]
    pictures = all(pool.dtype == torch.uint8 and pool.ndim == 4 for pool in pools)
    if pictures and len({pool.shape[1] for pool in pools}) > 1 and max(pool.shape[1] for pool in pools) <= 4:
        pools = [torch.from_numpy(np.ascontiguousarray(in_color(pool.numpy()))) for pool in pools]
    start = 0
    for pool in pools:
        if pool.shape[1:] != pools[0].shape[1:]:
            raise _unequal(name, start, tuple(pool.shape[1:]), tuple(pools[0].shape[1:]))
        start += len(pool)
    return torch.cat(pools)


def sample_pairs(dataset: Any, what: str) -> tuple[list[Any], list[Any]]:
    """Return the samples and the labels of a dataset; further entries of its items are left out."""
    iterable = isinstance(dataset, IterableDataset)
    try:
        items: Iterable[Any] = dataset if iterable else (dataset[i] for i in range(len(dataset)))
        pairs = [(item[0], item[1]) for item in items]
    except (TypeError, LookupError) as error:
        length = "" if iterable else "a length and "
        raise DataError(
            f"{what} must have {length}items (sample, label): {type(error).__name__}: {error}."
        ) from error
    return [x for x, _ in pairs], [y.item() if hasattr(y, "item") else y for _, y in pairs]


def stack_samples(samples: Sequence[Any], name: str) -> Tensor:
    """Return samples as a pool (N, ...). Pictures of Pillow become bytes (N, C, H, W), in color if any is."""
    if not samples:
        raise DataError(f"{name} has no samples.")
    arrays = [_array(sample, f"{name}: sample {i}") for i, sample in enumerate(samples)]
    if all(_is_picture(sample) for sample in samples) and len({len(picture) for picture in arrays}) > 1:
        arrays = [in_color(picture) for picture in arrays]
    other = next((i for i, array in enumerate(arrays) if array.shape != arrays[0].shape), None)
    if other is not None:
        raise _unequal(name, other, arrays[other].shape, arrays[0].shape)
    return as_pool(np.stack(arrays))


def _unequal(name: str, sample: int, shape: tuple[int, ...], first: tuple[int, ...]) -> DataError:
    """Return the error for a sample of another shape than the first."""
    return DataError(f"{name}: sample {sample} has the shape {shape} and the first {first}. Bring them to one size.")


def in_color(pictures: Any) -> Any:
    """Return pictures (..., C, H, W) of 1 to 4 channels with 3: grey is repeated, an alpha channel is dropped."""
    channels = pictures.shape[-3]
    if channels >= 3:
        return pictures[..., :3, :, :]
    return np.repeat(pictures[..., :1, :, :], 3, axis=-3)


def _array(sample: Any, what: str) -> Any:
    return _picture_array(sample, what) if _is_picture(sample) else to_numpy(sample)


def _is_picture(sample: Any) -> bool:
    return hasattr(sample, "getbands")


def _picture_array(picture: Any, what: str) -> Any:
    """Return a picture of Pillow as (C, H, W) uint8, with 1 channel, 2 (with alpha), 3 or 4."""
    try:
        array = np.asarray(as_bytes(picture))
    except UnfitError as problem:
        raise DataError(f"{what} {problem}.") from None
    return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)


# ---------------------------------------------------------------------- Hugging Face

BATCH_ROWS = 256  # rows that are read at once
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
    """Return a source of a dataset of Hugging Face (`pip install 'kenyon[hf]'`), or of its name in the Hub.

    `x` and `y` are columns. The splits train, test and validation are used as such; of a single split, `test` is the
    share that the seed draws. `by`: a cut, or the column of the domain. Pictures and arrays of bytes are images, and
    classes have the names that the dataset gives them; a cut may use names or numbers. Else as `from_arrays`.
    """
    if isinstance(dataset, str):
        name, dataset = name or dataset, _hub().load_dataset(dataset)
    name = name or "hugging-face"
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    if "train" not in splits:
        raise DataError(f"{name} has the splits {', '.join(splits)}, and none called train. Give one of them.")
    cut, domain = (None, [by]) if isinstance(by, str) else (by, [])
    parts: dict[str, tuple[Tensor, Array]] = {}
    domains: list[Array] = []
    classes: Sequence[str] | None = None
    for split in (split for split in ("train", "test", "validation") if split in splits):
        pool, values = read_columns(splits[split], [x, y, *domain], f"{name}: {split}")
        parts[split] = pool, values[0]
        domains += values[1:]
        classes = classes or class_names(splits[split], y)
    return _join(parts, Domains(np.concatenate(domains)) if domain else cut, test, normalise, ordered, name, classes)


def class_names(split: Any, column: str) -> Sequence[str] | None:
    """Return the names of the classes that a column counts, or None if the dataset has none."""
    names = getattr((getattr(split, "features", None) or {}).get(column), "names", None)
    return None if names is None else list(names)


def read_columns(split: Any, columns: Sequence[str], what: str) -> tuple[Tensor, list[Array]]:
    """Return the samples of the first column as a pool, and the values of the others, (N,) each."""
    if not hasattr(split, "with_format") or _transformed(split):
        rows = list(split)
        _check_columns(rows[0] if rows else columns, columns, what)
        values = [np.asarray([row[column] for row in rows]) for column in columns[1:]]
        return stack_samples([row[columns[0]] for row in rows], what), values
    _check_columns(split.column_names or next(iter(split)), columns, what)
    split, samples = split.select_columns(list(columns)), columns[0]
    pictures = type((split.features or {}).get(samples)).__name__ == "Image"
    others: list[list[Array]] = [[] for _ in columns[1:]]

    def batches() -> Iterator[Array]:
        """Yield samples, and collect the others in the same pass: a second one may have another order of rows."""
        for batch in split.with_format(None if pictures else "arrow").iter(batch_size=BATCH_ROWS):
            for column, collected in zip(columns[1:], others, strict=True):
                collected.append(
                    np.asarray(batch[column]) if pictures else _values(batch[column], f"{what}: {column}")
                )
            if pictures:
                yield stack_samples(batch[samples], what).numpy()
            else:
                yield _values(batch[samples], f"{what}: {samples}")

    pool = as_pool(_concatenate(batches(), len(split) if hasattr(split, "__len__") else None, what))
    return pool, [np.concatenate(collected) for collected in others]


def _transformed(split: Any) -> bool:
    """Return True if the dataset has a transform of the user's."""
    return dict(getattr(split, "format", None) or {}).get("type") == "custom"


def _check_columns(present: Iterable[str], columns: Sequence[str], what: str) -> None:
    missing = next((column for column in columns if column not in present), None)
    if missing is not None:
        raise DataError(f"{what} has the columns {', '.join(present)}, and no {missing}.")


def _concatenate(batches: Iterable[Array], total: int | None, what: str) -> Array:
    """Concatenate batches, into memory that is allocated once if the number of samples is known."""
    if total is None:
        parts = list(batches)
        batches, total = iter(parts), sum(map(len, parts))
    pool: Array | None = None
    start = 0
    for batch in batches:
        if pool is None:
            pool = np.empty((total, *batch.shape[1:]), batch.dtype)
        if batch.shape[1:] != pool.shape[1:] and _channels_differ(batch, pool):
            if pool.shape[1] != 3:  # grey so far, or with an alpha channel
                pool = in_color(pool)
            batch = in_color(batch)
        if batch.shape[1:] != pool.shape[1:]:
            raise _unequal(what, start, batch.shape[1:], pool.shape[1:])
        pool[start : start + len(batch)] = batch
        start += len(batch)
    if pool is None:
        raise DataError(f"{what} has no samples.")
    return pool


def _channels_differ(one: Array, other: Array) -> bool:
    """Return True if two arrays of pictures differ in their number of channels alone."""
    pictures = one.dtype == other.dtype == np.uint8 and one.ndim == other.ndim == 4
    return pictures and one.shape[2:] == other.shape[2:] and max(one.shape[1], other.shape[1]) <= 4


def _values(column: Any, what: str) -> Array:
    """Return a column of Arrow, numbers or nested lists of equal lengths, as an array (N, ...) of the same type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    shape = [len(array)]
    while True:
        array = getattr(array, "storage", array)  # of an extension type
        if array.null_count:
            raise DataError(f"{what} has values that are missing. Leave such rows out, or fill them in.")
        if not (
            pa.types.is_list(array.type)
            or pa.types.is_large_list(array.type)
            or pa.types.is_fixed_size_list(array.type)
        ):
            return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)
        lengths = pc.list_value_length(array).to_numpy()
        other = np.flatnonzero(lengths != lengths[0])
        if len(other):
            raise DataError(
                f"{what} has lists of unequal lengths, such as {lengths[0]} and {lengths[other[0]]}. Bring all "
                "samples to one shape."
            )
        shape.append(int(lengths[0]))
        array = array.flatten()


def _hub() -> Any:
    with optional_import("A dataset of the Hub", "hf", "datasets"):
        import datasets
    return datasets
