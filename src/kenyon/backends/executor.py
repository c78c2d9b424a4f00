"""Executors: how K learners of one backbone are computed. One definition, several executors, equal results.

In order of preference, each for the backbones and devices that it supports:

    Tiled     all runs at once by CUDA kernels of our own: 3x3 convolutions in bfloat16 on a Hopper GPU
    Dense     all runs at once: small dense networks on a CPU
    Looped    one run, a learner and some samples at a time on the cores of a CPU: `Sequential` of known layers
    Stacked   one run, all learners at once on a GPU: `Sequential` of known layers
    General   one run, one learner after another: any module

An executor has four verbs: `forward` maps parameters and samples to features, `gradients` differentiates a loss of
all runs, `batches_at_once` says in what portions importances are measured, and `capturable` whether a CUDA graph may
hold its work.
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
from kenyon.backends.layout import InUse, Layout, Leaves, Rows
from kenyon.backends.triton.factors import Factors
from kenyon.random import Noise
from kenyon.utils.determinism import USUAL_RUNS, is_deterministic

Runs = int | slice  # one run, or all
SMALL = 2**16  # elements of a tensor that one program of a grouped copy takes
STACKED = 80  # runs that fill a GPU with batches of 20


@dataclass(frozen=True)
class Request:
    """A backbone and the device that it is to be computed on."""

    backbone: nn.Module  # a template without storage
    shape: tuple[int, ...]  # of a sample
    layout: Layout  # of a run's row
    learners: int
    device: torch.device
    dtype: torch.dtype  # that learners compute in
    features: int  # of each learner
    constants: Mapping[str, Tensor]  # frozen parameters and buffers, on the CPU
    in_place: bool = True  # samples are images that may be read where they lie in their pool


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
    """A batch of every run, and what is differentiated of it."""

    net: Ensemble
    heads: Tensor  # (n,) heads in use
    batch: Callable[[Runs], S]  # of one run, or of all
    forward: Callable[..., Any]  # as `Net.forward`, or in its place
    loss: Callable[[Runs, Rows, Any, S], Tensor]  # (run, its weights, outputs, batch) -> scalar; of all runs (R,)
    runs: Sequence[int]
    each: Callable[[Sequence[int], Callable[[Runs], None]], None]  # does work for every run: `Lanes.each`
    noise: Noise | None  # of the step, for dropout
    samples: int  # of a batch, for which noise is drawn
    own: bool  # whether learners' own outputs are needed
    whole_network: bool  # `forward` is the network's own, without an active column
    factors: Mapping[str, Factors]  # weights whose gradients are kept as factors
    seen: Callable[[int, Any], None] | None  # takes the outputs of each run


class Executor(ABC):
    """Computes one run at a time, unless `all_runs`."""

    all_runs: ClassVar[bool] = False  # takes parameters (R, K, ...) and samples (R, B, *shape)
    small: ClassVar[bool] = False  # waking threads would take longer than the work
    converts: ClassVar[bool] = False  # converts a weight to the type of the samples where it is used
    checks: ClassVar[bool] = False  # a backbone has to be tried out before it is trained
    threads: bool = True  # several runs may be computed at the same time by threads of a CPU
    input_channels: int | None = None  # images should have this many channels, the last ones empty
    frame: Frame | None = None  # that images which are read in place should be laid into
    windows: int | None = None  # elements of all windows of a sample, if batches can be measured in groups
    constants: dict[str, Tensor] = {}  # noqa: RUF012 - frozen parts that all learners share; never changed

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
        """Return the parameters of these names in the type that learners compute in."""
        if self.converts:
            return dict(views) if not isinstance(views, dict) else views
        return {name: views[name].to(dtype) for name in names}

    def maps(self, theta: Tensor, images: Pictures) -> list[Tensor]:
        """Return the output of every convolution; only for executors that read images by reference."""
        raise NotImplementedError

    def side_by_side(self, noise: Tensor, batch: int) -> Tensor:
        """Return the bytes of several batches as those of one; only for executors that measure batches together."""
        raise NotImplementedError

    def factored_layers(self) -> list[str]:
        """Return the dense layers whose weight gradients may be kept as factors."""
        return []

    # ------------------------------------------------------------------ capture

    @property
    def capturable(self) -> bool:
        """True if a CUDA graph may hold the work."""
        return True

    def refuse_capture(self) -> bool:
        """A capture failed. True: from now on the work is not capturable; False: the failure is an error."""
        return False

    # ------------------------------------------------------------------ gradients

    def gradients(self, theta: Tensor, of: Pass[S], gradient: Tensor, value: Tensor) -> Tensor:
        """Put the loss of each run into `value` (R,) and return its gradient (R, P), which may be `gradient`."""
        if self.all_runs:
            return self._all_at_once(theta, of, value)
        net, drawn = of.net, None if of.noise is None else of.noise.bytes(self.noise_size(of.samples))

        def one_run(run: Runs) -> None:
            batch = of.batch(run)
            # Every parameter is a leaf, and its gradient goes to its place: assembling the row of a large network
            # would take longer than the backward pass.
            parts, places = net.layout.views(theta[run].detach()), net.layout.views(gradient[run])
            kept = {name: each.of_run(run) for name, each in of.factors.items()} if isinstance(run, int) else {}
            wanted = [name for name in parts if name not in kept]
            leaves = Leaves(parts | {name: parts[name].requires_grad_() for name in wanted}, places, kept)
            noise = None if drawn is None else drawn[run]
            with torch.enable_grad():
                outputs = of.forward(net, leaves, batch.images, of.heads, batch.member, noise=noise, own=of.own)
                result = of.loss(run, leaves, outputs, batch)
            with self.backward(noise):
                found = torch.autograd.grad(result, [leaves[name] for name in wanted], materialize_grads=True)
            # An nn.Embedding with sparse=True gives only the rows that were looked up.
            dense = (each.to_dense() if each.is_sparse else each for each in found)
            pairs = [(places[name], slope) for name, slope in zip(wanted, dense, strict=True)]
            _copy([(place, slope) for place, slope in pairs if place.data_ptr() != slope.data_ptr()])
            value[run].copy_(result.detach())
            if of.seen is not None and isinstance(run, int):
                of.seen(run, outputs)

        of.each(of.runs, one_run)
        return gradient

    def _all_at_once(self, theta: Tensor, of: Pass[S], value: Tensor) -> Tensor:
        found = theta

        def all_runs(run: Runs) -> None:
            nonlocal found
            batch = of.batch(run)
            rows = theta[run].detach().requires_grad_()
            with torch.enable_grad():
                outputs = of.forward(of.net, rows, batch.images, of.heads, batch.member, noise=of.noise, own=of.own)
                result = of.loss(run, rows, outputs, batch)
            found = torch.autograd.grad(result.sum(), rows)[0]
            value.copy_(result.detach())

        of.each(of.runs, all_runs)
        return found

    def backward(self, noise: Tensor | None) -> AbstractContextManager[object]:
        """Return the context in which gradients of one run are computed."""
        return nullcontext()

    # ------------------------------------------------------------------ importance

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        """Return how many small batches of a run are measured together; `room`: samples that fit at once."""
        if self.small:
            return 1
        if self.all_runs:  # each batch is one more run, up to a job of usual size
            return max(1, STACKED // (USUAL_RUNS if is_deterministic() else runs))
        return 1


class LayerExecutor(PlannedLayers, Executor):
    """Base of executors that know every layer of an `nn.Sequential`."""

    converts = True

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into its first: small ones in one call, which for a large one is slower than a copy."""
    for place, found in (pair for pair in pairs if pair[1].numel() > SMALL):
        place.copy_(found)
    small = [pair for pair in pairs if pair[1].numel() <= SMALL]
    torch._foreach_copy_([place for place, _ in small], [found for _, found in small])
