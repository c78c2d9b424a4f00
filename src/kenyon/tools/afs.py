"""AF-S as a plain loss: the divergence between the predictions of several learners."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.predictions import Divergence, Predictions
from kenyon.strengths import check_strength
from kenyon.tools.learned import Learned
from kenyon.tools.parameters import precise


class AFS(Learned):
    """strength * sum over pairs of learners of w * KL, mean over the batch, as in `kenyon.predictions.Divergence`.

        learning = AFS(learners=5, strength=0.02)
        logits, own = model(x, task, own=True)            # of a `Collaborative`
        loss = cross_entropy(logits, y) + learning(own)

    adaptive: the weights w are learned: give `learning.parameters()` to the optimiser, too, and call `begin_task()`
    when a task begins. They are 1 on the first.
    """

    def __init__(
        self,
        learners: int,
        *,
        strength: float,
        adaptive: bool = False,
        form: Literal["published", "paper"] = "published",
    ) -> None:
        check_strength("strength", strength)
        if learners < 2:
            raise ConfigError(f"AF-S compares learners: there must be at least 2, not {learners}.")
        if form not in ("published", "paper"):
            raise ConfigError(f"form must be published or paper, not '{form}'.")
        super().__init__((learners, learners) if adaptive else None)
        self.learners, self.strength = learners, strength
        self.divergence = Divergence(1.0, adaptive, form)

    def forward(self, own_logits: Tensor) -> Tensor:
        """Of the logits of each learner alone, (K, B, C)."""
        if own_logits.ndim != 3 or own_logits.shape[0] != self.learners or own_logits.shape[1] == 0:
            raise ConfigError(
                f"AF-S takes the logits of each of {self.learners} learners alone, ({self.learners}, samples, "
                f"classes), not {tuple(own_logits.shape)}. A Collaborative gives them with own=True."
            )
        # Differences of sums of logarithms: halves would leave little of them.
        with torch.autocast(own_logits.device.type, enabled=False):
            own = own_logits.to(precise(own_logits)).log_softmax(-1)
            samples, b = own.shape[1], self.averaged()
            seen = Predictions(
                log_p=own[0],  # not looked at
                own_log_p=own,
                weight=own.new_full((samples,), 1 / samples),
                learned={} if b is None else {"afs": b},
                first_task=self.tasks_begun < 2,
            )
            return self.strength * self.divergence.value(seen)
