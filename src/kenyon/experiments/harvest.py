"""From a trainer that has finished to what is kept of it: runs, their origin and their weights."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save as to_bytes

from kenyon.experiments.results import FleetOrigin, Run
from kenyon.streams import Stream
from kenyon.train import Trainer
from kenyon.version import __version__


def runs_of(trainer: Trainer) -> list[Run]:
    """One run a stream. A run that diverged before its first task was learned has no numbers at all."""
    at = trainer.position

    def one_run(number: int, stream: Stream) -> Run:
        # A run that diverged has the tasks before, however long the runs beside it went on.
        diverged = at.diverged[number]
        records = at.records if diverged is None else at.records[: diverged[0]]

        def last(name: str) -> Any:
            return _rounded(records[-1][name][number]) if records else []

        return Run(
            seed=stream.seed,
            accuracy=[_rounded(record["accuracy"][number]) for record in records],
            own_accuracy=last("own_accuracy"),
            cosine=last("cosine"),
            euclidean=last("euclidean"),
            tasks=[task.name for task in stream.tasks],
            diverged=diverged,
        )

    return [one_run(number, stream) for number, stream in enumerate(trainer.streams)]


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else round(value, 4)


def origin_of(trainer: Trainer, seeds: Sequence[int]) -> FleetOrigin:
    """Of the runs of one point: these seeds, and perhaps others' runs beside them."""
    together = len(trainer.streams)
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else "cpu"
    return FleetOrigin(
        seeds=list(seeds),
        seconds=round(trainer.position.seconds * len(seeds) / together, 2),
        device=device,
        precision=str(trainer.net.dtype).removeprefix("torch."),
        versions={
            "kenyon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
        },
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        together=together if together > len(seeds) else None,
    )


def weights_of(trainer: Trainer, number: int) -> bytes:
    """One run's final weights by name; a learner's have a leading learner axis.

    Where learners have heads of their own, so do these: of independent learners (K, T, ...), of one a task (T, ...).
    """
    M = trainer.members
    if trainer.discrete is not None:
        views = trainer.discrete.weights(number)
    elif M > 1:
        rows = trainer.net.layout.views(trainer.theta[number * M : (number + 1) * M])
        views = {name: row if name.startswith("head.") else row.squeeze(1) for name, row in rows.items()}
    else:
        views = trainer.net.layout.views(trainer.theta[number])
    return to_bytes({name: view.cpu().contiguous() for name, view in views.items()})
