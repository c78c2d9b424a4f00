"""Weights & Biases: a run there for every run here, in the project kenyon (or that of WANDB_PROJECT)."""

from __future__ import annotations

import os
import secrets
from typing import Any

from kenyon.errors import ConfigError
from kenyon.files import write_atomically
from kenyon.logs.log import LoggedRun, Moment


def check_wandb() -> None:
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise ConfigError("The log wandb needs Weights & Biases: pip install 'kenyon[wandb]'.") from None


class WeightsAndBiases:
    def __init__(self, run: LoggedRun) -> None:
        import wandb

        remembered = run.out / "wandb" / run.path.with_name(f"{run.path.name}.id")
        known = remembered.is_file() and not run.anew
        identity = remembered.read_text() if known else secrets.token_hex(8)
        if not known:
            write_atomically(remembered, identity.encode())
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "kenyon"),
            id=identity,
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
