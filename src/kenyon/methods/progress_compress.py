"""Progress & Compress (Schwarz et al., ICML 2018): a second column learns, and the network learns from it.

A task has two stages. Progress: the active column learns the task while the knowledge base, which is the network
itself, is held fixed. Compress: the knowledge base, with dropout, learns from the column's predictions without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import inf

from torch import Tensor

from kenyon.backends.layout import Rows
from kenyon.errors import ConfigError
from kenyon.methods.base import Method, Stage, cross_entropy, whole_network
from kenyon.methods.importance import Accumulate, GradientImportance
from kenyon.methods.mechanism import Attached, Context
from kenyon.methods.penalties import StabilityProtection, Strength
from kenyon.methods.registry import method
from kenyon.methods.regularization import EWC_PAPER, Fisher, fisher_information
from kenyon.models import Net, Outputs, Pictures
from kenyon.random import Noise


def _active_column(
    net: Net,
    row: Rows,
    images: Tensor | Pictures,
    heads: Tensor,
    member: Tensor | None = None,
    *,
    noise: Tensor | Noise | None = None,
    own: bool = False,
) -> Outputs:
    return Outputs(net.active_logits(row, images, heads, noise), None)


def _imitation(out: Outputs, teacher: Tensor, weight: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher || prediction), both softened: logits / T. A class that is not there counts 0 * 0."""
    log_p, log_q = (teacher / temperature).log_softmax(-1), (out.logits / temperature).log_softmax(-1)
    return temperature**2 * ((log_p.exp() * (log_p - log_q)).sum(-1) * weight).sum(-1)


PROGRESS = Stage("progress", _active_column, cross_entropy, active_column=True)


@cache
def compress(temperature: float = 1.0) -> Stage:
    """Return the stage that distills the column into the network."""
    loss = _imitation if temperature == 1 else partial(_imitation, temperature=temperature)
    return Stage("compress", whole_network, loss, teacher=_active_column, active_column=True)


@dataclass(frozen=True)
class ActiveColumn:
    """A second column in the rows of the network (`models.columns`): it learns a task first and is then imitated.

    reinit: initialize the column and its adaptors for every task; else they continue from the previous one. Its head
    is initialized in any case.
    """

    reinit: bool = True

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        return ()

    def attach(self, context: Context) -> Attached:
        return _Column(context, self.reinit)


class _Column(Attached):
    every_epoch = False

    def __init__(self, context: Context, reinit: bool) -> None:
        self.context, self.reinit = context, reinit

    def start_task(self) -> None:
        context, columns = self.context, self.context.net.columns
        assert columns is not None
        classes = context.net.class_counts[context.net.head_of(context.task)]
        columns.start_task(context.theta, context.seeds, context.task, classes, reinit=self.reinit)


@method(
    family="distillation",
    cite="Schwarz et al., ICML 2018",
    defaults={"lambda_sp": 4e6},
    definitions={
        "paper": EWC_PAPER,
        "authors": "how the compared runs accumulated importances is not known",
    },
)
def pnc(
    lambda_sp: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    decay: float | None = None,
    reinit: bool = True,
    temperature: float = 1.0,
) -> Method:
    """Progress & Compress: an active column learns the task and is distilled into the network under EWC.

    `decay` makes EWC online, F <- F_t + decay F, as in Schwarz et al. (2018); without it importances are accumulated
    as by `ewc`, which is the scale of the published lambdas. `accumulate` replaces the `decay` that a benchmark may
    have. A `temperature` above 1 softens the distilled predictions, which then also show how unlikely other classes
    are.
    """
    if not 0 < temperature < inf:
        raise ConfigError(f"temperature must be a positive number, not {temperature}.")
    merge = float(decay) if accumulate is None and decay is not None else accumulate
    return Method(
        fisher_information(fisher, merge),
        (StabilityProtection(lambda_sp),),
        (ActiveColumn(reinit),),
        (PROGRESS, compress(float(temperature))),
    )
