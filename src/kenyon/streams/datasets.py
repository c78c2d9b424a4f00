"""Streams from datasets of other libraries: PyTorch's, Hugging Face's, and benchmarks of Avalanche.

All are read into memory, sample by sample, with the transformations that they come with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from kenyon.errors import DataError, optional_import
from kenyon.streams.arrays import as_pool, from_arrays, moments
from kenyon.streams.cuts import Cut, Domains, Times
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
    parts = {part: pairs(some, f"{name}: {part}") for part, some in given.items()}
    return _joined(parts, by, test, normalise, ordered, name)


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
    the share that the seed draws. `by`: a cut, or the column that says the domain. Else as `from_arrays`.
    """
    told = name or (dataset if isinstance(dataset, str) else "hugging-face")
    if isinstance(dataset, str):
        dataset = _hub().load_dataset(dataset)
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    if "train" not in splits:
        raise DataError(f"{told} has the splits {', '.join(splits)}, and none called train. Give one of them.")
    used = [split for split in ("train", "test", "validation") if split in splits]
    rows = {split: list(splits[split]) for split in used}
    columns = [x, y, *([by] if isinstance(by, str) else [])]
    for split, some in rows.items():
        missing = [column for column in columns if some and column not in some[0]]
        if missing:
            raise DataError(f"{told}: {split} has the columns {', '.join(some[0])}, and no {missing[0]}.")
    parts = {split: ([row[x] for row in some], [row[y] for row in some]) for split, some in rows.items()}
    cut = Domains([row[by] for some in rows.values() for row in some]) if isinstance(by, str) else by
    return _joined(parts, cut, test, normalise, ordered, told)


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


def _joined(
    parts: Mapping[str, tuple[list[Any], list[Any]]],
    by: Cut | None,
    share: Any,
    normalise: bool,
    ordered: bool,
    name: str,
) -> Source:
    """One pool of all parts; what each is for is given where there is a part for tests."""
    if isinstance(by, Times) and len(parts) > 1:
        raise DataError(
            f"{name}: Times cuts one sequence of samples, and test or validation samples are apart here. Say with "
            "Domains which part each belongs to."
        )
    purpose = np.repeat(list(parts), [len(labels) for _, labels in parts.values()])
    return from_arrays(
        stacked([sample for samples, _ in parts.values() for sample in samples], name),
        [label for _, labels in parts.values() for label in labels],
        by,
        test=purpose == "test" if "test" in parts else share,
        validation=purpose == "validation" if "validation" in parts else None,
        normalise=normalise,
        ordered=ordered,
        name=name,
    )


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
    """(N, ...). Pictures of Pillow become bytes with the channel first."""
    if not samples:
        raise DataError(f"{name} has no samples.")
    each = [_array(sample) for sample in samples]
    strange = next((i for i, one in enumerate(each) if one.shape != each[0].shape), None)
    if strange is not None:
        raise DataError(
            f"{name}: sample {strange} has the shape {each[strange].shape} and the first {each[0].shape}. Bring them "
            "to one size."
        )
    return as_pool(np.stack(each))


def _array(sample: Any) -> Any:
    if isinstance(sample, Tensor):
        return sample.detach().cpu().numpy()
    found = np.asarray(sample)
    if hasattr(sample, "getbands"):  # a picture
        return found[None] if found.ndim == 2 else np.moveaxis(found, -1, 0)
    return found


def _hub() -> Any:
    with optional_import("A dataset of the Hub", "hf", "datasets"):
        import datasets
    return datasets
