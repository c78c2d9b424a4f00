"""What a fleet minimises: the loss of the stage at hand, and the penalties of its method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kenyon.hooks import Hooks
from kenyon.methods import Method
from kenyon.nets import Net, Outputs
from kenyon.nets.layout import Rows
from kenyon.train.device import Runs
from kenyon.train.engine import Engine
from kenyon.train.fleet import Batch
from kenyon.train.measuring import PredictionLoss
from kenyon.train.terms import Terms


class Objective(Terms):
    def __init__(
        self,
        net: Net,
        method: Method,
        engine: Engine,
        theta: Tensor,
        importance: Tensor,
        anchor: Tensor,
        hooks: Sequence[Hooks],
    ) -> None:
        super().__init__(net, method, engine.heads, theta, importance, anchor, hooks)
        self.engine = engine

    def of_batch(self, run: Runs, row: Rows, out: Outputs, batch: Batch) -> Tensor:
        """The loss of a training batch. Penalties on the weights come as `forces`."""
        loss = self.engine.batch_loss(row, out, batch)
        penalties = self.method.prediction_penalties
        return loss + self.said(penalties, run, row, out, batch.weight) if penalties else loss

    @property
    def validated(self) -> PredictionLoss | None:
        """The penalties on predictions that count in the validation loss; none of them looks at learners' own."""
        counting = [penalty for penalty in self.method.prediction_penalties if penalty.validated]
        return partial(self.said, counting) if counting else None

    @torch.no_grad()
    def held_out(self, into: Tensor) -> None:
        """The loss on validation data (R,), with the penalties that count in it."""
        into.zero_()
        self.engine.held_out_loss(self.theta, into, self.validated)
        for value in self.values():
            into.add_(value)
