"""The convolutions of a backbone in sequence, forward and backward for all runs at once."""

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
    """Kernels, index maps and buffers for the convolutions of R runs.

    `independent`: the number of learners of a run if each is computed as a run of its own, with its slice of every
    segment's weights; such a learner then counts as one of the R runs.
    """

    def __init__(self, stages: Sequence[Stage], device: torch.device, build: Build, independent: int = 1) -> None:
        self.stages, self.device, self.independent = stages, device, independent
        self.processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        )
        self.second_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._build(build)
        self.packing = Packing(stages, independent, device)
        self._totals: dict[tuple[int, int, int], Totals] = {}

    def _build(self, build: Build) -> None:
        requests: list[tuple[str, dict[str, int], int]] = []
        for s in self.stages:
            source = IMAGES if s.layer.first else ACTIVATIONS
            gradient = POOLED if s.layer.pooled else ACTIVATIONS
            plain, pooled = (RELU, RELU_POOL) if s.layer.relu else (BIAS, BIAS_POOL)
            forward = {**s.tiling.macros, "SOURCE": source, "RESULT": pooled if s.layer.pooled else plain}
            requests.append((s.tiling.kernel, forward, s.tiling.shared_bytes))
            requests.append(
                ("weigh", {**s.sharing.macros, "SOURCE": source, "GRADIENT": gradient}, s.sharing.shared_bytes)
            )
        for before, s in zip(self.stages, self.stages[1:], strict=False):
            assert s.backward is not None
            # The code of a pooled input tells where gradients go; after a ReLU they pass where it is positive.
            result = MASKED if before.layer.relu and not before.layer.pooled else AS_IS
            gradient = POOLED if s.layer.pooled else ACTIVATIONS
            requests.append(
                (
                    s.backward.kernel,
                    {**s.backward.macros, "SOURCE": gradient, "RESULT": result},
                    s.backward.shared_bytes,
                )
            )
        kernels = list(build(requests))
        both = 2 * len(self.stages)
        self.forwards, self.weighs, self.backwards = kernels[0:both:2], kernels[1:both:2], [None, *kernels[both:]]

    # ------------------------------------------------------------------ forward

    def forward(self, theta: Tensor, pictures: Pictures, noise: tuple[Tensor, Tensor] | None) -> list[Tensor]:
        """Map rows (R, P), or fewer with independent learners, to the weights packed for the kernels and, for each
        layer, its output (R, B, H, W, C) bfloat16 and the code of its pooling.

        `noise`: the two keys (R,) of this pass's dropout.
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
        """Return the output of every layer without dropout."""
        return self._unpacked(self.forward(theta, pictures, None))[1]

    def repeated(self, pictures: Pictures) -> Pictures:
        """Return the batch of every run; independent learners of one run have the same."""
        if self.independent == 1:
            return pictures
        addresses, index = (x.repeat_interleave(self.independent, 0) for x in (pictures.addresses, pictures.index))
        return replace(pictures, addresses=addresses, index=index)

    # ------------------------------------------------------------------ backward

    def backward(self, saved: Sequence[Tensor], pictures: Pictures, gradient: Tensor, dropped: bool) -> Tensor:
        """Map the gradient of the stack's output (R, B, H, W, C) to that of its parameters, (rows, n) float32."""
        R, B = pictures.index.shape
        packed, outputs, codes = self._unpacked(saved)
        totals = self._totals_of(B, R)
        buffer = totals.buffer()
        partial, sums = totals.views(buffer), totals.result()
        if self.stages[-1].layer.relu and not self.stages[-1].layer.pooled:
            gradient = gradient * (outputs[-1] > 0)
        alive = [gradient]  # until both streams have finished with them
        for number in reversed(range(len(self.stages))):
            s = self.stages[number]
            source = Source(data=gradient.data_ptr(), scale=1.0)
            if s.layer.pooled:
                source.code = codes[number].data_ptr()
                source.scale = s.site.scale if s.site is not None and dropped else 1.0
            inputs = self._images(pictures) if s.layer.first else Source(data=outputs[number - 1].data_ptr())
            with self._on_second_stream():
                self._weigh(number, inputs, source, partial[2 * number], partial[2 * number + 1], B, R)
                totals.add_up(buffer, sums, number)
            if s.backward is not None:
                before = outputs[number - 1]
                dx = torch.empty_like(before)
                target = Target(data=dx.data_ptr(), mask=before.data_ptr())
                weights = packed.data_ptr() + 2 * self.packing.backwards[number]
                kernel = self.backwards[number]
                assert kernel is not None
                self._convolve(kernel, s.backward, source, weights, 0, target, B, R)
                gradient = dx
                alive.append(dx)
        if self.second_stream is not None:
            torch.cuda.current_stream().wait_stream(self.second_stream)
        return taken(sums.view(R // self.independent, -1), self.packing.gradients, torch.float32)

    @contextmanager
    def _on_second_stream(self) -> Iterator[None]:
        """Enter the second stream, after the work queued so far, to compute gradients of weights."""
        if self.second_stream is None:
            yield
            return
        self.second_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.second_stream):
            yield

    def _unpacked(self, saved: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], dict[int, Tensor]]:
        """Return the packed weights, the outputs, and the codes by the layer's number."""
        left = iter(saved)
        packed, outputs, codes = next(left), [], {}
        for number, s in enumerate(self.stages):
            outputs.append(next(left))
            if s.layer.pooled:
                codes[number] = next(left)
        return packed, outputs, codes

    def _totals_of(self, batch: int, runs: int) -> Totals:
        """Return the sums over the results of `weigh`, for each layer of its weights, then of its bias."""
        shared_by = USUAL_RUNS * self.independent if is_deterministic() else runs
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
    """The stack as a function of its parameters, each (rows, K, ...), views of the beginning of rows (rows, P)."""

    @staticmethod
    def forward(
        ctx: Any,
        stack: ConvolutionStack,
        theta: Tensor,
        pictures: Pictures,
        noise: tuple[Tensor, Tensor] | None,
        *parameters: Tensor,
    ) -> Tensor:
        pictures = stack.repeated(pictures)
        saved = stack.forward(theta, pictures, noise)
        ctx.save_for_backward(*saved)
        ctx.rest = stack, pictures, noise is not None, [p.shape for p in parameters]
        return saved[-2] if stack.stages[-1].layer.pooled else saved[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        stack, pictures, dropped, shapes = ctx.rest
        gradients = stack.backward(ctx.saved_tensors, pictures, gradient.contiguous(), dropped)
        params = gradients.split([shape[1:].numel() for shape in shapes], dim=1)
        return None, None, None, None, *(p.view(shape) for p, shape in zip(params, shapes, strict=True))
