"""TensorBoard: a folder a run below OUT/tensorboard, for `tensorboard --logdir OUT/tensorboard`."""

from __future__ import annotations

import json
from typing import Any

from kenyon.errors import optional_import
from kenyon.logs.log import LoggedRun, Moment


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
