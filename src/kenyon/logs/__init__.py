"""Where the numbers of a run go while it trains, besides Kenyon's own results: TensorBoard or Weights & Biases.

A log belongs to one run. It is told numbers at moments, and a moment that it has already is left out: a run that goes
on from a state continues its log, and what the state before knew is there once.
"""

from kenyon.logs.choice import check_log, open_log
from kenyon.logs.log import Log, LoggedRun, Moment

__all__ = ["Log", "LoggedRun", "Moment", "check_log", "open_log"]
