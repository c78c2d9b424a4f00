"""Who works on what: a lease is a file that only one process can have created.

A lease is renewed while its holder lives. One that has not changed for EXPIRY seconds, by the clock of whoever looks,
or whose process is gone from this machine, is over, and can be claimed. Claiming creates the next generation, ID.2
after ID.1: of all that try, one creates it. So no clocks are compared and nothing is renamed.

Leases save work, and no numbers depend on them: should two processes ever hold one (a machine that was asleep, a
network that was cut), both train the same runs, and what is kept first stays.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from kenyon.errors import ResultsError
from kenyon.sweep.storage import LEASES, MARKS, Space
from kenyon.utils.clock import Stopwatch
from kenyon.utils.files import HOST_NAME, MACHINE_ID, is_alive

BEAT = 10.0  # seconds between renewals
DRIVER = "sweep-"  # what those are called that a sweep holds as long as it runs
EXPIRY = 60.0  # without one, a lease is over: several beats, for a holder may wait for its disk


@dataclass(frozen=True)
class Holder:
    """What a lease says."""

    machine: str
    name: str  # of the machine, for people
    process: int
    since: str  # date and time, UTC, for people
    beat: int = 0
    share: float = 0.0  # of the work that is done

    @classmethod
    def here(cls) -> Holder:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(MACHINE_ID, HOST_NAME, os.getpid(), now)

    @classmethod
    def read(cls, data: bytes | None) -> Holder | None:
        """None: it is being written, or damaged. It lasts until it expires."""
        try:
            holder = cls(**json.loads(data or b""))
        except (ValueError, TypeError, RecursionError):
            return None
        words, numbers = (holder.machine, holder.name, holder.since), (holder.process, holder.beat, holder.share)
        fits = all(isinstance(word, str) for word in words) and all(type(n) in (int, float) for n in numbers)
        return holder if fits and type(holder.process) is int and 0 <= holder.share <= 1 else None

    @property
    def gone(self) -> bool:
        return self.machine == MACHINE_ID and not is_alive(self.process)


class Leases:
    """The leases of a space as this process has seen them, which is how it knows that one has not changed."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.seen: dict[str, tuple[bytes | None, Stopwatch]] = {}  # by file

    def held(self) -> dict[str, Holder | None]:
        """All that are not over, with their holders; None where a lease cannot be read."""
        latest: dict[str, int] = {}
        for file in self.space.names(LEASES):
            what, number = _parts(file)
            latest[what] = max(number, latest.get(what, 0))
        looked = {what: self._look(_file(what, number)) for what, number in latest.items()}
        return {what: Holder.read(data) for what, (over, data) in looked.items() if not over}

    def tidy(self) -> None:
        """Remove those that processes of this machine had when they were killed, where nobody claims them again: of
        sweeps, and of fleets that have come to an end.
        """
        ended = set(self.space.names(MARKS))
        for file in self.space.names(LEASES):
            unclaimed = file.startswith(DRIVER) or _parts(file)[0] in ended
            holder = Holder.read(self.space.read(f"{LEASES}/{file}")) if unclaimed else None
            if holder is not None and holder.gone:
                self.space.remove(f"{LEASES}/{file}")

    def over(self, what: str) -> bytes | None:
        """What stands in a lease that is over, empty where there is none; None: somebody has it."""
        there = self._generations(what)
        over, data = self._look(_file(what, there[-1])) if there else (True, None)
        return data or b"" if over else None

    def claim(self, what: str, over: bytes = b"") -> Lease | None:
        """None: somebody else has it. `over`: what a lease says that others have seen unchanged for long enough."""
        there = self._generations(what)
        if there:
            is_over, data = self._look(_file(what, there[-1]))
            if data is None:  # released since it was listed: somebody may have begun anew with the first generation
                return None
            if not is_over and (not over or data != over):
                return None
        lease = Lease(self.space, what, there[-1] + 1 if there else 1)
        if not self.space.create(lease.file, lease.data()):
            return None
        if self._generations(what)[-1:] != [lease.number]:  # others went on while this process slept
            lease.release()
            return None
        for number in there:
            self.space.remove(_file(what, number))
        return lease

    @contextlib.contextmanager
    def holding(self, what: str) -> Iterator[None]:
        """For a moment, once it is free."""
        wait = 0.05
        while (lease := self.claim(what)) is None:
            time.sleep(wait)
            wait = min(2 * wait, self.space.pause)
        with lease.beating():
            yield

    def _generations(self, what: str) -> list[int]:
        return sorted(number for name, number in map(_parts, self.space.names(LEASES)) if name == what)

    def _look(self, file: str) -> tuple[bool, bytes | None]:
        """Whether a lease is over, and what it says."""
        data = self.space.read(file)
        if file not in self.seen or self.seen[file][0] != data:
            self.seen[file] = data, Stopwatch()
        holder = Holder.read(data)
        over = data is None or (holder is not None and holder.gone) or self.seen[file][1].seconds > EXPIRY
        return over, data


class Lease:
    """One that this process holds."""

    def __init__(self, space: Space, what: str, number: int) -> None:
        self.space, self.what, self.number = space, what, number
        self.holder = Holder.here()
        self.share = 0.0  # of the work that is done; told with the next beat
        self.lost = False  # somebody else has claimed it: what is done here is done twice

    @property
    def file(self) -> str:
        return _file(self.what, self.number)

    def data(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode()

    def renew(self) -> None:
        later = any(
            name == self.what and number > self.number for name, number in map(_parts, self.space.names(LEASES))
        )
        self.lost = self.lost or later
        if not self.lost:
            self.holder = replace(self.holder, beat=self.holder.beat + 1, share=round(self.share, 4))
            self.space.write(self.file, self.data())

    def release(self) -> None:
        self.space.remove(self.file)

    @contextlib.contextmanager
    def beating(self, also: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Renewed while this lasts, and released. `also` is done at every beat.

        A beat that fails is no reason to stop: the next may not, and without any the lease expires.
        """
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                with contextlib.suppress(ResultsError, OSError):
                    self.renew()
                    also()

        thread = threading.Thread(target=beat, name=f"lease of {self.what}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.release()


def _file(what: str, number: int) -> str:
    return f"{LEASES}/{what}.{number}"


def _parts(file: str) -> tuple[str, int]:
    what, _, number = file.rpartition(".")
    return what, int(number) if number.isdecimal() else 0
