"""Streams from datasets of other libraries: PyTorch's, and benchmarks of Avalanche. Those of Hugging Face are in
`hugging_face`.

All are read into memory, sample by sample, with the transformations that they come with.

Streams from datasets of Hugging Face.

Columns of numbers are read from Arrow's own memory in the type that they have there, pictures are decoded batch by
batch. A dataset with a transformation of its own is read row by row, as it gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from kenyon.data.arrays import Cut, Domains, Times, as_pool, from_arrays, moments, numbered
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
    """A `torch.utils.data.Dataset` of (sample, label). `test`: another dataset, or the share that the seed draws;
    `validation`: another dataset. Domains are those of all samples: of `dataset`, then of `test`, then of
    `validation`. Else as `from_arrays`.
    """
    given = {"train": dataset} | ({} if isinstance(test, float) else {"test": test})
    given |= {} if validation is None else {"validation": validation}
    parts = {}
    for part, some in given.items():
        samples, labels = pairs(some, f"{name}: {part}")
        parts[part] = stacked(samples, f"{name}: {part}"), labels
    return joined(parts, by, test, normalise, ordered, name)


def from_avalanche(benchmark: Any, *, normalise: bool = True, name: str = "avalanche") -> Source:
    """A benchmark of Avalanche: its experiences are the tasks, in their order, each with the classes it has.

    Where all experiences have the same classes they share one head. Every experience of the training stream needs one
    of the test stream.
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
            some, theirs = pairs(experience.dataset, f"{name}: experience {number + 1}")
            samples += some
            labels += theirs
            part += [number] * len(some)
            tested += [is_test] * len(some)
    pool = stacked(samples, name)
    check_pool(name, pool)
    numbers, names = numbered(labels)
    parts, mask = torch.tensor(part), torch.tensor(tested)
    classes = [tuple(numbers[parts == p].unique().tolist()) for p in range(len(train))]
    poor = next((p for p, mine in enumerate(classes) if len(mine) < 2), None)
    if poor is not None:
        raise DataError(f"{name}: experience {poor + 1} has one class only. A task needs two or more to tell apart.")
    mean, std = moments(pool[~mask], normalise)
    return Source(
        name,
        pool,
        numbers,
        mask,
        names,
        tuple(Group(f"experience {p + 1}", mine, fixed=True, part=p) for p, mine in enumerate(classes)),
        mean,
        std,
        part=parts,
        heads="shared" if len(set(classes)) == 1 and len(classes) > 1 else "task",
    )


def joined(
    parts: Mapping[str, tuple[Tensor, Any]],
    by: Cut | None,
    share: Any,
    normalise: bool,
    ordered: bool,
    name: str,
    classes: Sequence[str] | None = None,
) -> Source:
    """One pool of all parts; what each is for is given where there is a part for tests."""
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
    """Of all parts; pictures in color where those of any part are."""
    if len(pools) == 1:
        return pools[0]
    pictures = all(pool.dtype == torch.uint8 and pool.ndim == 4 for pool in pools)
    if pictures and len({pool.shape[1] for pool in pools}) > 1 and max(pool.shape[1] for pool in pools) <= 4:
        pools = [torch.from_numpy(np.ascontiguousarray(in_color(pool.numpy()))) for pool in pools]
    start = 0
    for pool in pools:
        if pool.shape[1:] != pools[0].shape[1:]:
            raise unequal(name, start, tuple(pool.shape[1:]), tuple(pools[0].shape[1:]))
        start += len(pool)
    return torch.cat(pools)


def pairs(dataset: Any, what: str) -> tuple[list[Any], list[Any]]:
    """The samples and the labels of a dataset; whatever else its items have is left out."""
    in_turn = isinstance(dataset, IterableDataset)
    try:
        items: Iterable[Any] = dataset if in_turn else (dataset[i] for i in range(len(dataset)))
        pairs = [(item[0], item[1]) for item in items]
    except (TypeError, LookupError) as error:
        length = "" if in_turn else "a length and "
        raise DataError(
            f"{what} must have {length}items (sample, label): {type(error).__name__}: {error}."
        ) from error
    return [x for x, _ in pairs], [y.item() if hasattr(y, "item") else y for _, y in pairs]


def stacked(samples: Sequence[Any], name: str) -> Tensor:
    """(N, ...). Pictures of Pillow become bytes with the channel first: grey, or in color where any is."""
    if not samples:
        raise DataError(f"{name} has no samples.")
    each = [_array(sample, f"{name}: sample {i}") for i, sample in enumerate(samples)]
    if all(_is_picture(sample) for sample in samples) and len({len(picture) for picture in each}) > 1:
        each = [in_color(picture) for picture in each]
    strange = next((i for i, one in enumerate(each) if one.shape != each[0].shape), None)
    if strange is not None:
        raise unequal(name, strange, each[strange].shape, each[0].shape)
    return as_pool(np.stack(each))


def unequal(name: str, sample: int, shape: tuple[int, ...], first: tuple[int, ...]) -> DataError:
    """The error for a sample that has another shape than the first."""
    return DataError(f"{name}: sample {sample} has the shape {shape} and the first {first}. Bring them to one size.")


def in_color(pictures: Any) -> Any:
    """(..., C, H, W) of 1 to 4 channels with 3: grey ones repeated, and without an alpha channel."""
    channels = pictures.shape[-3]
    if channels >= 3:
        return pictures[..., :3, :, :]
    return np.repeat(pictures[..., :1, :, :], 3, axis=-3)


def _array(sample: Any, what: str) -> Any:
    if isinstance(sample, Tensor):
        return sample.detach().cpu().numpy()
    return _bytes_of(sample, what) if _is_picture(sample) else np.asarray(sample)


def _is_picture(sample: Any) -> bool:
    return hasattr(sample, "getbands")


def _bytes_of(picture: Any, what: str) -> Any:
    """(C, H, W) uint8 of a picture of Pillow: 1 channel, 2 (with alpha), 3 or 4."""
    try:
        found = np.asarray(as_bytes(picture))
    except UnfitError as problem:
        raise DataError(f"{what} {problem}.") from None
    return found[None] if found.ndim == 2 else np.moveaxis(found, -1, 0)


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
