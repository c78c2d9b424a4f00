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


def recut(loader: Iterable[Any], size: int, device: torch.device) -> Iterator[Any]:
    """The samples of a loader in their order, in batches of `size` but for the last."""
    if isinstance(loader, Dataset):
        raise ConfigError("Importance is measured on batches, and this is a dataset. Give DataLoader(dataset, 32).")
    kept: Any = None
    for batch in loader:
        batch = _each(lambda part: part.to(device), batch)
        kept = batch if kept is None else _joined(kept, batch)
        samples = _length(kept)
        cuts = range(0, samples - samples % size, size)
        for start in cuts:
            yield _cut(kept, start, start + size)
        kept = _cut(kept, len(cuts) * size, samples) if samples % size else None
    if kept is not None:
        yield kept


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


def _joined(one: Any, other: Any) -> Any:
    try:
        return _each(lambda *parts: torch.cat(parts), one, other)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Batches differ in more than their number of samples ({error}), and importance is measured on batches "
            "of a size of its own. Let the loader give samples of one shape."
        ) from error
