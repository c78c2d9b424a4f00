"""Weights & Biases: a run there for every run here, in the project kenyon (or that of WANDB_PROJECT)."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from kenyon.errors import optional_import
from kenyon.files import write_atomically
from kenyon.logs.log import LoggedRun, Moment


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
