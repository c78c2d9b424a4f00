"""Progress & Compress: a second column learns, and the network learns from it."""

from __future__ import annotations

from math import inf

from kenyon.errors import ConfigError
from kenyon.importance import Accumulate
from kenyon.mechanisms import ActiveColumn
from kenyon.methods.registry import Method, method
from kenyon.methods.regularised import Fisher, fisher_named
from kenyon.penalties import StabilityProtection, Strength
from kenyon.stages import PROGRESS, compress


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
