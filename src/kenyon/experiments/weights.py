"""A run's weights as a file, by name, with the configuration and seed they belong to; and back into a network's rows.

A learner's weights have a leading learner axis. Where learners have heads of their own, so do these: of independent
learners (K, T, ...), of one a task (T, ...).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from kenyon.errors import ResultsError
from kenyon.experiments.grid import RunSpec
from kenyon.experiments.store import comparable
from kenyon.methods import Method
from kenyon.models import Net
from kenyon.training import Trainer
from kenyon.utils.formats import ChangedError, FileSum


def weights_of(trainer: Trainer, number: int, run: RunSpec) -> bytes:
    """One run's present weights."""
    M = trainer.members
    if trainer.discrete is not None:
        views = trainer.discrete.weights(number)
    elif M > 1:
        rows = trainer.net.layout.views(trainer.theta[number * M : (number + 1) * M])
        views = {name: row if name in trainer.net.per_head else row.squeeze(1) for name, row in rows.items()}
    else:
        views = trainer.net.layout.views(trainer.theta[number])
    # One entry only: the format keeps several in no certain order, and equal weights shall be equal files.
    head = {"run": json.dumps({"config": run.config.as_dict(), "seed": run.seed})}
    return to_bytes({name: view.cpu().contiguous() for name, view in views.items()}, metadata=head)


@dataclass(frozen=True)
class Weights:
    tensors: dict[str, Tensor]  # on the CPU
    path: Path
    named: bool  # whether the file says which run it belongs to; those of earlier versions do not


def read_weights(path: Path, config: dict[str, Any], seed: int, written: FileSum | None = None) -> Weights:
    """The weights of a run of this configuration; `written`: what its result says of the file, if anything."""
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {}).get("run", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        whole = written is None or FileSum.of(path) == written
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}). Move it away and train its run anew.") from error
    if head is not None and not _belongs(head, config, seed):
        raise ResultsError(
            f"{path} holds the weights of another run: {_owner(head)}. Put back the file that belongs to the result "
            "beside it."
        )
    if not whole:
        remedy = "Put back the file that belongs to the result beside it, or train its run anew in another folder."
        raise ChangedError(path, "it is not the file that the result beside it names", remedy)
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
    """The rows (M, P) of a run's networks: one, or as many as learn independently or for a task each."""
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
