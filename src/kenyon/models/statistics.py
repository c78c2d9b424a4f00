"""Running statistics of batch normalization, one set per head: (T, K, ...) by name, in a run's row.

They are moving averages over training batches: no gradient reaches them, and no penalty acts on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kenyon.backends.executor import Executor
from kenyon.backends.layers import Params
from kenyon.backends.layout import Layout, aligned


class Statistics:
    def __init__(self, template: Mapping[str, Tensor], *, given: bool) -> None:
        """`template`: statistics of one learner by name. They are the initial values if `given`; otherwise means are
        0 and variances 1. Counts become float32, which is exact for the first 2^24 batches.
        """
        if given:
            self.initial = {n: v.to("cpu", torch.float32, copy=True) for n, v in template.items()}
        else:
            self.initial = {n: torch.full(v.shape, float(n.endswith("running_var"))) for n, v in template.items()}

    def __bool__(self) -> bool:
        return bool(self.initial)

    def shapes(self, heads: int, learners: int) -> dict[str, tuple[int, ...]]:
        return {name: (heads, learners, *value.shape) for name, value in self.initial.items()}

    def initialize(self, views: Params) -> None:
        """Write the initial values into the named views of a row."""
        for name, value in self.initial.items():
            views[name].copy_(value.expand_as(views[name]))

    def features(
        self,
        executor: Executor,
        params: Params,
        views: Params,
        samples: Tensor,
        head: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Params]:
        """Return the features (K, B, F) with the statistics of one head (1,), and these statistics, (K, ...) by name.

        With `noise` the samples are a training batch: it is normalized by itself, and the statistics include it.
        """
        dtype = next(iter(params.values())).dtype
        # A copy. The head is not read on the host, so that a CUDA graph can hold this.
        copies = {name: views[name].detach().index_select(0, head).squeeze(0) for name in self.initial}
        # Each in memory of its own: counting a batch changes one, and autograd would take its neighbors for changed.
        copies = {name: aligned({name: value}, dtype)[name] for name, value in copies.items()}
        return executor.forward(params | copies, samples, noise), copies

    def features_by_task(
        self,
        executor: Executor,
        params: Params,
        views: Params,
        samples: Tensor,
        heads: Tensor,
        member: Tensor,
    ) -> Tensor:
        """Return the features of test samples, each with the statistics of its head, `heads[member]` (B,)."""
        masks = {place: member == place for place in member.unique().tolist()}
        by_place = {
            place: self.features(executor, params, views, samples[mask], heads[place : place + 1])[0]
            for place, mask in masks.items()
        }
        first = next(iter(by_place.values()))
        features = first.new_zeros(len(first), len(samples), first.shape[2])
        for place, mask in masks.items():
            features[:, mask] = by_place[place]
        return features

    def update(self, layout: Layout, row: Tensor, heads: Tensor, updated: Params, present: Tensor) -> None:
        """Write statistics that include a batch into the row (P,) of a run, for all heads in use. There is no change
        if the run is not `present` () in this step because it has no more batches.
        """
        for name, value in updated.items():
            view = layout.view(row, name)
            before = view.index_select(0, heads)
            view.index_copy_(0, heads, torch.where(present > 0, value.to(row.dtype).expand_as(before), before))

    def carry_over(self, layout: Layout, rows: Tensor, head: int) -> None:
        """Let all later heads start from the statistics of a finished head, in rows (R, P)."""
        for name in self.initial:
            view = layout.view(rows, name)  # (R, T, K, ...)
            view[:, head + 1 :] = view[:, head : head + 1]
