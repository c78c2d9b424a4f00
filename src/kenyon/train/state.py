"""Everything a fleet knows at one moment, and how it is kept on disk.

A state is a flat set of tensors with a leading run axis, and a small record of where the training stands. It is
written as safetensors (loading it executes nothing), atomically: whatever interrupts a save, the state before it
survives. A checksum over every byte tells a state that has changed since from one that has not.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kenyon.checksums import tensors_intact, write_tensors
from kenyon.errors import ResultsError
from kenyon.formats import Formats
from kenyon.train.device import out_of_memory

FORMATS = Formats(
    "state",
    2,
    {1: lambda head: {**head, "checksum": None}},  # 1 had no checksum: there is nothing to compare with
)


# What states had no tensors for at first; zeros say that nothing is known.
ADDED = {"before", "swing", "settled"}
# What is told of a disk, a network or a user's rights, rather than of a file.
FAILING = (errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ESTALE)


class StateError(ResultsError):
    """A state that cannot be used: damaged, cut off, empty, or of something else."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} cannot be used: {reason}. Move it away to start this fleet anew.")


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

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Raises ValueError or TypeError where the text is not that of a position."""
        at = cls(**json.loads(text))
        counts = (at.phase, at.epoch, *(number for place in at.diverged or () for number in place or ()))
        runs = len(at.diverged)
        if not (
            runs
            and all(type(number) is int and number >= 0 for number in counts)
            and all(place is None or len(place) == 2 for place in at.diverged)
            and isinstance(at.seconds, (int, float))
            and 0 <= at.seconds < float("inf")
            and all(isinstance(v, list) and len(v) == runs for record in at.records for v in record.values())
        ):
            raise ValueError("its position makes no sense")
        return at


def before_path(path: Path) -> Path:
    """Where the state that was at `path` before the present one is kept; `find_states` finds it as well."""
    return path.with_name(path.name.removesuffix(".safetensors") + "-before.safetensors")


def save_state(path: Path, tensors: dict[str, Tensor], position: Position, identity: str) -> None:
    """`identity` names the configuration and seeds the state belongs to."""
    head = {"format": str(FORMATS.present), "identity": identity, "position": json.dumps(asdict(position))}
    write_tensors(path, tensors, head)


def read_head(path: Path) -> dict[str, Any]:
    """What a state says of itself, in its present form; its tensors are not looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            return FORMATS.read(file.metadata() or {}, path)
    except (SafetensorError, OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        raise _unusable(path, error) from error


def check_state(path: Path, head: Mapping[str, Any]) -> None:
    """Compare a state with the checksum in its `head`."""
    if "checksum" not in head:  # its own name has changed
        raise StateError(path, "it is damaged: it has no checksum")
    if head["checksum"] is not None and not _same(path, head["checksum"]):
        raise StateError(path, "it is damaged: its checksum is wrong")


def load_state(path: Path, tensors: dict[str, Tensor], identity: str, rows: Sequence[int] | None = None) -> Position:
    """Copy a saved state, or those runs of it, into `tensors` in place and return its position.

    Runs share nothing, so some rows of a fleet's state are the whole state of a smaller fleet. A run that has several
    networks has as many rows, one after another. After a StateError `tensors` hold nothing of use.
    """
    head = read_head(path)
    if head.get("identity") != identity:
        raise StateError(path, "it belongs to another configuration")
    check_state(path, head)
    try:
        with safe_open(path, framework="pt") as file:
            lacking = set(tensors) - set(file.keys())
            if not (set(file.keys()) <= set(tensors) and lacking <= ADDED):
                raise StateError(path, "it does not hold the state of this method")
            position = Position.from_json(head["position"])
            for name, tensor in tensors.items():
                if name in lacking:
                    tensor.zero_()
                    continue
                saved = file.get_tensor(name)
                runs = saved.unflatten(0, (len(position.diverged), -1))
                found = saved if rows is None else runs[list(rows)].flatten(0, 1)
                if found.shape != tensor.shape or found.dtype != tensor.dtype:
                    raise StateError(path, f"{name} in it has another shape than here")
                tensor.copy_(found)
            return position if rows is None else position.of_runs(rows)
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
        if out_of_memory(error):
            raise  # says nothing of the file
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ResultsError:
    """A StateError where it is the file's fault. Nor does a disk or a network that fails say anything of the file:
    it stays where it is.
    """
    number = getattr(error, "errno", None)
    if number is None and (told := re.search(r"\((?:os error )?(\d+)\)$", str(error))):  # as safetensors tells it
        number = int(told[1])
    if isinstance(error, FileNotFoundError) and path.exists():  # which it says of all that it cannot open
        number = errno.EIO
    if number in FAILING:
        return ResultsError(
            f"{path} cannot be read: {os.strerror(number)}. The same command goes on from it when it can be; move it "
            "away to begin its runs anew."
        )
    empty = path.is_file() and path.stat().st_size == 0
    return StateError(path, "it is empty" if empty else f"it is damaged or no state at all ({error})")


def _same(path: Path, checksum: str) -> bool:
    try:
        return tensors_intact(path, checksum)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise _unusable(path, error) from error
