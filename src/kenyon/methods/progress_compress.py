"""The active column of Progress & Compress, made ready for every task.

Progress & Compress: a second column learns, and the network learns from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kenyon.errors import ConfigError
from kenyon.methods.importance import Accumulate, GradientImportance
from kenyon.methods.mechanism import Attached, Context
from kenyon.methods.penalties.weights import StabilityProtection, Strength
from kenyon.methods.registry import PROGRESS, Method, compress, method
from kenyon.methods.regularization import Fisher, fisher_named


@dataclass(frozen=True)
class ActiveColumn:
    """A second column in the network's rows (`nets.columns`): it learns a task first and is then imitated.

    reinit: the column and its adaptors begin every task anew; else they go on from the task before. Its head is new
    in any case.
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


@method
def pnc(
    lambda_sp: Strength,
    fisher: Fisher = "published",
    accumulate: Accumulate | None = None,
    decay: float | None = None,
    reinit: bool = True,
    temperature: float = 1.0,
) -> Method:
    """Progress & Compress: an active column learns the task and is distilled into the network under EWC.

    `decay` makes the EWC online, F <- F_t + decay F, as in Schwarz et al. (2018); without it importances are
    accumulated as by `ewc`, which is the scale of the published lambdas. `accumulate` takes the place of `decay`,
    where a benchmark has one. A `temperature` above 1 softens what is distilled, so that it also tells how unlikely
    other classes are.
    """
    if not 0 < temperature < inf:
        raise ConfigError(f"temperature must be a positive number, not {temperature}.")
    merge = float(decay) if accumulate is None and decay is not None else accumulate
    penalties = (StabilityProtection(lambda_sp),)
    return Method(
        fisher_named(fisher, merge), penalties, (ActiveColumn(reinit),), (PROGRESS, compress(float(temperature)))
    )
