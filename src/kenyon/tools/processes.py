"""Several processes that train one model together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


def processes() -> int:
    """How many there are; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def summed(tensor: Tensor) -> Tensor:
    """The sum over all processes."""
    shared = tensor.to(_meeting_place(tensor), copy=True)
    dist.all_reduce(shared)
    return shared.to(tensor.device)


def of_first(tensor: Tensor) -> Tensor:
    """What the first process has."""
    shared = tensor.to(_meeting_place(tensor), copy=True)
    dist.broadcast(shared, 0)
    return shared.to(tensor.device)


def _meeting_place(tensor: Tensor) -> torch.device:
    """Where processes can exchange a tensor: NCCL knows GPUs alone."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else tensor.device
