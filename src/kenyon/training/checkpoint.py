"""Checkpoints: the state of a training on disk, saved regularly and at its end.

A checkpoint is a flat set of tensors with a leading run axis, and a small record of the position. It is written as
safetensors (loading it executes nothing), atomically: if a save is interrupted, the previous checkpoint survives. A
checksum over every byte detects later changes.

Between two epochs a trainer's tensors are a checkpoint: a training that resumes from them ends with the same numbers.
Inside an epoch they are not; what can be saved then is the copy in memory that was made before it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kenyon.errors import ResultsError
from kenyon.training.device import out_of_memory
from kenyon.utils.clock import Stopwatch
from kenyon.utils.files import remove_stale
from kenyon.utils.formats import Formats, tensors_intact, write_tensors
from kenyon.utils.progress import reporter

FORMATS = Formats(
    "state",
    2,
    {1: lambda head: {**head, "checksum": None}},  # 1 had no checksum: there is nothing to compare with
)


# Tensors that checkpoints of earlier versions lack; zeros mean that nothing is known.
ADDED = {"before", "swing", "settled", "dropped"}
# Errors of a disk, a network or a user's rights, rather than of a file.
FAILING = (errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ESTALE)


SAVE_EVERY = 30.0  # seconds between saves while a task is being learned
REST = 20.0  # and this many times the duration of a save: a large job has gigabytes to write
COPY_EVERY = 5.0  # seconds between copies in memory: the most that a sudden end costs where epochs are short
COPY_REST = 50.0  # and this many times the duration of a copy
SPEED = 5e8  # bytes a second, until something has been saved
# The previous checkpoint is kept up to this size: less than the images of a benchmark. A job of hundreds of runs
# would need gigabytes twice.
TWO_KEPT = 2**28


class Interrupted(Exception):
    """The caller stopped a training between two epochs; the trainer's tensors and position are a checkpoint."""


class StateError(ResultsError):
    """A checkpoint that cannot be used: damaged, cut off, empty, or of another training."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} cannot be used: {reason}. Move it away to start these runs again.")


@dataclass
class Position:
    """The position of a training, and its results so far."""

    phase: int = 0  # finished phases: stages of tasks
    epoch: int = 0  # finished epochs of the next phase
    seconds: float = 0.0  # of training, over all sessions
    # For each run None, or [task, epoch] at which its loss was no longer finite.
    diverged: list[list[int] | None] = field(default_factory=list)
    # One entry per finished task (one for joint training): metric -> nested lists, runs first.
    records: list[dict[str, Any]] = field(default_factory=list)

    def of_runs(self, rows: Sequence[int]) -> Position:
        """Return the position of some of the runs, with their share of the time."""
        return Position(
            self.phase,
            self.epoch,
            self.seconds * len(rows) / len(self.diverged),
            [self.diverged[row] for row in rows],
            [{name: [values[row] for row in rows] for name, values in record.items()} for record in self.records],
        )

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Parse a position; raise ValueError or TypeError if the text is none."""
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
    """Return the path of the previous checkpoint, which `find_states` finds as well."""
    return path.with_name(path.name.removesuffix(".safetensors") + "-before.safetensors")


def save_state(path: Path, tensors: dict[str, Tensor], position: Position, identity: str) -> None:
    """Write a checkpoint; `identity` names its configuration and seeds."""
    head = {"format": str(FORMATS.present), "identity": identity, "position": json.dumps(asdict(position))}
    write_tensors(path, tensors, head)


def read_head(path: Path) -> dict[str, Any]:
    """Return the header of a checkpoint in its present format, without reading tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return FORMATS.read(file.metadata() or {}, path)
    except (SafetensorError, OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        raise _unusable(path, error) from error


def check_state(path: Path, head: Mapping[str, Any]) -> None:
    """Compare a checkpoint with the checksum in its `head`."""
    if "checksum" not in head:  # its own name has changed
        raise StateError(path, "it is damaged: it has no checksum")
    if head["checksum"] is not None and not _same(path, head["checksum"]):
        raise StateError(path, "it is damaged: its checksum is wrong")


def load_state(path: Path, tensors: dict[str, Tensor], identity: str, rows: Sequence[int] | None = None) -> Position:
    """Copy a checkpoint, or some of its runs, into `tensors` in place and return its position.

    Runs share nothing: some rows of a checkpoint are the checkpoint of a smaller job. A run with several networks has
    as many consecutive rows. After a StateError the contents of `tensors` are undefined.
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
    """Return a StateError if the file is to blame. A disk or a network that fails says nothing about the file, which
    stays where it is.
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


COPY_EVERY = 5.0  # seconds between copies in memory: what a sudden end may cost where epochs are short
COPY_REST = 50.0  # and so many times as long as copying takes
SPEED = 5e8  # bytes a second, as long as nothing has been saved yet
# The state before the last costs room on the disk and nothing else, but all of its own size: up to so many bytes that
# is less than the images of a benchmark take, beyond it a fleet of hundreds of runs would need gigabytes twice.
TWO_KEPT = 2**28


class Resumable(Protocol):
    """A trainer of tasks or of games: its tensors and its position are a checkpoint between two epochs."""

    @property
    def position(self) -> Position: ...

    def tensors(self) -> dict[str, Tensor]: ...


E = TypeVar("E")


class Checkpointer:
    """Saves the checkpoints of one training at `path`.

        with Checkpointer(trainer, path, identity) as checkpoint:
            for epoch in checkpoint.between(trainer.epochs()):
                checkpoint.save_if_due()
            ...  # save results
        checkpoint.remove()

    If anything but `Interrupted` ends the block, the last complete epoch in memory is saved: the tensors themselves
    between two epochs, and inside a long one the copy that was made before it.
    """

    def __init__(
        self, trainer: Resumable, path: Path, identity: str, *, every: float = SAVE_EVERY, rest: float = REST
    ) -> None:
        """`every`: seconds between saves, and `rest` times the duration of a save."""
        self.trainer, self.path, self.identity = trainer, path, identity
        self.every, self.rest = every, rest
        self.size = sum(tensor.nbytes for tensor in trainer.tensors().values())
        self.since_save, self.since_copy = Stopwatch(), Stopwatch()
        self.save_after = max(every, rest * self.size / SPEED)
        self.copy_after = COPY_EVERY
        self.copy: dict[str, Tensor] = {}
        self.copied: Position | None = None  # the position of the copy, if it is ahead of the file
        self.complete = False  # the trainer's tensors are between two epochs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, Interrupted):
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._rescue()

    def between(self, epochs: Iterator[E]) -> Iterator[E]:
        """Yield from `epochs`, and note when the trainer's tensors are between two of them."""
        while True:
            self.complete = False
            try:
                epoch = next(epochs)
            except StopIteration:
                self.complete = True
                return
            self.complete = True
            yield epoch

    def save(self) -> None:
        """Save now; give up the previous checkpoint if the disk has no room for two."""
        self._save(self.trainer.tensors(), self.trainer.position)

    def save_if_due(self) -> None:
        """Save or copy if enough time has passed. A failed save is reported, and training continues."""
        if self.since_save.seconds > self.save_after:
            watch = Stopwatch()
            try:
                self.save()
            except ResultsError as problem:
                reporter().notice(f"{problem} Training goes on.")
            self.save_after = max(self.every, self.rest * watch.seconds)
            self.since_save.start()
        elif self.since_copy.seconds > self.copy_after:
            watch = Stopwatch()
            self._copy()
            self.copy_after = max(COPY_EVERY, COPY_REST * watch.seconds)
            self.since_copy.start()

    def retrying(self, write: Callable[[], None]) -> None:
        """Write results; if the disk has no room, give up the previous checkpoint and write again."""
        try:
            write()
        except ResultsError:
            if not self.make_room():
                raise
            write()

    def make_room(self) -> bool:
        """Remove the previous checkpoint; False if there is none."""
        before = before_path(self.path)
        try:
            if not self.path.exists() or before.samefile(self.path):
                return False
            before.unlink()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Remove the checkpoints of a finished training. One that cannot be removed is found and removed later."""
        for path in (before_path(self.path), self.path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            remove_stale(self.path.parent, self.path.name)  # of a process that was killed while it saved

    def _rescue(self) -> None:
        if self.complete:
            self.save()
        elif self.copied is not None:
            self._save(self.copy, self.copied)

    def _save(self, tensors: dict[str, Tensor], position: Position) -> None:
        def write() -> None:
            if self.size <= TWO_KEPT and self.path.exists():
                # A second name for the present file, from which the new one takes the first: there is always at least
                # one checkpoint. File systems without hard links keep one.
                before = before_path(self.path)
                with contextlib.suppress(OSError):
                    before.unlink(missing_ok=True)
                    before.hardlink_to(self.path)
            save_state(self.path, tensors, position, self.identity)

        self.retrying(write)
        self.copied = None

    @torch.no_grad()
    def _copy(self) -> None:
        tensors = self.trainer.tensors()
        self.copied = None  # half a copy is useless
        self.copy = {name: tensor for name, tensor in self.copy.items() if name in tensors}
        for name, tensor in tensors.items():
            if name not in self.copy:
                self.copy[name] = torch.empty_like(tensor, device="cpu")
            self.copy[name].copy_(tensor)
        self.copied = deepcopy(self.trainer.position)
