"""Everything a fleet knows at one moment, and how it is kept on disk.

A state is a flat set of tensors with a leading run axis, and a small record of where the training stands. It is
written as safetensors (loading it executes nothing), atomically: whatever interrupts a save, the state before it
survives. A checksum over every byte tells a state that has changed since from one that has not.

When the state of a training is kept: on disk now and then, in memory more often, and at once when it has to end.

Between two epochs a fleet's tensors are a state: whoever goes on from them ends with the numbers of a training that
was never interrupted. Inside an epoch they are not. So what can be saved at any moment is the last complete epoch
that is still at hand: the tensors themselves between epochs, and inside a long one the copy made before it.
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
from typing import Any, Protocol

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


COPY_EVERY = 5.0  # seconds between copies in memory: what a sudden end may cost where epochs are short
COPY_REST = 50.0  # and so many times as long as copying takes
SPEED = 5e8  # bytes a second, as long as nothing has been saved yet
# The state before the last costs room on the disk and nothing else, but all of its own size: up to so many bytes that
# is less than the images of a benchmark take, beyond it a fleet of hundreds of runs would need gigabytes twice.
TWO_KEPT = 2**28


class Fleet(Protocol):
    """What is kept: images or games, a fleet has tensors and stands somewhere."""

    @property
    def position(self) -> Position: ...

    def tensors(self) -> dict[str, Tensor]: ...


class Keeper:
    """Keeps the states of one fleet at `path`."""

    def __init__(self, trainer: Fleet, path: Path, identity: str, *, every: float, rest: float) -> None:
        """`every`: seconds between saves, and `rest` times as long as saving takes."""
        self.trainer, self.path, self.identity = trainer, path, identity
        self.every, self.rest = every, rest
        self.size = sum(tensor.nbytes for tensor in trainer.tensors().values())
        self.since_save, self.since_copy = Stopwatch(), Stopwatch()
        self.save_after = max(every, rest * self.size / SPEED)
        self.copy_after = COPY_EVERY
        self.copy: dict[str, Tensor] = {}
        self.copied: Position | None = None  # where the copy stands, if that is further than what is on disk
        self.between = False  # epochs: the trainer's tensors are a state

    def over(
        self,
        train: Callable[[Callable[[object], bool]], object],
        *,
        each: Callable[[], None],
        stop: Callable[[], bool],
        ended: Callable[[], None],
        keep: Callable[[], None],
        interrupted: type[Exception],
    ) -> None:
        """A whole training, kept: `train` calls its watcher after every epoch, and `keep` keeps what came out.

        `each` is done after every epoch, before any state of it, and `ended` after the last. When `stop` says so, the
        state is saved and the watcher says it; the training then raises `interrupted`. Whatever else ends it is
        rescued.
        """

        def watch(fleet: object) -> bool:
            with self.complete():
                each()
                stopping = stop()
                self.epoch_done(now=stopping)
                return stopping

        with self.rescuing(unless=interrupted):
            train(watch)
            with self.complete():
                ended()
                try:
                    keep()
                except ResultsError:
                    if not self.make_room():
                        raise
                    keep()
        self.remove()

    @contextlib.contextmanager
    def complete(self) -> Iterator[None]:
        """While this lasts, the trainer's tensors hold a complete epoch."""
        self.between = True
        yield
        self.between = False  # not after an error: they still do

    def epoch_done(self, *, now: bool) -> None:
        """Save or copy if it is time to; `now`: the state must be saved, for nothing follows it.

        A state that cannot be saved on the way is told and no reason to stop: there is another one later, and the
        disk may have room by then.
        """
        if now:
            self._save_somehow(self.trainer.tensors(), self.trainer.position)
        elif self.since_save.seconds > self.save_after:
            watch = Stopwatch()
            try:
                self._save_somehow(self.trainer.tensors(), self.trainer.position)
            except ResultsError as problem:
                reporter().notice(f"{problem} Training goes on.")
            self.save_after = max(self.every, self.rest * watch.seconds)
            self.since_save.start()
        elif self.since_copy.seconds > self.copy_after:
            watch = Stopwatch()
            self._copy()
            self.copy_after = max(COPY_EVERY, COPY_REST * watch.seconds)
            self.since_copy.start()

    @contextlib.contextmanager
    def rescuing(self, *, unless: type[Exception]) -> Iterator[None]:
        """Whatever comes up through here, but for `unless`, finds the last complete epoch at hand saved."""
        try:
            yield
        except unless:
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # what came first is what is told
                self._rescue()
            raise

    def make_room(self) -> bool:
        """Give up the state before the last; False: there is none."""
        before = before_path(self.path)
        try:
            if not self.path.exists() or before.samefile(self.path):
                return False
            before.unlink()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """When all of its runs are finished. A state that stays behind is found and removed later."""
        for path in (before_path(self.path), self.path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            remove_stale(
                self.path.parent, self.path.name
            )  # of a process that was killed while it saved: gigabytes, perhaps

    def _rescue(self) -> None:
        if self.between:
            self._save_somehow(self.trainer.tensors(), self.trainer.position)
        elif self.copied is not None:
            self._save_somehow(self.copy, self.copied)

    def _save_somehow(self, tensors: dict[str, Tensor], position: Position) -> None:
        try:
            self._save(tensors, position)
        except ResultsError:
            if not self.make_room():
                raise
            self._save(tensors, position)

    def _save(self, tensors: dict[str, Tensor], position: Position) -> None:
        if self.size <= TWO_KEPT and self.path.exists():
            # A second name for what is there, which the new one then takes the first name from. At no moment is there
            # less than one state. File systems without such names keep one.
            before = before_path(self.path)
            with contextlib.suppress(OSError):
                before.unlink(missing_ok=True)
                before.hardlink_to(self.path)
        save_state(self.path, tensors, position, self.identity)
        self.copied = None

    @torch.no_grad()
    def _copy(self) -> None:
        tensors = self.trainer.tensors()
        self.copied = None  # half a copy is none
        self.copy = {name: tensor for name, tensor in self.copy.items() if name in tensors}
        for name, tensor in tensors.items():
            if name not in self.copy:
                self.copy[name] = torch.empty_like(tensor, device="cpu")
            self.copy[name].copy_(tensor)
        self.copied = deepcopy(self.trainer.position)
