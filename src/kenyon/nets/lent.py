"""A module that computes with tensors lent to it, and has its own again afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

ALIGNMENT = 16  # bytes


class Lent:
    """torch.func.functional_call, also for modules that are in a backbone under two names: PyTorch swaps the tensors
    of such a module twice, and what it puts back in the end are those that were lent.

    Parameters are views of a run's row and begin at any number of it. Kernels of PyTorch and cuDNN may assume that a
    tensor begins at a multiple of 16 bytes, as one with memory of its own does; with others, cuDNN's batch
    normalization fails with "misaligned address". So on a GPU copies are lent of those that begin elsewhere.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        # Every place of a tensor once, however many names its module has: the name under which its tensor is lent.
        self.places = {
            f"{place}.{own}".lstrip("."): names[id(tensor)]
            for place, part in module.named_modules()
            for own, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None
        }
        self.buffers = [name for name, _ in module.named_buffers()]

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Any:
        """What the module makes of images with `tensors` by their names, each under the first that it has."""
        from torch.func import functional_call

        used = {name: aligned(tensors[name]) for name in dict.fromkeys(self.places.values())}
        lent = {place: used[name] for place, name in self.places.items()}
        found = functional_call(self.module, lent, (images,), tie_weights=False)
        if self.module.training:
            for name in self.buffers:  # statistics, to which a batch is added
                if used[name] is not tensors[name]:
                    tensors[name].copy_(used[name])
        return found


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it if it is on a GPU and does not begin at a multiple of 16 bytes."""
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % ALIGNMENT else tensor
