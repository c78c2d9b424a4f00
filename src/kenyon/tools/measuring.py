"""Importances of gradients, measured on a user's model and data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from kenyon.errors import ConfigError, DataError
from kenyon.importance import GradientImportance, mean_cross_entropy
from kenyon.tools.batches import Predict, recut
from kenyon.tools.parameters import precise
from kenyon.tools.processes import processes, summed


def measured(
    importance: GradientImportance,
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    loader: Iterable[Any],
    predict: Predict,
) -> dict[str, Tensor]:
    """The importance of every parameter for the loader's samples, in float32 or finer; 0 for what is frozen.

    In batches of the definition's own size, whatever the loader's is. Where several processes train together, over
    the samples of all. Neither gradients nor running statistics of the model change.
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
    """Refuse a batch that importance cannot be measured on, before anything is trained. It costs a forward pass of
    one batch of the definition's size, and changes neither the model nor PyTorch's random state.
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
    """Its value for the samples of all parts together, and how many they are."""
    predicted = [predict(model, part) for part in parts]
    for logits, labels in predicted:
        _check_shapes(logits, labels, classes=importance.objective is mean_cross_entropy)
    logits, labels = predicted[0]
    if len(parts) > 1:
        logits, labels = (torch.cat(tensors) for tensors in zip(*predicted, strict=True))
    valid = torch.ones(len(logits), device=logits.device)
    try:
        value = importance.objective(logits.to(precise(logits)), labels.to(logits.device), valid)
    except (IndexError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
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
    """`classes`: labels are compared with; what else an importance makes of them is its own affair."""
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
    """Dropout on or off. Layers that keep running statistics use them, and all buffers are as they were in the end:
    spectral normalisation, for one, changes its own whenever it computes.
    """
    before = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(dropout)
    for module in model.modules():
        if isinstance(module, _NormBase):  # batch and instance normalisation of all dimensions
            module.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
        with torch.no_grad():
            for buffer, was in buffers:
                buffer.copy_(was)
