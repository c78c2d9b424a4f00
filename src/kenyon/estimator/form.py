"""What inputs look like, learned from the first task: their shape and kind, and how they are centred and scaled.

The tasks to come are not known yet and those before are gone, so it stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kenyon.estimator.errors import InputError

Kind = Literal["bytes", "floats", "tokens"]
DTYPES: dict[Kind, torch.dtype] = {"bytes": torch.uint8, "floats": torch.float32, "tokens": torch.int64}
WORDS: dict[torch.dtype, str] = {
    torch.uint8: "images of bytes (uint8, 0 to 255)",
    torch.float32: "floating-point numbers",
    torch.int64: "whole numbers (tokens)",
}


@dataclass(frozen=True)
class Form:
    """`mean` and `std` are along the first axis of a sample, the columns of a table or the channels of anything else;
    those of images of bytes are of pixels from 0 to 1. Both are empty where inputs are taken as they are.
    """

    kind: Kind
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, inputs: Tensor, *, standardise: bool) -> Form:
        kind = next(kind for kind, dtype in DTYPES.items() if dtype == inputs.dtype)
        shape = tuple(inputs.shape[1:])
        if kind == "tokens" or (kind == "floats" and not standardise):
            return cls(kind, shape, (), ())
        if not standardise:
            return cls(kind, shape, (0.0,) * shape[0], (1.0,) * shape[0])
        mean, std = [], []
        for channel in inputs.movedim(1, 0):  # one at a time: doubles of all would take much memory
            values = channel.double() / (255 if kind == "bytes" else 1)
            spread = float(values.std(correction=0))
            mean.append(float(values.mean()))
            # What does not change in the first task tells no scale.
            std.append(spread if spread > 1e-6 * float(values.abs().max()) else 1.0)
        return cls(kind, shape, tuple(mean), tuple(std))

    @property
    def input_dtype(self) -> torch.dtype:
        """Of a sample as the network sees it."""
        return torch.int64 if self.kind == "tokens" else torch.float32

    def check(self, inputs: Tensor) -> Tensor:
        """The same inputs, if they are of this form."""
        shape, dtype = tuple(inputs.shape[1:]), DTYPES[self.kind]
        if shape != self.shape:
            raise InputError(
                f"These samples have the shape {shape}; those that were learned have {self.shape}. "
                "Bring them to that shape, or learn them with another learner."
            )
        if inputs.dtype != dtype:
            raise InputError(
                f"These samples are {WORDS[inputs.dtype]}; those that were learned are {WORDS[dtype]}. "
                "Give the same kind."
            )
        return inputs
