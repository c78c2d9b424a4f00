"""The layout of a run's parameters: one flat row of numbers, with named segments.

The parameters of R runs are one tensor (R, P). Optimizers, importances, anchors and best weights are then single
passes over flat buffers, and a named parameter is a view: a learner's weight has the shape (R, K, *shape). Segments
that stability protection covers come first:

    learners' weights | task gates | heads | parameters of the method
    '----- protected (P_protected) ---'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """The two factors of a dense layer's weight gradient, dy^T x, which replace the gradient itself.

    A step of AlexNet is bound by memory, and 55 of its 57 million weights belong to two dense layers, while a batch's
    dy and x are small. They are stored in the backward pass, and the optimizer multiplies them in registers while it
    updates the weights. The same pass stores the new weights in the type that the layer computes in.

    Holds all rows, or one row without the leading axis. Tensors are overwritten in every step and stay in place.
    """

    start: int  # of the layer's weights in a row
    dy: Tensor  # (R, K, B, O) gradient of the loss with respect to the layer's output
    x: Tensor  # (R, K, B, I) the layer's input
    weight: Tensor  # (R, K, O, I) the layer's weights, in the type that it computes in

    @property
    def stop(self) -> int:
        return self.start + prod(self.weight.shape[1:])

    def of_run(self, run: int) -> Factors:
        return Factors(self.start, self.dy[run], self.x[run], self.weight[run])

    def store(self, dy: Tensor, x: Tensor) -> None:
        self.dy.copy_(dy)
        self.x.copy_(x)

    def read(self, theta: Tensor) -> None:
        """Take the weights from rows (R, P), after an update by another pass."""
        self.weight.copy_(self._in(theta))

    def write(self, gradient: Tensor) -> None:
        """Write the product into gradient rows (R, P)."""
        wide = torch.promote_types(self.x.dtype, torch.float32)
        self._in(gradient).copy_(self.dy.transpose(-1, -2).to(wide) @ self.x.to(wide))

    def _in(self, rows: Tensor) -> Tensor:
        return rows[:, self.start : self.stop].view(self.weight.shape)


class Leaves(dict[str, Tensor]):
    """Named parameters of a row whose gradients are computed, and the memory of each gradient.

    A backward pass that computes a gradient whole can take its memory and write there. It can be taken once: if a
    parameter is used a second time, autograd sums the gradients into memory of its own. Parameters in `factors` get
    the factors of a gradient instead.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        factors: Mapping[str, Factors] | None = None,
    ) -> None:
        super().__init__(params)
        self._gradients, self.factors = dict(gradients), factors or {}

    def take_gradient(self, name: str) -> Tensor | None:
        return self._gradients.pop(name, None)


def gradient_memory(params: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the memory for a parameter's gradient, or None if there is none or it has been taken."""
    return params.take_gradient(name) if isinstance(params, Leaves) else None


def factors_of(params: Mapping[str, Tensor], name: str) -> Factors | None:
    return params.factors.get(name) if isinstance(params, Leaves) else None


class InUse(dict[str, Tensor]):
    """The named parameters of all runs that a batch uses: of parameters that every head has, only those of the heads
    in use. In a long sequence the others are most of a row, and they have no gradient.

    `weights`: rows that begin with the backbone's weights, for kernels that address them by position.
    """

    def __init__(self, params: Mapping[str, Tensor], weights: Tensor) -> None:
        super().__init__(params)
        self.weights = weights


ALIGNMENT = 16  # bytes that one instruction of a GPU loads; libraries expect addresses at multiples of it


def aligned(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return tensors (K, ...) in `dtype`; on a GPU every learner's tensor begins at a multiple of ALIGNMENT bytes.

    Named views of a row begin anywhere. Kernels of cuDNN and PyTorch that load several numbers at once fail there
    with a misaligned address, after which the process can no longer use its GPU. Aligned tensors are not copied.
    """
    if not any(map(needs_alignment, tensors.values())):
        return {name: t.to(dtype) for name, t in tensors.items()}
    misplaced = {name: t for name, t in tensors.items() if t.dtype != dtype or not _is_aligned(t)}
    if not misplaced:
        return dict(tensors)
    copies = _Aligned.apply(dtype, *misplaced.values())  # type: ignore[no-untyped-call]
    return dict(tensors) | dict(zip(misplaced, copies, strict=True))


def aligned_alone(tensor: Tensor) -> Tensor:
    """Return the tensor, or on a GPU a copy if it does not begin at a multiple of ALIGNMENT bytes."""
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
        chunks = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device).split(sizes)
        copies = tuple(
            chunk.view(len(t), span)[:, : t.numel() // len(t)].view(t.shape)
            for chunk, span, t in zip(chunks, spans, tensors, strict=True)
        )
        torch._foreach_copy_(list(copies), list(tensors))
        return copies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # An nn.Embedding with sparse=True returns only the rows that it has looked up.
        dense = (g.to_dense() if g is not None and g.is_sparse else g for g in gradients)
        return None, *(None if g is None else g.to(d) for g, d in zip(dense, ctx.dtypes, strict=True))


Rows = Tensor | dict[str, Tensor]  # a row (P,) or all rows (R, P), as one tensor or as named views


@dataclass(frozen=True)
class Segment:
    """A named parameter's place in a row."""

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
    """Names, shapes and positions along the parameter axis."""

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
        """Return named views of a row (P,) or of all rows (R, P), of all parameters or of those with these names.

        They come from one `split`, whose backward is one concatenation; each of several slices would fill a whole row
        with zeros. Adjacent segments that are not requested form one chunk.
        """
        if isinstance(theta, dict):
            return theta
        sizes, requested = self._split(names)
        chunks, lead = theta.split(sizes, dim=-1), theta.shape[:-1]
        return {s.name: chunks[index].view(*lead, *s.shape) for index, s in requested}

    def protected_views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return named views of the protected beginning of rows, (..., protected)."""
        first = [segment for segment in self.segments.values() if segment.stop <= self.protected]
        chunks = rows.split([segment.size for segment in first], dim=-1)
        return {s.name: chunk.view(*rows.shape[:-1], *s.shape) for s, chunk in zip(first, chunks, strict=True)}

    def _split(self, names: frozenset[str] | None) -> tuple[list[int], list[tuple[int, Segment]]]:
        """Return the sizes of all chunks, and the requested segments with the index of their chunk."""
        if names not in self._splits:
            sizes: list[int] = []
            requested: list[tuple[int, Segment]] = []
            between = False
            for segment in self.segments.values():
                if names is None or segment.name in names:
                    requested.append((len(sizes), segment))
                    sizes.append(segment.size)
                    between = False
                elif between:
                    sizes[-1] += segment.size
                else:
                    sizes.append(segment.size)
                    between = True
            self._splits[names] = sizes, requested
        return self._splits[names]

    def view(self, theta: Tensor, name: str) -> Tensor:
        """Return one named parameter as a view that can be written to."""
        segment = self.segments[name]
        return theta[..., segment.start : segment.stop].view(*theta.shape[:-1], *segment.shape)
