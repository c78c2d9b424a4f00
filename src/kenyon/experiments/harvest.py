"""From a trainer that has finished to what is kept of it: runs, their origin and their weights."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save as to_bytes

from kenyon.experiments.results import FleetOrigin, Run
from kenyon.train import Trainer
from kenyon.version import __version__


def runs_of(trainer: Trainer) -> list[Run]:
    """One run a seed. A run that diverged before its first task was learned has no numbers at all."""
    at = trainer.position

    def last(name: str, number: int) -> Any:
        return _rounded(at.records[-1][name][number]) if at.records else []

    return [
        Run(
            seed=stream.seed,
            accuracy=[_rounded(record["accuracy"][number]) for record in at.records],
            own_accuracy=last("own_accuracy", number),
            cosine=last("cosine", number),
            euclidean=last("euclidean", number),
            tasks=[task.name for task in stream.tasks],
            diverged=at.diverged[number],
        )
        for number, stream in enumerate(trainer.fleet.streams)
    ]


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else round(value, 4)


def origin_of(trainer: Trainer, seeds: Sequence[int]) -> FleetOrigin:
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else "cpu"
    return FleetOrigin(
        seeds=list(seeds),
        seconds=round(trainer.position.seconds, 2),
        device=device,
        precision=str(trainer.net.dtype).removeprefix("torch."),
        versions={
            "kenyon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
        },
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def weights_of(trainer: Trainer, number: int) -> bytes:
    """One run's final weights by name; a learner's have a leading learner axis."""
    views = trainer.net.layout.views(trainer.theta[number].cpu())
    return to_bytes({name: view.contiguous() for name, view in views.items()})
