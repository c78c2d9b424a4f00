"""Executors: ways to compute K learners of one backbone, with equal results.

In order of preference, each for the backbones and devices that it supports:

    Tiled     all runs at once by custom CUDA kernels: 3x3 convolutions in bfloat16 on a Hopper GPU
    Dense     all runs at once: small dense networks on a CPU
    Looped    one run, in chunks of a learner and some samples on the cores of a CPU: `Sequential` of known layers
    Stacked   one run, all learners at once on a GPU: `Sequential` of known layers
    General   one run, one learner after another: any module

`forward` maps parameters and samples to features, `gradients` differentiates a loss of all runs, `batches_at_once`
is the number of batches per pass of an importance measurement, and `capturable` tells whether a CUDA graph may hold
the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from kenyon.backends.cuda.interface import Pictures
from kenyon.backends.layers import Frame, Params, PlannedLayers
from kenyon.backends.layout import Factors, InUse, Layout, Leaves, Rows
from kenyon.random import Noise
from kenyon.utils.determinism import USUAL_RUNS, is_deterministic

Runs = int | slice  # one run, or all runs
SMALL = 2**16  # elements that one program of a grouped copy takes
STACKED = 80  # runs that fill a GPU with batches of 20


@dataclass(frozen=True)
class Request:
    """A backbone and the device to compute it on."""

    backbone: nn.Module  # a template without storage
    shape: tuple[int, ...]  # of a sample
    layout: Layout  # of a run's row
    learners: int
    device: torch.device
    dtype: torch.dtype  # of the computation
    features: int  # of each learner
    constants: Mapping[str, Tensor]  # frozen parameters and buffers, on the CPU
    in_place: bool = True  # samples are images that may be read directly from their pool


class Ensemble(Protocol):
    """The part of a network that executors see."""

    layout: Layout
    head_names: tuple[str, ...]
    learned: dict[str, tuple[int, ...]]
    per_head: frozenset[str]

    def in_use(self, weights: Tensor, theta: Tensor, heads: Tensor) -> InUse: ...


class Sample(Protocol):
    """A batch as the network sees it."""

    @property
    def images(self) -> Tensor | Pictures: ...

    @property
    def member(self) -> Tensor | None: ...


S = TypeVar("S", bound=Sample)


@dataclass(frozen=True)
class Pass(Generic[S]):
    """A batch of every run and the loss to differentiate."""

    net: Ensemble
    heads: Tensor  # (n,) heads in use
    batch: Callable[[Runs], S]  # of one run, or of all
    forward: Callable[..., Any]  # `Net.forward` or a replacement with its signature
    loss: Callable[[Runs, Rows, Any, S], Tensor]  # (run, its weights, outputs, batch) -> scalar; of all runs (R,)
    runs: Sequence[int]
    each: Callable[[Sequence[int], Callable[[Runs], None]], None]  # calls a function for every run: `Lanes.each`
    noise: Noise | None  # of the step, for dropout
    samples: int  # of a batch, that noise is drawn for
    own: bool  # outputs of single learners are needed
    whole_network: bool  # `forward` is `Net.forward`, without an active column
    factors: Mapping[str, Factors]  # of weights whose gradients are stored as factors
    seen: Callable[[int, Any], None] | None  # receives the outputs of each run


class Executor(ABC):
    """Base of executors: computes one run at a time, unless `all_runs`."""

    all_runs: ClassVar[bool] = False  # takes parameters (R, K, ...) and samples (R, B, *shape)
    small: ClassVar[bool] = False  # the work is shorter than waking threads would be
    converts: ClassVar[bool] = False  # converts a weight to the type of the samples where it is used
    checks: ClassVar[bool] = False  # a backbone has to be tried out before training
    threads: bool = True  # threads of a CPU may compute several runs at the same time
    input_channels: int | None = None  # images should have this many channels, the last ones empty
    frame: Frame | None = None  # to place images in that are read from their pool
    windows: int | None = None  # elements of all windows of a sample, if batches can be measured in groups
    constants: dict[str, Tensor] = {}  # noqa: RUF012 - frozen tensors that all learners share; never changed

    @classmethod
    @abstractmethod
    def for_backbone(cls, request: Request) -> Self | None:
        """Return the executor, or None if it does not support the backbone on the device."""

    @abstractmethod
    def forward(self, params: Params, images: Any, noise: Any, *, rows: Tensor | None = None) -> Tensor:
        """Map the parameters of one run with a leading learner axis and samples (B, *shape) to features (K, B, F).

        `noise` are the random bytes of the run and step for dropout, None in tests; executors that take all runs have
        a leading run axis everywhere, a `Noise`, and the rows (R, P) that the parameters are views of.
        """

    @abstractmethod
    def noise_size(self, batch: int) -> int:
        """Return the number of random bytes that one run needs for one batch."""

    def prepared(self, views: Mapping[str, Tensor], names: Iterable[str], dtype: torch.dtype) -> Params:
        """Return the parameters of these names in the type of the computation."""
        if self.converts:
            return dict(views) if not isinstance(views, dict) else views
        return {name: views[name].to(dtype) for name in names}

    def maps(self, theta: Tensor, images: Pictures) -> list[Tensor]:
        """Return the output of every convolution; only in executors that read images by reference."""
        raise NotImplementedError(f"{type(self).__name__} reads no images by reference: give them as tensors.")

    def side_by_side(self, noise: Tensor, batch: int) -> Tensor:
        """Return the bytes of several batches as those of one; only in executors that compute batches together."""
        raise NotImplementedError(f"{type(self).__name__} computes batches one by one: keep batches_at_once at 1.")

    def factored_layers(self) -> list[str]:
        """Return the dense layers whose weight gradients may be stored as factors."""
        return []

    # ------------------------------------------------------------------ capture

    @property
    def capturable(self) -> bool:
        """True if a CUDA graph may hold the work."""
        return True

    def refuse_capture(self) -> bool:
        """Respond to a failed capture: True if the work is not capturable from now on, False if this is an error."""
        return False

    # ------------------------------------------------------------------ gradients

    def gradients(self, theta: Tensor, of: Pass[S], gradient: Tensor, value: Tensor) -> Tensor:
        """Put the loss of each run into `value` (R,) and return its gradient (R, P), which may be `gradient`."""
        if self.all_runs:
            return self._all_at_once(theta, of, value)
        net, drawn = of.net, None if of.noise is None else of.noise.bytes(self.noise_size(of.samples))

        def one_run(run: Runs) -> None:
            batch = of.batch(run)
            # Every parameter is a leaf with memory for its gradient: assembling the row of a large network would take
            # longer than the backward pass.
            params, memory = net.layout.views(theta[run].detach()), net.layout.views(gradient[run])
            factors = {name: each.of_run(run) for name, each in of.factors.items()} if isinstance(run, int) else {}
            names = [name for name in params if name not in factors]
            leaves = Leaves(params | {name: params[name].requires_grad_() for name in names}, memory, factors)
            noise = None if drawn is None else drawn[run]
            with torch.enable_grad():
                outputs = of.forward(net, leaves, batch.images, of.heads, batch.member, noise=noise, own=of.own)
                result = of.loss(run, leaves, outputs, batch)
            with self.backward(noise):
                computed = torch.autograd.grad(result, [leaves[name] for name in names], materialize_grads=True)
            # An nn.Embedding with sparse=True returns only the rows that it has looked up.
            dense = (each.to_dense() if each.is_sparse else each for each in computed)
            pairs = [(memory[name], each) for name, each in zip(names, dense, strict=True)]
            _copy([(place, each) for place, each in pairs if place.data_ptr() != each.data_ptr()])
            value[run].copy_(result.detach())
            if of.seen is not None and isinstance(run, int):
                of.seen(run, outputs)

        of.each(of.runs, one_run)
        return gradient

    def _all_at_once(self, theta: Tensor, of: Pass[S], value: Tensor) -> Tensor:
        gradient = theta

        def all_runs(run: Runs) -> None:
            nonlocal gradient
            batch = of.batch(run)
            rows = theta[run].detach().requires_grad_()
            with torch.enable_grad():
                outputs = of.forward(of.net, rows, batch.images, of.heads, batch.member, noise=of.noise, own=of.own)
                result = of.loss(run, rows, outputs, batch)
            gradient = torch.autograd.grad(result.sum(), rows)[0]
            value.copy_(result.detach())

        of.each(of.runs, all_runs)
        return gradient

    def backward(self, noise: Tensor | None) -> AbstractContextManager[object]:
        """Return the context to compute gradients of one run in."""
        return nullcontext()

    # ------------------------------------------------------------------ importance

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        """Return the number of small batches of a run to measure together; `room`: samples that fit at once."""
        if self.small:
            return 1
        if self.all_runs:  # each batch is one more run, up to a job of usual size
            return max(1, STACKED // (USUAL_RUNS if is_deterministic() else runs))
        return 1


class LayerExecutor(PlannedLayers, Executor):
    """Base of executors for an `nn.Sequential` of known layers."""

    converts = True

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first: small ones in one call, large ones one by one, which is
    faster for them.
    """
    for place, value in (pair for pair in pairs if pair[1].numel() > SMALL):
        place.copy_(value)
    small = [pair for pair in pairs if pair[1].numel() <= SMALL]
    torch._foreach_copy_([place for place, _ in small], [value for _, value in small])
