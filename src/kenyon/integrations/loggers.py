"""What a log is, and what it is told of its run.

TensorBoard: a folder a run below OUT/tensorboard, for `tensorboard --logdir OUT/tensorboard`.

Weights & Biases: a run there for every run here, in the project kenyon (or that of WANDB_PROJECT).

The logs by name.

Where the numbers of a run go while it trains, besides Kenyon's own results: TensorBoard or Weights & Biases.

A log belongs to one run. It is told numbers at moments, and a moment that it has already is left out: a run that goes
on from a state continues its log, and what the state before knew is there once.
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
    """After so many epochs of the run, all tasks together; `tested`: and after the tests that follow a task."""

    epoch: int
    tested: bool


@dataclass(frozen=True)
class LoggedRun:
    out: Path  # the folder of results
    path: Path  # of the run, below a folder of the log's own
    name: str
    group: str  # what it shares with the same configuration's other seeds
    config: dict[str, Any]
    anew: bool  # it starts at its beginning, whatever an older log says


class Log(Protocol):
    def add(self, moment: Moment, values: dict[str, float]) -> None:
        """Moments come in their order."""

    def close(self, *, finished: bool) -> None: ...


def check_tensorboard() -> None:
    with optional_import("The log tensorboard", "tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401


class TensorBoard:
    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.out / "tensorboard" / run.path
        # The steps of every number that are there. Anew, the writer asks readers to forget all from step 0 on.
        self.there = {} if run.anew else _steps(str(folder))
        self.writer: Any = SummaryWriter(str(folder), purge_step=0 if run.anew else None)
        if not self.there:
            self.writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```", 0)

    def add(self, moment: Moment, values: dict[str, float]) -> None:
        for name, value in values.items():
            if moment.epoch not in self.there.get(name, ()):
                self.writer.add_scalar(name, value, moment.epoch)
        self.writer.flush()  # before the state of this moment is saved: a log never lags behind it

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

        # Its identity there, kept as long as it is unfinished.
        self.unfinished = run.out / "wandb" / run.path.with_name(f"{run.path.name}.json")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "kenyon"),
            id=_identity(self.unfinished, run.config),
            name=run.name,
            group=run.group,
            config=run.config,
            dir=str(run.out),
            resume="allow",
            reinit="create_new",  # runs that train together log together
        )
        self.run.define_metric("*", step_metric="epoch")

    def add(self, moment: Moment, values: dict[str, float]) -> None:
        row = 2 * moment.epoch + moment.tested  # a row is written once, and rows only go up
        if row >= self.run.step:
            self.run.log({"epoch": moment.epoch, **values}, step=row)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
        if finished:
            self.unfinished.unlink(missing_ok=True)


def _identity(path: Path, config: dict[str, Any]) -> str:
    """That of the same run, begun before, or a new one."""
    mine = json.loads(json.dumps(config))
    if path.is_file():
        before = json.loads(path.read_text())
        if before["config"] == mine:
            return str(before["id"])
    new = secrets.token_hex(8)
    write_atomically(path, json.dumps({"id": new, "config": mine}).encode())
    return new


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
