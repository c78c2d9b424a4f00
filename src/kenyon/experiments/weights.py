"""Saved weights of a run: read by name, checked against its configuration and seed, and put into a network's rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kenyon.errors import ResultsError
from kenyon.experiments.store import comparable
from kenyon.methods import Method
from kenyon.models import Net
from kenyon.utils.formats import ChangedError, FileSum


@dataclass(frozen=True)
class Weights:
    tensors: dict[str, Tensor]  # on the CPU
    path: Path
    named: bool  # False for files of early versions, which do not name their run


def read_weights(path: Path, config: dict[str, Any], seed: int, written: FileSum | None = None) -> Weights:
    """Read the weights of a run of this configuration. `written`: size and digest in its result, if there are any."""
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {}).get("run", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        whole = written is None or FileSum.of(path) == written
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}). Move it away and train its run again.") from error
    if head is not None and not _belongs(head, config, seed):
        raise ResultsError(
            f"{path} holds the weights of another run: {_owner(head)}. Put back the file that belongs to the result "
            "in this folder."
        )
    if not whole:
        remedy = (
            "Put back the file that belongs to the result in this folder, or train its run again in another folder."
        )
        raise ChangedError(path, "it is not the file that the result in this folder names", remedy)
    return Weights(tensors, path, named=head is not None)


def _belongs(head: Any, config: dict[str, Any], seed: int) -> bool:
    try:
        theirs, ours = comparable(head["config"], config)
        return bool(head["seed"] == seed and theirs == ours)
    except (LookupError, TypeError, AttributeError):
        return False


def _owner(head: Any) -> str:
    try:
        return f"{head['config']['method']} on {head['config']['benchmark']}, seed {head['seed']}"
    except (LookupError, TypeError):
        return "it does not say of which"


def rows_of(net: Net, weights: Weights, method: Method, learners: int) -> Tensor:
    """Return the rows (M, P) of a run's networks: one, or one for each independent learner or task."""
    tensors, path = weights.tensors, weights.path
    M = learners if method.apart else net.tasks if method.schedule == "discrete" else 1
    rows = torch.zeros(M, net.layout.size)
    if set(tensors) != set(net.layout.segments):
        differ = ", ".join(sorted(set(tensors) ^ set(net.layout.segments)))
        raise ResultsError(f"{path} does not hold the weights of this network: {differ} is in one only.")
    own = torch.arange(M)
    head = net.heads_of(range(M)).cpu()
    for name, saved in tensors.items():
        view = net.layout.view(rows, name)
        discrete_head = method.schedule == "discrete" and name in net.per_head
        size = view[own, head].numel() if discrete_head else view.numel()
        if saved.numel() != size:
            raise ResultsError(
                f"{path}: {name} has the shape {tuple(saved.shape)}, not one for {tuple(view.shape)}. "
                "It belongs to another network."
            )
        if discrete_head:
            view[own, head] = saved.float().view(view[own, head].shape)
        else:
            view.copy_(saved.view(view.shape))
    return rows.to(net.device)
