"""What inputs look like, learned from the first task: their shape and kind, and how they are centred and scaled.

The tasks to come are not known yet and those before are gone, so it stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kenyon.estimator.errors import InputError
from kenyon.streams.arrays import moments

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
        return cls(kind, tuple(inputs.shape[1:]), *moments(inputs, standardise))

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
