"""Gradients of all runs into one flat buffer, and the gradients of many small batches for importances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from kenyon.backends.executor import Pass, Runs, Sample
from kenyon.backends.layout import Factors, Rows
from kenyon.backends.triton.dense import MOST, available
from kenyon.backends.triton.groups import Groups, Sums
from kenyon.backends.triton.updates import Idle
from kenyon.methods.base import whole_network
from kenyon.models import Net, Outputs
from kenyon.random import Noise
from kenyon.training.batches import Batch, Loader
from kenyon.training.device import Lanes

# (run, its named weights, outputs, batch) -> scalar loss; or for all: (slice, rows (R, P), outputs, batch) -> (R,)
RunLoss = Callable[[Runs, Rows, Outputs, Batch], Tensor]
# (run, its row (P,), outputs, weights of the samples (B,)) -> scalar; or all runs, with a leading run axis. With the
# samples as a fifth argument, a teacher may see them.
PredictionLoss = Callable[..., Tensor]

B_co = TypeVar("B_co", bound=Sample, covariant=True)
B = TypeVar("B", bound=Sample)


class Batches(Protocol[B_co]):
    """A source of batches, of images or of play."""

    step: Tensor  # (1,) the next batch
    size: int
    memory_size: int  # samples of other tasks in a batch, beyond its size

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
    """Put the loss of each run on its current batch into `value` (R,) and return its gradient (R, P).

    `forward` is Net.forward, or takes its place. Where the executor takes runs one after another, no gradient is
    written for weights with `factors`, and `seen` takes the outputs of each run. `noise` is for dropout, of all steps
    of this pass; None turns dropout off. Runs share nothing: the numbers of a run do not depend on the others.
    """
    of = Pass(
        net=net,
        heads=heads,
        batch=loader.batch,
        forward=forward,
        loss=loss,
        runs=runs,
        each=lanes.each,
        noise=None if noise is None else noise.of_step(loader.step),
        samples=loader.size + loader.memory_size,
        own=own,
        whole_network=forward in (Net.forward, whole_network) and net.columns is None,
        factors=factors or {},
        seen=seen,
    )
    return net.executor.gradients(theta, of, gradient, value)


def stacked_gradients(
    net: Net, theta: Tensor, loader: Loader, heads: Tensor, loss: RunLoss, noise: Noise | None, count: int
) -> Tensor:
    """Return the gradients of the next `count` batches of every run, of protected weights, (R, count, Pp), for
    executors that take all runs: each batch is one more run with the same weights.
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
    """Add the gradients of the next batches of every run, each batch by itself, to the run's sums; for executors that
    measure batches in groups. `loss` takes several batches in a row.
    """
    count = len(sums[0].scales)
    drawn = None
    if noise is not None:
        bytes = noise.of_steps(loader.steps_ahead(count)).bytes(net.executor.noise_size(loader.size))
        drawn = bytes.unflatten(0, (len(theta), count))

    def one_run(run: Runs) -> None:
        assert isinstance(run, int)
        batch = loader.ahead(run, count)
        parts = net.layout.views(theta[run].detach())
        weights = [parts[name].requires_grad_() for name in net.backbone_names if name.endswith("weight")]
        of_run = None if drawn is None else net.executor.side_by_side(drawn[run], loader.size)
        with torch.enable_grad():
            groups = Groups(parts, sums[run])
            outputs = net.forward(groups, batch.images, heads, batch.member, noise=of_run)
            result = loss(run, groups, outputs, batch)
        torch.autograd.grad(result, weights, allow_unused=True)  # returns nothing: gradients are in the sums

    lanes.each(runs, one_run)


LARGE = 2**20  # weights; of fewer, what is saved is less than what a pass of their own costs


def factors_of_layers(net: Net, runs: int, batch: int) -> dict[str, Factors]:
    """Return room for the factors of large dense layers, by the name of their weights, in the order of the rows."""
    if net.columns is not None or batch > MOST or not available(net.zeros(1)):
        return {}
    segments = (net.layout.segments[f"{name}.weight"] for name in net.executor.factored_layers())
    found: dict[str, Factors] = {}
    for segment in segments:
        K, O, I = segment.shape  # noqa: E741
        if segment.size >= LARGE:
            sizes = ((K, batch, O), (K, batch, I), (K, O, I))
            found[segment.name] = Factors(segment.start, *(net.zeros(runs, *size) for size in sizes))
    return found


FEW = 8  # heads in use among which a pass over all weights looks for its own


def idle_heads(net: Net, used: Tensor) -> Idle | None:
    """Return all heads but those in use (n,), if heads are most of a row, as in a long sequence; else None."""
    weights = net.layout.segments["head.weight"]
    if len(used) > FEW or 2 * weights.size < net.layout.size:
        return None
    return Idle(weights.start, weights.size // weights.shape[0], weights.stop, used)
