"""Streams from datasets of other libraries: PyTorch's, and benchmarks of Avalanche. Those of Hugging Face are in
`hugging_face`.

All are read into memory, sample by sample, with the transformations that they come with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from kenyon.data.images import UnfitError, as_bytes
from kenyon.errors import DataError
from kenyon.streams.arrays import as_pool, from_arrays, moments
from kenyon.streams.cuts import Cut, Times
from kenyon.streams.labels import numbered
from kenyon.streams.pool import check_pool
from kenyon.streams.source import Group, Source


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
