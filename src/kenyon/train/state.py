"""Everything a fleet knows at one moment, and how it is kept on disk.

A state is a flat set of tensors with a leading run axis, and a small record of where the training stands. It is
written as safetensors (loading it executes nothing), first to a temporary file, synced, then renamed: whatever
interrupts a save, the state before it survives.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from kenyon.errors import ResultsError

FORMAT = 1


@dataclass
class Position:
    """Where a fleet stands, and what it has found so far."""

    phase: int = 0  # a stage of a task
    epoch: int = 0  # epochs of this phase that are complete
    seconds: float = 0.0  # spent training so far, over all sessions
    # For each run None, or [task, epoch] (of one of its stages) at which its loss was no longer finite.
    diverged: list[list[int] | None] = field(default_factory=list)
    # One entry per finished task (one in all for joint training): a metric's name -> nested lists, runs first.
    records: list[dict[str, Any]] = field(default_factory=list)

    def of_runs(self, rows: Sequence[int]) -> Position:
        """The same moment for some of the runs, with their share of the time."""
        return Position(
            self.phase,
            self.epoch,
            self.seconds * len(rows) / len(self.diverged),
            [self.diverged[row] for row in rows],
            [{name: [values[row] for row in rows] for name, values in record.items()} for record in self.records],
        )


def save_state(path: Path, tensors: dict[str, Tensor], position: Position, identity: str) -> None:
    """`identity` names the configuration and seeds the state belongs to."""
    head = {"format": str(FORMAT), "identity": identity, "position": json.dumps(asdict(position))}
    data = to_bytes({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata=head)
    write_atomically(path, data)


def load_state(path: Path, tensors: dict[str, Tensor], identity: str, rows: Sequence[int] | None = None) -> Position:
    """Copy a saved state, or those runs of it, into `tensors` in place and return its position.

    Runs share nothing, so some rows of a fleet's state are the whole state of a smaller fleet. A run that has several
    networks has as many rows, one after another.
    """
    try:
        with safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            if head.get("format") != str(FORMAT) or head.get("identity") != identity:
                raise ResultsError(f"{path} belongs to another configuration or version. Move it away to start anew.")
            if set(file.keys()) != set(tensors):
                raise ResultsError(f"{path} does not hold the state of this method. Move it away to start anew.")
            position = Position(**json.loads(head["position"]))
            for name, tensor in tensors.items():
                saved = file.get_tensor(name)
                runs = saved.unflatten(0, (len(position.diverged), -1))
                tensor.copy_(saved if rows is None else runs[list(rows)].flatten(0, 1))
            return position if rows is None else position.of_runs(rows)
    except torch.OutOfMemoryError:
        raise  # says nothing of the file
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, LookupError) as error:
        raise ResultsError(f"{path} is damaged ({error}). Move it away to start this fleet anew.") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise ResultsError(
            f"Cannot write {path}: {reason}. Make room or choose another folder with --out; "
            "what was saved before is intact and the same command continues from it."
        ) from error
