"""Replay: old samples that are kept and met again. Every other kind of method does without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kenyon.errors import ConfigError

ReplayForm = Literal["published", "mixed"]


@dataclass(frozen=True)
class Replay:
    """`memory` training samples of every class are kept when its task ends, drawn at random. From the second task on,
    every step meets some of them beside its batch of the new task, each through the head of its own task:

    published: `batch` of every task before, and the loss is CE(new batch) + sum over the tasks t before of CE(t's).
    mixed:     `batch` of all tasks before together, and the loss is CE(new batch) + CE(old batch).

    CE is the mean cross-entropy. Where fewer samples are kept than a step asks for, it gets all of them.
    """

    memory: int = 20
    batch: int = 64
    form: ReplayForm = "published"

    def __post_init__(self) -> None:
        for name, value in (("memory", self.memory), ("replay_batch", self.batch)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}.")
        if self.form not in ("published", "mixed"):
            raise ConfigError(f"replay must be published or mixed, not '{self.form}'.")
