"""Active forgetting in a single learner: AF-1, decay towards an empty network, and AF-2, towards an expanded one.

The expanded network of AF-2 (AFEC) is a mechanism: a second network that learns every task alone.

Definitions. Paper: AF-1 decays no heads and acts from the second task on. Authors: AF-1 also decays the heads of
later tasks (those of finished tasks decay too, but there their importance holds them; here they stay as they are), on
MAS from the first task on; AF-2 does not count in the validation loss, and its expanded network waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kenyon.methods.base import Method
from kenyon.methods.importance import Accumulate, GradientImportance, fisher_published
from kenyon.methods.mechanism import Attached, Context
from kenyon.methods.path_importance import Importance
from kenyon.methods.penalties import ActiveForgetting1, ActiveForgetting2, DecayingHeads, Strength
from kenyon.methods.penalties.strength import check_word
from kenyon.methods.registry import method
from kenyon.methods.regularization import (
    EWC_DEFAULTS,
    EWC_PAPER,
    MAS_DEFAULTS,
    MAS_PAPER,
    Fisher,
    Omega,
    fisher_information,
    mas_importance,
    protected,
)
from kenyon.random import Purpose

First = Literal["learned", "waits"]
FAMILY = "active forgetting"
AF1_DEFAULTS, AF2_DEFAULTS = {"lambda_af": 1e-6}, {"lambda_af": 1.0}
AF2_PAPER = "its AF-2 pulls towards a network that has finished learning the task, which is not built in"


@dataclass(frozen=True)
class ExpandedNetwork:
    """A second network that learns every task alone (AFEC), from the same initial weights and from task to task.

    It trains for one epoch before each epoch of the main network; then its Fisher information is measured.

    waits: it begins to learn the first task when the learning rate falls for the first time, as in the authors' code,
    where its optimizer moves another network until then. Where the rate falls after a fixed number of epochs, it does
    not learn the first task at all.
    """

    importance: GradientImportance = field(default_factory=fisher_published)
    waits: bool = False

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        return (self.importance,)

    def attach(self, context: Context) -> Attached:
        return _Expanded(context, self.importance, self.waits)


class _Expanded(Attached):
    def __init__(self, context: Context, measured: GradientImportance, waits: bool) -> None:
        self.context, self.measured = context, measured
        self.theta = context.theta.clone()  # (R, P)
        self.waiting = torch.ones_like(self.theta[:, :1], dtype=torch.bool) if waits else None
        self.importance = torch.zeros_like(context.anchor)  # (R, Pp)
        self.optimizer = context.new_optimizer(self.theta)

    def tensors(self) -> dict[str, Tensor]:
        momentum = {f"expanded_{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        waiting = {} if self.waiting is None else {"expanded_waiting": self.waiting}
        return {**self.shown(), **momentum, **waiting}

    def shown(self) -> dict[str, Tensor]:
        return {"expanded": self.theta, "expanded_importance": self.importance}

    def start_task(self) -> None:
        if not self.context.carries:
            self.optimizer.restart()
        if self.waiting is not None and self.context.task > 0:
            self.waiting.zero_()

    def before_epoch(self) -> None:
        if (dropped := self.context.dropped) is not None:  # restart where the rate has just fallen
            self.optimizer.restart(dropped > 0)
            if self.waiting is not None:
                self.waiting.masked_fill_((dropped > 0).unsqueeze(1), False)
        if self.waiting is None or self.context.task > 0:
            self.context.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
        else:
            stay = self.theta.clone()
            self.context.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
            self.theta.copy_(torch.where(self.waiting, stay, self.theta))
            self.optimizer.restart(self.waiting.squeeze(1))
        self.context.measure(self.measured, self.theta, Purpose.EXPANDED)
        self.importance.copy_(self.context.estimate)

    def _expanded_step(self) -> None:
        self.context.plain_step(self.theta, self.optimizer)

    def finish_task(self) -> None:
        net = self.context.net
        net.statistics.carry_over(net.layout, self.theta, net.head_of(self.context.task))


def _af2(
    importance: Importance,
    scale: Fisher | Omega,
    lambda_sp: Strength,
    lambda_af: Strength,
    validated: bool,
    first: First,
) -> Method:
    """The expanded network is measured by the Fisher information of the same scale, also where MAS protects."""
    check_word("af2_first", first, First)
    network = ExpandedNetwork(fisher_information("published" if scale == "exact" else scale), first == "waits")
    made = protected(importance, lambda_sp, ActiveForgetting2(lambda_af, validated))
    return replace(made, mechanisms=(network,))


@method(
    family=FAMILY,
    cite="Wang et al., Nature Machine Intelligence 2023",
    defaults=MAS_DEFAULTS | AF1_DEFAULTS,
    definitions={
        "paper": MAS_PAPER | {"af1_heads": "none", "from_first": False},
        "authors": {"af1_heads": "open", "from_first": True},
    },
    color="#86c275",
)
def mas_af1(
    lambda_sp: Strength,
    lambda_af: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af1_heads: DecayingHeads = "current",
    from_first: bool = False,
) -> Method:
    """MAS with active forgetting AF-1: from the second task on or, as published, `from_first`."""
    forgetting = ActiveForgetting1(lambda_af, heads=af1_heads)
    return replace(protected(mas_importance(omega, accumulate), lambda_sp, forgetting), from_first=from_first)


@method(
    family=FAMILY,
    cite="Wang et al., NeurIPS 2021",
    defaults=MAS_DEFAULTS | AF2_DEFAULTS,
    definitions={
        "paper": AF2_PAPER,
        "authors": "their code counts stability protection twice in training, which Kenyon does not",
    },
    color="#b3dba6",
)
def mas_af2(
    lambda_sp: Strength,
    lambda_af: Strength,
    accumulate: Accumulate = "sum",
    omega: Omega = "published",
    af2_validated: bool = True,
    af2_first: First = "learned",
) -> Method:
    """MAS with active forgetting AF-2."""
    return _af2(mas_importance(omega, accumulate), omega, lambda_sp, lambda_af, af2_validated, af2_first)


@method(
    family=FAMILY,
    cite="Wang et al., Nature Machine Intelligence 2023",
    defaults=EWC_DEFAULTS | AF1_DEFAULTS,
    definitions={"paper": EWC_PAPER | {"af1_heads": "none"}, "authors": {"af1_heads": "open"}},
    color="#6fa8d6",
    hue="sky",
)
def ewc_af1(
    lambda_sp: Strength,
    lambda_af: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af1_heads: DecayingHeads = "current",
) -> Method:
    """EWC with active forgetting AF-1: decay towards an empty network."""
    forgetting = ActiveForgetting1(lambda_af, heads=af1_heads)
    return protected(fisher_information(fisher, accumulate), lambda_sp, forgetting)


@method(
    family=FAMILY,
    cite="Wang et al., NeurIPS 2021",
    defaults=EWC_DEFAULTS | AF2_DEFAULTS,
    definitions={"paper": AF2_PAPER, "authors": {"af2_validated": False, "af2_first": "waits"}},
    color="#9cc4e4",
)
def ewc_af2(
    lambda_sp: Strength,
    lambda_af: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    af2_validated: bool = True,
    af2_first: First = "learned",
) -> Method:
    """EWC with active forgetting AF-2 (AFEC): decay towards an expanded network."""
    return _af2(fisher_information(fisher, accumulate), fisher, lambda_sp, lambda_af, af2_validated, af2_first)
