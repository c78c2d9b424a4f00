"""What batch normalisation has seen, kept for every task beside its head: in a run's row, (T, K, ...) by name.

They learn from training batches alone, by moving averages; no gradient reaches them, and no penalty.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kenyon.backends.executor import Executor
from kenyon.backends.layers import Params
from kenyon.backends.layout import Layout, aligned


class Statistics:
    def __init__(self, found: Mapping[str, Tensor], *, given: bool) -> None:
        """Of one learner: the first are those `found` in a given module, or of layers that have seen nothing. Counts
        become float32, which is exact for the first 2^24 batches.
        """
        if given:
            self.first = {n: v.to("cpu", torch.float32, copy=True) for n, v in found.items()}
        else:
            self.first = {n: torch.full(v.shape, float(n.endswith("running_var"))) for n, v in found.items()}

    def __bool__(self) -> bool:
        return bool(self.first)

    def shapes(self, heads: int, learners: int) -> dict[str, tuple[int, ...]]:
        return {name: (heads, learners, *value.shape) for name, value in self.first.items()}

    def features(
        self,
        executor: Executor,
        params: Params,
        views: Params,
        samples: Tensor,
        head: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Params]:
        """What learners with the statistics of one head (1,) make of samples, (K, B, F), and these statistics,
        (K, ...) by name: with `noise` the samples are a batch in training, which is normalised by itself and added to
        them.
        """
        dtype = next(iter(params.values())).dtype
        # A copy. The host is not asked which head it is, so that a CUDA graph can hold this.
        mine = {name: views[name].detach().index_select(0, head).squeeze(0) for name in self.first}
        # Each in memory of its own: counting a batch changes one, and autograd takes its neighbours for changed too.
        mine = {name: aligned({name: value}, dtype)[name] for name, value in mine.items()}
        return executor.forward(params | mine, samples, noise), mine

    def of_each(
        self,
        executor: Executor,
        params: Params,
        views: Params,
        samples: Tensor,
        heads: Tensor,
        member: Tensor,
    ) -> Tensor:
        """In tests every sample is normalised by the statistics of its own task: member (B,) counts the heads."""
        parts = {place: member == place for place in member.unique().tolist()}
        found = {
            p: self.features(executor, params, views, samples[mine], heads[p : p + 1])[0] for p, mine in parts.items()
        }
        first = next(iter(found.values()))
        features = first.new_zeros(len(first), len(samples), first.shape[2])
        for place, mine in parts.items():
            features[:, mine] = found[place]
        return features

    def begin(self, views: Params) -> None:
        """The first ones, in the named views of a row."""
        for name, value in self.first.items():
            views[name].copy_(value.expand_as(views[name]))

    def keep(self, layout: Layout, row: Tensor, heads: Tensor, seen: Params, present: Tensor) -> None:
        """Put what was seen of a batch into the row (P,) of a run, for all tasks whose heads were in use; nothing
        where the run is not `present` () in this step, having no more batches.
        """
        for name, value in seen.items():
            view = layout.view(row, name)
            before = view.index_select(0, heads)
            view.index_copy_(0, heads, torch.where(present > 0, value.to(row.dtype).expand_as(before), before))

    def hand_on(self, layout: Layout, rows: Tensor, head: int) -> None:
        """Where a task ends, the tasks behind it begin; rows (R, P)."""
        for name in self.first:
            view = layout.view(rows, name)  # (R, T, K, ...)
            view[:, head + 1 :] = view[:, head : head + 1]
