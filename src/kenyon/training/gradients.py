"""Gradients of a fleet into one flat buffer: every run in its own lane, or all together where the net can.

Which layers keep their gradients as factors: large dense ones, where a GPU takes runs one after another.

Heads that an optimiser need not look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from kenyon.backends.cuda.tiled import Tiled
from kenyon.backends.layout import Leaves, Rows
from kenyon.backends.torch.module import General
from kenyon.backends.triton.dense import MOST, available
from kenyon.backends.triton.factors import Factors
from kenyon.backends.triton.groups import Groups, Sums
from kenyon.backends.triton.stacked import Stacked
from kenyon.backends.triton.updates import Idle
from kenyon.models import Net, Outputs, Pictures
from kenyon.random import Noise
from kenyon.training.batches import Batch, Loader
from kenyon.training.device import Lanes, Runs

# (run, its named weights, outputs, batch) -> scalar loss; or for all: (slice, rows (R, P), outputs, batch) -> (R,)
RunLoss = Callable[[Runs, Rows, Outputs, Batch], Tensor]
# (run, its row (P,), outputs, weights of the samples (B,)) -> scalar; or all runs, with a leading run axis
PredictionLoss = Callable[[Runs, Rows, Outputs, Tensor], Tensor]

SMALL = 2**16  # numbers of a tensor: what one program of a copy of many takes


class Shown(Protocol):
    """A batch as the network sees it."""

    @property
    def images(self) -> Tensor | Pictures: ...

    @property
    def member(self) -> Tensor | None: ...


B_co = TypeVar("B_co", bound=Shown, covariant=True)
B = TypeVar("B", bound=Shown)


class Batches(Protocol[B_co]):
    """Where batches come from, whatever the samples are."""

    step: Tensor  # (1,) which batch is next
    size: int
    beside: int  # samples of other tasks in a batch, beyond its size

    def batch(self, run: Runs) -> B_co: ...


def data_gradients(
    net: Net,
    theta: Tensor,
    loader: Batches[B],
    heads: Tensor,
    loss: Callable[[Runs, Rows, Outputs, B], Tensor],
    *,
    forward: Callable[..., Outputs],
    lanes: Lanes,
    runs: Sequence[int],
    noise: Noise | None,
    own: bool,
    gradient: Tensor,
    value: Tensor,
    factors: Mapping[str, Factors] | None = None,
    seen: Callable[[int, Outputs], None] | None = None,
) -> Tensor:
    """The loss of each run on its current batch into `value` (R,), its gradient (R, P), perhaps in `gradient`.

    `forward` is Net.forward, or something in its place. Where the net takes runs one after another, `factors` are of
    weights whose gradient is not written, but what it is a product of, and `seen` is told what each run says of its
    batch.

    `noise` is for dropout, of all steps of this pass; None turns dropout off. Runs share nothing, so that a run's
    numbers are the same whoever trains beside it.
    """
    noise = None if noise is None else noise.of_step(loader.step)
    drawn = (
        None if noise is None or net.together else noise.bytes(net.execute.noise_size(loader.size + loader.beside))
    )

    result_of_all = gradient

    def through_kernels(run: Runs) -> None:
        """All runs, without what other heads have: of a long sequence that is most of a row."""
        batch, protected = loader.batch(run), net.layout.protected
        weights = theta[:, :protected].detach().requires_grad_()
        with torch.enable_grad():
            parts = net.in_use(weights, theta, heads)
            others = {name: parts[name].requires_grad_() for name in (*net.head_names, *net.learned)}
            outputs = forward(net, parts, batch.images, heads, batch.member, noise=noise, own=own)
            result = loss(run, parts, outputs, batch)
        first, *rest = torch.autograd.grad(result.sum(), [weights, *others.values()], allow_unused=True)
        assert first is not None
        gradient[:, :protected].copy_(first)
        gradient[:, protected:].zero_()
        for name, found in zip(others, rest, strict=True):
            place = net.layout.view(gradient, name)
            if found is not None and name in net.per_head:
                place.index_copy_(1, heads, found)
            elif found is not None:
                place.copy_(found)
        value.copy_(result.detach())

    def all_runs(run: Runs) -> None:
        nonlocal result_of_all
        batch = loader.batch(run)
        rows = theta[run].detach().requires_grad_()
        with torch.enable_grad():
            outputs = forward(net, rows, batch.images, heads, batch.member, noise=noise, own=own)
            result = loss(run, rows, outputs, batch)
        result_of_all = torch.autograd.grad(result.sum(), rows)[0]
        value.copy_(result.detach())

    def one_run(run: Runs) -> None:
        batch = loader.batch(run)
        # Every parameter is a leaf of its own, and its gradient goes to its place: a large network would otherwise
        # spend more time on putting its row together than on learning.
        parts, places = net.layout.views(theta[run].detach()), net.layout.views(gradient[run])
        kept = {name: each.of_run(run) for name, each in (factors or {}).items()} if isinstance(run, int) else {}
        wanted = [name for name in parts if name not in kept]
        leaves = Leaves(parts | {name: parts[name].requires_grad_() for name in wanted}, places, kept)
        with torch.enable_grad():
            mine = None if drawn is None else drawn[run]
            outputs = forward(net, leaves, batch.images, heads, batch.member, noise=mine, own=own)
            result = loss(run, leaves, outputs, batch)
        with net.execute.backward(mine) if isinstance(net.execute, General) else nullcontext():
            found = torch.autograd.grad(result, [leaves[name] for name in wanted], materialize_grads=True)
        # An nn.Embedding with sparse=True gives only the rows that it has looked up.
        dense = (each.to_dense() if each.is_sparse else each for each in found)
        pairs = [(places[name], gradient) for name, gradient in zip(wanted, dense, strict=True)]
        elsewhere = [(place, gradient) for place, gradient in pairs if place.data_ptr() != gradient.data_ptr()]
        _copied(elsewhere)
        value[run].copy_(result.detach())
        if seen is not None and isinstance(run, int):
            seen(run, outputs)

    if isinstance(net.execute, Tiled) and forward is Net.forward and net.columns is None:
        lanes.each(runs, through_kernels)
    else:
        lanes.each(runs, all_runs if net.together else one_run)
    return result_of_all


def _copied(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second into its first: all small ones at once, which for a large one takes longer than a copy."""
    for place, found in (pair for pair in pairs if pair[1].numel() > SMALL):
        place.copy_(found)
    small = [pair for pair in pairs if pair[1].numel() <= SMALL]
    torch._foreach_copy_([place for place, _ in small], [found for _, found in small])


def stacked_gradients(
    net: Net, theta: Tensor, loader: Loader, heads: Tensor, loss: RunLoss, noise: Noise | None, count: int
) -> Tensor:
    """The gradients of the next `count` batches of every run, of protected weights, (R, count, Pp), where our kernels
    take runs together: each batch is one more run with the same weights.
    """
    weights = theta[:, : net.layout.protected].detach().repeat_interleave(count, 0).requires_grad_()
    batch, steps = loader.stacked(count), loader.steps_ahead(count)
    with torch.enable_grad():
        drawn = None if noise is None else noise.of_steps(steps)
        parts = net.in_use(weights, theta, heads, count)
        outputs = net.forward(parts, batch.images, heads, batch.member, noise=drawn)
        result = loss(slice(None), parts, outputs, batch)
    return torch.autograd.grad(result.sum(), weights)[0].unflatten(0, (len(theta), count))


def grouped_gradients(
    net: Net,
    theta: Tensor,
    loader: Loader,
    heads: Tensor,
    loss: RunLoss,
    noise: Noise | None,
    sums: Sequence[Sums],
    *,
    lanes: Lanes,
    runs: Sequence[int],
) -> None:
    """What the next batches of every run say of its weights, each batch for itself, into the run's sums; where the
    net takes runs one after another, and `groups` knows its layers. `loss` is that of several batches in a row.
    """
    count = len(sums[0].shares)
    drawn = None
    if noise is not None:
        bytes = noise.of_steps(loader.steps_ahead(count)).bytes(net.execute.noise_size(loader.size))
        drawn = bytes.unflatten(0, (len(theta), count))

    def one_run(run: Runs) -> None:
        assert isinstance(run, int) and isinstance(net.execute, Stacked)
        batch = loader.ahead(run, count)
        parts = net.layout.views(theta[run].detach())
        weights = [parts[name].requires_grad_() for name in net.backbone_names if name.endswith("weight")]
        mine = None if drawn is None else net.execute.side_by_side(drawn[run], loader.size)
        with torch.enable_grad():
            groups = Groups(parts, sums[run])
            outputs = net.forward(groups, batch.images, heads, batch.member, noise=mine)
            result = loss(run, groups, outputs, batch)
        torch.autograd.grad(result, weights, allow_unused=True)  # finds nothing: it is in the sums

    lanes.each(runs, one_run)


LARGE = 2**20  # weights; of fewer, what is saved is less than what a pass of their own costs


def factors_of_layers(net: Net, runs: int, batch: int) -> dict[str, Factors]:
    """Room for the factors of every layer that is worth it, by the name of its weights, in the order of the rows."""
    execute = net.execute
    if not isinstance(execute, Stacked) or net.columns is not None or batch > MOST or not _pays(net):
        return {}
    found: dict[str, Factors] = {}
    for step in execute.steps:
        # Factors are kept in the backward pass of the layer's bias.
        if isinstance(step.layer, nn.Linear) and step.layer.bias is not None:
            segment = net.layout.segments[f"{step.name}.weight"]
            K, O, I = segment.shape  # noqa: E741
            if segment.size >= LARGE:
                sizes = ((K, batch, O), (K, batch, I), (K, O, I))
                found[segment.name] = Factors(segment.start, *(net.zeros(runs, *size) for size in sizes))
    return found


def _pays(net: Net) -> bool:
    return available(net.zeros(1))


FEW = 8  # heads in use among which a pass over all weights looks for its own


def idle_heads(net: Net, used: Tensor) -> Idle | None:
    """All but those in use (n,), where heads are most of a row, as in a long sequence, and begin without momentum."""
    weights = net.layout.segments["head.weight"]
    if len(used) > FEW or 2 * weights.size < net.layout.size:
        return None
    return Idle(weights.start, weights.size // weights.shape[0], weights.stop, used)
