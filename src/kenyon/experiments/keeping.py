"""When the state of a training is kept: on disk now and then, in memory more often, and at once when it has to end.

Between two epochs a fleet's tensors are a state: whoever goes on from them ends with the numbers of a training that
was never interrupted. Inside an epoch they are not. So what can be saved at any moment is the last complete epoch
that is still at hand: the tensors themselves between epochs, and inside a long one the copy made before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kenyon.clock import Stopwatch
from kenyon.data.reports import reporter
from kenyon.errors import ResultsError
from kenyon.files import remove_unfinished
from kenyon.train.state import Position, before_path, save_state

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
            remove_unfinished(
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
