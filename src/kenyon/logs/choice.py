"""The logs by name."""

from __future__ import annotations

from collections.abc import Callable

from kenyon.errors import unknown
from kenyon.logs.log import Log, LoggedRun
from kenyon.logs.tensorboard import TensorBoard, check_tensorboard
from kenyon.logs.wandb import WeightsAndBiases, check_wandb

# (whether its program is there, how it is opened)
LOGS: dict[str, tuple[Callable[[], None], Callable[[LoggedRun], Log]]] = {
    "tensorboard": (check_tensorboard, TensorBoard),
    "wandb": (check_wandb, WeightsAndBiases),
}


def check_log(name: str) -> None:
    """Before anything is trained: that the log is known and its program installed."""
    if not isinstance(name, str) or name not in LOGS:
        raise unknown("log", name, LOGS)
    LOGS[name][0]()


def open_log(name: str, run: LoggedRun) -> Log:
    return LOGS[name][1](run)
