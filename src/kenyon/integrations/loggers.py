"""Logs of training runs in TensorBoard and Weights & Biases.

TensorBoard has a folder for each run below OUT/tensorboard, for `tensorboard --logdir OUT/tensorboard`. Weights &
Biases has a run for each run, in the project kenyon (or that of WANDB_PROJECT).

A log belongs to one run. It skips moments that it already has, so a run that resumes from a checkpoint continues its
log without duplicates.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kenyon.errors import optional_import, unknown
from kenyon.utils.files import write_atomically


class Moment(NamedTuple):
    """A moment of a run: the number of epochs of all tasks; `tested`: after the tests that follow a task."""

    epoch: int
    tested: bool


@dataclass(frozen=True)
class LoggedRun:
    out: Path  # the folder of results
    path: Path  # of the run, below the folder of the log
    name: str
    group: str  # common to all seeds of a configuration
    config: dict[str, Any]
    fresh: bool  # the run starts at epoch 0, and an older log is discarded


class Log(Protocol):
    def add(self, moment: Moment, values: dict[str, float]) -> None:
        """Log values. Moments are in order."""

    def close(self, *, finished: bool) -> None: ...


def check_tensorboard() -> None:
    with optional_import("The log tensorboard", "tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401


class TensorBoard:
    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.out / "tensorboard" / run.path
        # The logged steps of every value. For a fresh run the writer tells readers to discard all from step 0.
        self.logged = {} if run.fresh else _steps(str(folder))
        self.writer: Any = SummaryWriter(str(folder), purge_step=0 if run.fresh else None)
        if not self.logged:
            self.writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```", 0)

    def add(self, moment: Moment, values: dict[str, float]) -> None:
        for name, value in values.items():
            if moment.epoch not in self.logged.get(name, ()):
                self.writer.add_scalar(name, value, moment.epoch)
        self.writer.flush()  # before the checkpoint of this moment is saved: the log is never behind it

    def close(self, *, finished: bool) -> None:
        self.writer.close()


def _steps(folder: str) -> dict[str, set[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(folder, size_guidance={"scalars": 0})  # 0: all of them
    reader.Reload()
    return {tag: {event.step for event in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def check_wandb() -> None:
    with optional_import("The log wandb", "wandb", "wandb"):
        from wandb import init  # noqa: F401 - a folder called wandb imports too


class WeightsAndBiases:
    def __init__(self, run: LoggedRun) -> None:
        import wandb

        # The run's ID there, kept until the run is finished.
        self.unfinished = run.out / "wandb" / run.path.with_name(f"{run.path.name}.json")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "kenyon"),
            id=_run_id(self.unfinished, run.config),
            name=run.name,
            group=run.group,
            config=run.config,
            dir=str(run.out),
            resume="allow",
            reinit="create_new",  # runs that train together log together
        )
        self.run.define_metric("*", step_metric="epoch")

    def add(self, moment: Moment, values: dict[str, float]) -> None:
        row = 2 * moment.epoch + moment.tested  # rows are written once, in rising order
        if row >= self.run.step:
            self.run.log({"epoch": moment.epoch, **values}, step=row)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
        if finished:
            self.unfinished.unlink(missing_ok=True)


def _run_id(path: Path, config: dict[str, Any]) -> str:
    """Return the ID of the same unfinished run, or a new one."""
    config = json.loads(json.dumps(config))
    if path.is_file():
        before = json.loads(path.read_text())
        if before["config"] == config:
            return str(before["id"])
    new = secrets.token_hex(8)
    write_atomically(path, json.dumps({"id": new, "config": config}).encode())
    return new


# name -> (check of its package, constructor)
LOGS: dict[str, tuple[Callable[[], None], Callable[[LoggedRun], Log]]] = {
    "tensorboard": (check_tensorboard, TensorBoard),
    "wandb": (check_wandb, WeightsAndBiases),
}


def check_log(name: str) -> None:
    """Raise ConfigError, before training, unless the log is known and its package installed."""
    if name not in list(LOGS):
        raise unknown("log", name, LOGS)
    LOGS[name][0]()


def open_log(name: str, run: LoggedRun) -> Log:
    return LOGS[name][1](run)
