"""From a trainer that has finished to what is kept of it: runs and their origin."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kenyon.experiments.kept import FleetOrigin
from kenyon.experiments.results import Run
from kenyon.nets import Net
from kenyon.steady import is_steady
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


SHARING = "KENYON_SHARING"  # in the environment: how many other trainings share the device with this process


def origin_of(trainer: Trainer, seeds: Sequence[int]) -> FleetOrigin:
    """Of the runs of one point: these seeds, and perhaps others' runs beside them."""
    together = len(trainer.streams)
    seconds = trainer.position.seconds * len(seeds) / together
    origin = origin_here(seeds, seconds, trainer.net)
    return replace(origin, together=together) if together > len(seeds) else origin


def origin_here(seeds: Sequence[int], seconds: float, net: Net) -> FleetOrigin:
    """Of what was computed just now, on this machine, with this network."""
    return FleetOrigin(
        seeds=list(seeds),
        seconds=round(seconds, 2),
        device=torch.cuda.get_device_name(net.device) if net.device.type == "cuda" else "cpu",
        precision=str(net.dtype).removeprefix("torch."),
        versions={
            "kenyon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
        },
        deterministic=is_steady() or None,
        sharing=int(os.environ.get(SHARING) or 0) or None,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
