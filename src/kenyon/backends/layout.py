"""Where everything a run trains lies: one flat row of numbers, with names for its parts.

A fleet of R runs keeps its parameters as one tensor (R, P). Optimisers, importances, anchors and best weights
are then single passes over flat buffers, and a named parameter is a view: a learner's weight has the shape
(R, K, *shape). The row is ordered so that what stability protection covers comes first:

    learners' weights | task gates | heads | what the method itself learns
    '----- protected (P_protected) ---'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from kenyon.backends.triton.factors import Factors


class Leaves(dict[str, Tensor]):
    """The named parts of a row whose gradients are wanted, and where each gradient will be wanted.

    Who computes a gradient whole can take its place and write it there. It can be taken once: of a part that is used
    a second time, autograd adds the gradients up, and what it gives lies elsewhere. Of the parts in `factors` no
    gradient is wanted, but what it is a product of.
    """

    def __init__(
        self,
        parts: Mapping[str, Tensor],
        places: Mapping[str, Tensor],
        factors: Mapping[str, Factors] | None = None,
    ) -> None:
        super().__init__(parts)
        self._places, self.factors = dict(places), factors or {}

    def take(self, name: str) -> Tensor | None:
        return self._places.pop(name, None)


def place_of(parts: Mapping[str, Tensor], name: str) -> Tensor | None:
    return parts.take(name) if isinstance(parts, Leaves) else None


def factors_of(parts: Mapping[str, Tensor], name: str) -> Factors | None:
    return parts.factors.get(name) if isinstance(parts, Leaves) else None


class InUse(dict[str, Tensor]):
    """The named parts of a fleet's rows that its batches use: of what every head has for itself, only that of the
    heads in use. In a long sequence the others are most of a row, and they have no gradient.

    `weights`: rows that begin with the backbone's, for kernels that find them by their places.
    """

    def __init__(self, parts: Mapping[str, Tensor], weights: Tensor) -> None:
        super().__init__(parts)
        self.weights = weights


ALIGNMENT = 16  # bytes: what one instruction of a GPU loads, and what libraries expect of an address


def aligned(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors (K, ...) in `dtype`, in which on a GPU every learner's part begins at a multiple of ALIGNMENT bytes.

    Named views of a row begin anywhere. Kernels of cuDNN and PyTorch that load several numbers at once fail there
    with a misaligned address, after which a process cannot use its GPU any more. What lies well is not copied.
    """
    if not any(map(needs_alignment, tensors.values())):
        return {name: t.to(dtype) for name, t in tensors.items()}
    misplaced = {name: t for name, t in tensors.items() if t.dtype != dtype or not _is_aligned(t)}
    if not misplaced:
        return dict(tensors)
    copies = _Aligned.apply(dtype, *misplaced.values())  # type: ignore[no-untyped-call]
    return dict(tensors) | dict(zip(misplaced, copies, strict=True))


def aligned_alone(tensor: Tensor) -> Tensor:
    """The tensor, or on a GPU a copy of it if it begins elsewhere than at a multiple of ALIGNMENT bytes."""
    return tensor.clone() if needs_alignment(tensor) and tensor.data_ptr() % ALIGNMENT else tensor


def needs_alignment(t: Tensor) -> bool:
    return t.is_cuda


def _is_aligned(t: Tensor) -> bool:
    steps = 0 if len(t) == 1 else t.stride(0) * t.element_size()
    return t.data_ptr() % ALIGNMENT == 0 and steps % ALIGNMENT == 0


class _Aligned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [t.dtype for t in tensors]
        ctx.set_materialize_grads(False)
        unit = ALIGNMENT // dtype.itemsize
        spans = [-(-(t.numel() // len(t)) // unit) * unit for t in tensors]  # of one learner
        sizes = [span * len(t) for span, t in zip(spans, tensors, strict=True)]
        parts = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device).split(sizes)
        copies = tuple(
            part.view(len(t), span)[:, : t.numel() // len(t)].view(t.shape)
            for part, span, t in zip(parts, spans, tensors, strict=True)
        )
        torch._foreach_copy_(list(copies), list(tensors))
        return copies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # An nn.Embedding with sparse=True gives only the rows that it has looked up.
        dense = (g.to_dense() if g is not None and g.is_sparse else g for g in gradients)
        return None, *(None if g is None else g.to(d) for g, d in zip(dense, ctx.dtypes, strict=True))


Rows = Tensor | dict[str, Tensor]  # a row (P,) or a fleet (R, P), whole or already as named views


@dataclass(frozen=True)
class Segment:
    name: str
    shape: tuple[int, ...]  # of one run
    start: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size


class Layout:
    """Names and shapes along the parameter axis."""

    def __init__(self, protected: Mapping[str, tuple[int, ...]], free: Mapping[str, tuple[int, ...]]) -> None:
        self.segments: dict[str, Segment] = {}
        start = 0
        for name, shape in (*protected.items(), *free.items()):
            self.segments[name] = Segment(name, tuple(shape), start)
            start += prod(shape)
        self.size = start
        self.protected = sum(prod(shape) for shape in protected.values())
        self._splits: dict[frozenset[str] | None, tuple[list[int], list[tuple[int, Segment]]]] = {}

    def views(self, theta: Rows, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """Named views of a row (P,) or of a fleet (R, P).

        `split` is used because its backward is one concatenation, where a slice per name would each fill a
        whole row with zeros. Neighbours that are not asked for are one part of it.
        """
        if isinstance(theta, dict):
            return theta
        sizes, wanted = self._split(names)
        parts, lead = theta.split(sizes, dim=-1), theta.shape[:-1]
        return {s.name: parts[place].view(*lead, *s.shape) for place, s in wanted}

    def protected_views(self, rows: Tensor) -> dict[str, Tensor]:
        """Named views of the beginning of rows, (..., protected)."""
        first = [segment for segment in self.segments.values() if segment.stop <= self.protected]
        parts = rows.split([segment.size for segment in first], dim=-1)
        return {s.name: part.view(*rows.shape[:-1], *s.shape) for s, part in zip(first, parts, strict=True)}

    def _split(self, names: frozenset[str] | None) -> tuple[list[int], list[tuple[int, Segment]]]:
        """The sizes of all parts, and which of them are segments that are asked for."""
        if names not in self._splits:
            sizes: list[int] = []
            wanted: list[tuple[int, Segment]] = []
            between = False
            for segment in self.segments.values():
                if names is None or segment.name in names:
                    wanted.append((len(sizes), segment))
                    sizes.append(segment.size)
                    between = False
                elif between:
                    sizes[-1] += segment.size
                else:
                    sizes.append(segment.size)
                    between = True
            self._splits[names] = sizes, wanted
        return self._splits[names]

    def view(self, theta: Tensor, name: str) -> Tensor:
        """One named part, as a view that can be written to."""
        segment = self.segments[name]
        return theta[..., segment.start : segment.stop].view(*theta.shape[:-1], *segment.shape)
