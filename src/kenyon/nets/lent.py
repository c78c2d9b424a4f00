"""A module that computes with tensors lent to it, and has its own again afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Lent:
    """torch.func.functional_call, also for modules that are in a backbone under two names: PyTorch swaps the tensors
    of such a module twice, and what it puts back in the end are those that were lent.
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

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Any:
        """What the module makes of images with `tensors` by their names, each under the first that it has."""
        from torch.func import functional_call

        lent = {place: tensors[name] for place, name in self.places.items()}
        return functional_call(self.module, lent, (images,), tie_weights=False)
