"""Importances of gradients, measured on a user's model and data.

Batches of the user's loader are regrouped to the size that a definition of importance asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import Dataset

from kenyon.errors import ConfigError, DataError
from kenyon.methods.importance import GradientImportance, mean_cross_entropy
from kenyon.regularizers.parameters import precise, processes, summed

# (model, a batch as the loader gives it, on the model's device) -> logits (B, C) and labels (B,)
Predict = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


def inputs_and_labels(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels of a batch (inputs, labels, ...), for a model that maps inputs to logits."""
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
    """Yield the samples of a loader in their order, in batches of `size`; the last may be smaller.

    A batch is a list of parts: one, unless its samples come from batches of the loader that differ in shape, as
    sequences do that are padded batch by batch.
    """
    if isinstance(loader, Dataset):
        raise ConfigError("Importance is measured on batches, and this is a dataset. Give DataLoader(dataset, 32).")
    parts: list[Any] = []
    for batch in loader:
        batch = _map(batch, change=lambda part: part.to(device))
        if _length(batch) == 0:
            continue
        if parts and _alike(parts[-1], batch):
            parts[-1] = _map(parts[-1], batch, change=lambda *tensors: torch.cat(tensors))
        else:
            parts.append(batch)
        while sum(map(_length, parts)) >= size:
            whole, parts = _divided(parts, size)
            yield whole
    if parts:
        yield parts


def _divided(parts: list[Any], size: int) -> tuple[list[Any], list[Any]]:
    """Split parts into the first `size` samples and the others."""
    first: list[Any] = []
    for number, part in enumerate(parts):
        length = _length(part)
        if length >= size:
            rest = [_cut(part, size, length)] if length > size else []
            return [*first, _cut(part, 0, size)], [*rest, *parts[number + 1 :]]
        first.append(part)
        size -= length
    return first, []


@singledispatch
def _map(batch: Any, *others: Any, change: Callable[..., Any]) -> Any:
    """Map every tensor of nested tuples, lists and mappings; of several batches, those at one place together."""
    raise DataError(
        f"A batch holds a {type(batch).__name__}. Importance is measured on batches of tensors, or tuples, lists and "
        "dictionaries of them: let the loader give those."
    )


@_map.register
def _(batch: Tensor, *others: Any, change: Callable[..., Any]) -> Any:
    return change(batch, *others)


@_map.register
def _(batch: Mapping, *others: Any, change: Callable[..., Any]) -> Any:  # type: ignore[type-arg]
    return {key: _map(batch[key], *(other[key] for other in others), change=change) for key in batch}


@_map.register(tuple)
@_map.register(list)
def _(batch: Any, *others: Any, change: Callable[..., Any]) -> Any:
    make = getattr(type(batch), "_make", type(batch))  # of a named tuple
    return make(_map(*parts, change=change) for parts in zip(batch, *others, strict=True))


def _length(batch: Any) -> int:
    lengths: set[int] = set()
    _map(batch, change=lambda part: lengths.add(len(part) if part.ndim else 0))
    if len(lengths) != 1:
        raise DataError(f"The parts of a batch have {sorted(lengths)} samples. All need the same number.")
    return lengths.pop()


def _cut(batch: Any, start: int, stop: int) -> Any:
    return _map(batch, change=lambda part: part[start:stop])


def _alike(one: Any, other: Any) -> bool:
    """Return True if two batches differ only in values and number of samples."""
    try:
        same: list[bool] = []
        _map(one, other, change=lambda a, b: same.append(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Batches of the loader differ in their parts ({type(error).__name__}: {error}). Let it give batches of "
            "one kind."
        ) from error
    return all(same)


def measured(
    importance: GradientImportance,
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    loader: Iterable[Any],
    predict: Predict,
) -> dict[str, Tensor]:
    """Return the importance of every parameter for the loader's samples, in float32 or finer; 0 for frozen ones.

    Batches have the definition's own size, whatever the loader's is. With several processes, the samples of all
    count. Neither gradients nor running statistics of the model change.
    """
    moving = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if not moving:
        raise ConfigError("All parameters that count are frozen, so nothing can be measured. Unfreeze some.")
    found = {name: torch.zeros_like(p, dtype=precise(p)) for name, p in parameters.items()}
    samples, device = 0, next(iter(moving.values())).device
    with torch.enable_grad(), _in_mode(model, dropout=importance.dropout):
        for parts in recut(loader, importance.batch, device):
            value, count = _objective(importance, model, parts, predict)
            gradients = torch.autograd.grad(value, list(moving.values()), allow_unused=True)
            for name, gradient in zip(moving, gradients, strict=True):
                if gradient is not None:
                    found[name].add_(importance.reduce(gradient.to(found[name].dtype)))
            samples += count
    if processes() > 1:
        found = {name: summed(tensor) for name, tensor in found.items()}
        samples = int(summed(torch.tensor(samples)))
    if samples == 0:
        raise DataError(
            "The loader gave no samples to measure importance on. A generator that training has used up is empty: "
            "give a loader that can be gone through again."
        )
    for tensor in found.values():
        tensor.div_(samples)
    check_finite(found)
    return found


def check_batch(importance: GradientImportance, model: nn.Module, batch: Any, predict: Predict) -> None:
    """Refuse a batch that importance cannot be measured on, before training.

    Costs a forward pass of one batch of the definition's size, and changes neither the model nor PyTorch's random
    state.
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad(), _in_mode(model):
        for parts in recut([batch], importance.batch, device):
            try:
                _objective(importance, model, parts, predict)
            except ConfigError:
                raise
            except Exception as error:  # a module may raise anything
                raise ConfigError(
                    f"Importance cannot be measured on the loader's batches: {type(error).__name__}: {error}. Say "
                    "with predict=... how logits and labels come from the model and a batch."
                ) from error
            break


def _objective(
    importance: GradientImportance, model: nn.Module, parts: list[Any], predict: Predict
) -> tuple[Tensor, int]:
    """Return the objective for the samples of all parts together, and their number."""
    predicted = [predict(model, part) for part in parts]
    for logits, labels in predicted:
        _check_shapes(logits, labels, classes=importance.objective is mean_cross_entropy)
    logits, labels = predicted[0]
    if len(parts) > 1:
        logits, labels = (torch.cat(tensors) for tensors in zip(*predicted, strict=True))
    valid = torch.ones(len(logits), device=logits.device)
    try:
        value = importance.objective(logits.to(precise(logits)), labels.to(logits.device), valid)
    except torch.OutOfMemoryError:
        raise
    except (IndexError, RuntimeError) as error:
        raise ConfigError(
            f"Labels ({labels.dtype}) do not fit the logits {tuple(logits.shape)}: {error} Give the class of "
            f"every sample, a whole number from 0 to {logits.shape[1] - 1}; predict=... may change them."
        ) from error
    if value.ndim:
        raise ConfigError(
            f"The objective of {importance.name} gives {tuple(value.shape)} for a batch. It must be one "
            "number: the sum or the mean over the samples."
        )
    return value, len(logits)


def _check_shapes(logits: Tensor, labels: Tensor, *, classes: bool) -> None:
    """`classes`: labels are classes; other uses of labels are left to the importance."""
    if logits.ndim == 2 and labels.ndim and len(labels) == len(logits) and (labels.ndim == 1 or not classes):
        return
    hot = classes and labels.shape == logits.shape
    what = "One-hot labels become classes by labels.argmax(1)" if hot else "Flatten them"
    raise ConfigError(
        "Importance is measured on logits (samples, classes) and labels (samples,), not on "
        f"{tuple(logits.shape)} and {tuple(labels.shape)}. {what} in predict=..."
    )


def check_finite(found: dict[str, Tensor]) -> None:
    for name, tensor in found.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(
                f"The importance of {name} is not finite: gradients on this data are NaN or infinite. Nothing was "
                "changed. Look for NaN in the weights and the data, or lower the learning rate."
            )


@contextmanager
def _in_mode(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Switch dropout on or off. Normalization layers use their running statistics.

    All buffers are restored in the end: spectral normalization, for example, updates its own in every forward pass.
    """
    before = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(dropout)
    for module in model.modules():
        if isinstance(module, _NormBase):  # batch and instance normalization of all dimensions
            module.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
        with torch.no_grad():
            for buffer, was in buffers:
                buffer.copy_(was)
