"""The convolutions of a backbone, one behind the other, forwards and backwards for all runs at once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kenyon.backends.cuda.choices import Stage
from kenyon.backends.cuda.interface import Build, Kernel, Pictures, Source, Target
from kenyon.backends.cuda.packing import Packing, Totals, taken
from kenyon.backends.cuda.plan import DenseTiling, Tiling
from kenyon.utils.determinism import USUAL_RUNS, is_deterministic

ACTIVATIONS, IMAGES, POOLED = 0, 1, 2  # SOURCE of a kernel
RELU, RELU_POOL, AS_IS, MASKED, BIAS, BIAS_POOL = range(6)  # RESULT of `convolve`


class ConvolutionStack:
    """Kernels, maps and work space for the convolutions of R runs.

    `apart`: the learners of a run, where each is computed as a run of its own. Its weights are one part of so many of
    every segment; below, such a learner is called a run, with R of all of them.
    """

    def __init__(self, stages: Sequence[Stage], device: torch.device, build: Build, apart: int = 1) -> None:
        self.stages, self.device, self.apart = stages, device, apart
        self.processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        )
        self.beside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._build(build)
        self.packing = Packing(stages, apart, device)
        self._totals: dict[tuple[int, int, int], Totals] = {}

    def _build(self, build: Build) -> None:
        wanted: list[tuple[str, dict[str, int], int]] = []
        for s in self.stages:
            source = IMAGES if s.layer.first else ACTIVATIONS
            gradient = POOLED if s.layer.pooled else ACTIVATIONS
            plain, pooled = (RELU, RELU_POOL) if s.layer.relu else (BIAS, BIAS_POOL)
            forward = {**s.tiling.macros, "SOURCE": source, "RESULT": pooled if s.layer.pooled else plain}
            wanted.append((s.tiling.kernel, forward, s.tiling.shared_bytes))
            wanted.append(
                ("weigh", {**s.sharing.macros, "SOURCE": source, "GRADIENT": gradient}, s.sharing.shared_bytes)
            )
        for before, s in zip(self.stages, self.stages[1:], strict=False):
            assert s.backward is not None
            # A pooled input knows from its code where gradients go; behind a ReLU they pass where it was open.
            result = MASKED if before.layer.relu and not before.layer.pooled else AS_IS
            gradient = POOLED if s.layer.pooled else ACTIVATIONS
            wanted.append(
                (
                    s.backward.kernel,
                    {**s.backward.macros, "SOURCE": gradient, "RESULT": result},
                    s.backward.shared_bytes,
                )
            )
        kernels = list(build(wanted))
        both = 2 * len(self.stages)
        self.forwards, self.weighs, self.backwards = kernels[0:both:2], kernels[1:both:2], [None, *kernels[both:]]

    # ------------------------------------------------------------------ forwards

    def forward(self, theta: Tensor, pictures: Pictures, noise: tuple[Tensor, Tensor] | None) -> list[Tensor]:
        """Rows (R, P), or fewer where learners are apart, -> weights packed for the kernels, then for each layer its
        output (R, B, H, W, C) bfloat16 and, behind pooling, its code. `noise`: the two keys (R,) of this pass's
        dropout.
        """
        R, B = pictures.index.shape
        packed = taken(theta, self.packing.weights, torch.bfloat16)
        biases = taken(theta, self.packing.biases, torch.float32)
        saved = [packed]
        source = self._images(pictures)
        first_byte = 0
        for number, s in enumerate(self.stages):
            side = s.layer.map // 2 if s.layer.pooled else s.layer.map
            out = torch.empty((R, B, side, side, s.layer.channels_out), dtype=torch.bfloat16, device=self.device)
            saved.append(out)
            target = Target(data=out.data_ptr(), scale=1.0)
            if s.layer.pooled:
                code = torch.empty(out.shape, dtype=torch.uint8, device=self.device)
                saved.append(code)
                target.code = code.data_ptr()
            if s.site is not None:
                if noise is not None:
                    target.first, target.second = (n.data_ptr() for n in noise)
                    target.threshold, target.scale = s.site.threshold, s.site.scale
                    target.first_byte = first_byte
                first_byte += B * int(np.prod(s.site.shape))
            weights = packed.data_ptr() + 2 * self.packing.forwards[number]
            bias = biases.data_ptr() + 4 * self.packing.first_biases[number]
            self._convolve(self.forwards[number], s.tiling, source, weights, bias, target, B, R)
            source = Source(data=out.data_ptr())
        return saved

    def maps(self, theta: Tensor, pictures: Pictures) -> list[Tensor]:
        """The output of every layer without dropout."""
        return self._sorted(self.forward(theta, pictures, None))[1]

    def shown(self, pictures: Pictures) -> Pictures:
        """What every run sees: learners of one run the same."""
        if self.apart == 1:
            return pictures
        addresses, index = (x.repeat_interleave(self.apart, 0) for x in (pictures.addresses, pictures.index))
        return replace(pictures, addresses=addresses, index=index)

    # ------------------------------------------------------------------ backwards

    def backward(self, saved: Sequence[Tensor], pictures: Pictures, gradient: Tensor, dropped: bool) -> Tensor:
        """The gradient of the stack's output (R, B, H, W, C) -> that of its parameters, (rows, so many) float32."""
        R, B = pictures.index.shape
        packed, outputs, codes = self._sorted(saved)
        totals = self._totals_of(B, R)
        buffer = totals.buffer()
        pieces, sums = totals.pieces(buffer), totals.result()
        if self.stages[-1].layer.relu and not self.stages[-1].layer.pooled:
            gradient = gradient * (outputs[-1] > 0)
        kept = [gradient]  # until both streams are done with them
        for number in reversed(range(len(self.stages))):
            s = self.stages[number]
            source = Source(data=gradient.data_ptr(), scale=1.0)
            if s.layer.pooled:
                source.code = codes[number].data_ptr()
                source.scale = s.site.scale if s.site is not None and dropped else 1.0
            inputs = self._images(pictures) if s.layer.first else Source(data=outputs[number - 1].data_ptr())
            with self._beside():
                self._weigh(number, inputs, source, pieces[2 * number], pieces[2 * number + 1], B, R)
                totals.add_up(buffer, sums, number)
            if s.backward is not None:
                before = outputs[number - 1]
                found = torch.empty_like(before)
                target = Target(data=found.data_ptr(), mask=before.data_ptr())
                weights = packed.data_ptr() + 2 * self.packing.backwards[number]
                kernel = self.backwards[number]
                assert kernel is not None
                self._convolve(kernel, s.backward, source, weights, 0, target, B, R)
                gradient = found
                kept.append(found)
        if self.beside is not None:
            torch.cuda.current_stream().wait_stream(self.beside)
        return taken(sums.view(R // self.apart, -1), self.packing.gradients, torch.float32)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """A second stream, from this point of the first on: weights are weighed while gradients go further back."""
        if self.beside is None:
            yield
            return
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            yield

    def _sorted(self, saved: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], dict[int, Tensor]]:
        left = iter(saved)
        packed, outputs, codes = next(left), [], {}
        for number, s in enumerate(self.stages):
            outputs.append(next(left))
            if s.layer.pooled:
                codes[number] = next(left)
        return packed, outputs, codes

    def _totals_of(self, batch: int, runs: int) -> Totals:
        """The sums that `weigh` leaves for each layer: weights, then bias."""
        shared_by = USUAL_RUNS * self.apart if is_deterministic() else runs
        if (batch, runs, shared_by) not in self._totals:
            shapes = []
            for s in self.stages:
                blocks = s.sharing.blocks(batch, shared_by, self.processors)
                shapes += [(blocks * s.sharing.splits, s.sharing.record), (blocks, s.layer.channels_out)]
            self._totals[batch, runs, shared_by] = Totals(runs, shapes, self.device, together=2)
        return self._totals[batch, runs, shared_by]

    # ------------------------------------------------------------------ launches

    def _images(self, pictures: Pictures) -> Source:
        assert pictures.index.is_contiguous()
        three = ctypes.c_float * 3
        return Source(
            data=pictures.addresses.data_ptr(),
            index=pictures.index.data_ptr(),
            gain=three(*pictures.gain),
            shift=three(*pictures.shift),
        )

    def _convolve(
        self,
        kernel: Kernel,
        tiling: Tiling | DenseTiling,
        source: Source,
        weights: int,
        biases: int,
        target: Target,
        batch: int,
        runs: int,
    ) -> None:
        arguments = (
            source,
            ctypes.c_void_p(weights),
            ctypes.c_longlong(self.packing.weight_count),
            ctypes.c_void_p(biases),
            ctypes.c_longlong(self.packing.bias_count),
            target,
            ctypes.c_int(batch),
        )
        kernel.launch(tiling.grid(batch, runs, self.processors), tiling.threads, arguments)

    def _weigh(
        self, number: int, inputs: Source, gradient: Source, partial: Tensor, biases: Tensor, batch: int, runs: int
    ) -> None:
        sharing = self.stages[number].sharing
        arguments = (
            inputs,
            gradient,
            ctypes.c_void_p(partial.data_ptr()),
            ctypes.c_void_p(biases.data_ptr()),
            ctypes.c_int(batch),
            ctypes.c_int(sharing.tiles.count(batch)),
        )
        grid = (biases.shape[1], sharing.all_groups // sharing.groups, runs)
        self.weighs[number].launch(grid, sharing.threads, arguments)


class Convolve(torch.autograd.Function):
    """The stack as a function of its parameters: each (rows, K, ...), views of the beginning of rows (rows, P)."""

    @staticmethod
    def forward(
        ctx: Any,
        stack: ConvolutionStack,
        theta: Tensor,
        pictures: Pictures,
        noise: tuple[Tensor, Tensor] | None,
        *parameters: Tensor,
    ) -> Tensor:
        pictures = stack.shown(pictures)
        saved = stack.forward(theta, pictures, noise)
        ctx.save_for_backward(*saved)
        ctx.rest = stack, pictures, noise is not None, [p.shape for p in parameters]
        return saved[-2] if stack.stages[-1].layer.pooled else saved[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        stack, pictures, dropped, shapes = ctx.rest
        found = stack.backward(ctx.saved_tensors, pictures, gradient.contiguous(), dropped)
        parts = found.split([shape[1:].numel() for shape in shapes], dim=1)
        return None, None, None, None, *(p.view(shape) for p, shape in zip(parts, shapes, strict=True))
