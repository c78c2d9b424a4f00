"""Batches of a user's loader, cut anew to the size that a definition of importance asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from kenyon.errors import ConfigError, DataError

# (model, a batch as the loader gives it, on the model's device) -> logits (B, C) and labels (B,)
Predict = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


def inputs_and_labels(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """What a batch (inputs, labels, ...) says, when the model takes the inputs alone and gives logits."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise ConfigError(
            f"A batch is taken to be (inputs, labels), and the loader gives a {type(batch).__name__}. Say with "
            "predict=... how logits and labels come from the model and a batch."
        )
    logits = model(batch[0])
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"{type(model).__name__} gives a {type(logits).__name__} and no logits. Say with predict=... how logits "
            "and labels come from the model and a batch."
        )
    return logits, batch[1]


def recut(loader: Iterable[Any], size: int, device: torch.device) -> Iterator[list[Any]]:
    """The samples of a loader in their order, in batches of `size` but for the last.

    A batch is a list of parts: one, unless it has samples of several of the loader's batches that differ in shape,
    as those of sequences do that are padded batch by batch.
    """
    if isinstance(loader, Dataset):
        raise ConfigError("Importance is measured on batches, and this is a dataset. Give DataLoader(dataset, 32).")
    parts: list[Any] = []
    for batch in loader:
        batch = _each(lambda part: part.to(device), batch)
        if _length(batch) == 0:
            continue
        if parts and _alike(parts[-1], batch):
            parts[-1] = _each(lambda *tensors: torch.cat(tensors), parts[-1], batch)
        else:
            parts.append(batch)
        while sum(map(_length, parts)) >= size:
            whole, parts = _divided(parts, size)
            yield whole
    if parts:
        yield parts


def _divided(parts: list[Any], size: int) -> tuple[list[Any], list[Any]]:
    """The first `size` samples, and the others."""
    first: list[Any] = []
    for number, part in enumerate(parts):
        length = _length(part)
        if length >= size:
            rest = [_cut(part, size, length)] if length > size else []
            return [*first, _cut(part, 0, size)], [*rest, *parts[number + 1 :]]
        first.append(part)
        size -= length
    return first, []


def _each(change: Callable[..., Any], *trees: Any) -> Any:
    """Tuples, lists and mappings of tensors, with every tensor changed; of several, those at one place together."""
    first = trees[0]
    if isinstance(first, Tensor):
        return change(*trees)
    if isinstance(first, Mapping):
        return {key: _each(change, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_each(change, *parts) for parts in zip(*trees, strict=True)))
    if isinstance(first, (tuple, list)):
        return type(first)(_each(change, *parts) for parts in zip(*trees, strict=True))
    raise DataError(
        f"A batch holds a {type(first).__name__}. Importance is measured on batches of tensors, or tuples, lists and "
        "dictionaries of them: let the loader give those."
    )


def _length(batch: Any) -> int:
    lengths: set[int] = set()
    _each(lambda part: lengths.add(len(part) if part.ndim else 0), batch)
    if len(lengths) != 1:
        raise DataError(f"The parts of a batch have {sorted(lengths)} samples. All need the same number.")
    return lengths.pop()


def _cut(batch: Any, start: int, stop: int) -> Any:
    return _each(lambda part: part[start:stop], batch)


def _alike(one: Any, other: Any) -> bool:
    """Whether two batches differ in nothing but their values and their number of samples."""
    try:
        same: list[bool] = []
        _each(lambda a, b: same.append(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype), one, other)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Batches of the loader differ in their parts ({type(error).__name__}: {error}). Let it give batches of "
            "one kind."
        ) from error
    return all(same)
