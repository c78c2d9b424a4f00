"""Leases: who trains which fleet, as files that only one process can create.

A holder renews its lease. A lease that has not changed for EXPIRY seconds, by the clock of the observer, or whose
process is gone from this machine, has expired and can be claimed. Claiming creates the next generation, ID.2 after
ID.1: of all processes that try, one creates it. So no clocks are compared and nothing is renamed.

Leases save work, and no numbers depend on them: if two processes hold one (a machine that was suspended, a network
that was cut), both train the same runs, and the first result stays.
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
from typing import Annotated

import msgspec

from kenyon.errors import ResultsError
from kenyon.sweep.storage import LEASES, MARKS, Storage
from kenyon.utils.clock import Stopwatch
from kenyon.utils.files import HOST_NAME, MACHINE_ID, is_alive

BEAT = 10.0  # seconds between renewals
DRIVER = "sweep-"  # prefix of the lease that a sweep holds while it runs
EXPIRY = 60.0  # without one, a lease expires: several renewals, since a holder may wait for its disk


@dataclass(frozen=True)
class Holder:
    """The contents of a lease."""

    machine: str
    name: str  # of the machine, for people
    process: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    since: str  # date and time, UTC, for people
    beat: int = 0
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # of the work that is done

    @classmethod
    def here(cls) -> Holder:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(MACHINE_ID, HOST_NAME, os.getpid(), now)

    @classmethod
    def read(cls, data: bytes | None) -> Holder | None:
        """Return the holder that a lease names. None: it is being written, or damaged, and lasts until it expires."""
        try:
            return msgspec.json.decode(data or b"", type=cls)
        except (ValueError, RecursionError):  # those of msgspec are ValueErrors
            return None

    @property
    def gone(self) -> bool:
        return self.machine == MACHINE_ID and not is_alive(self.process)


class Leases:
    """The leases of a store as this process has seen them; the times of changes are its own."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.seen: dict[str, tuple[bytes | None, Stopwatch]] = {}  # by file

    def held(self) -> dict[str, Holder | None]:
        """Return all leases that have not expired, with their holders; None where a lease cannot be read."""
        latest: dict[str, int] = {}
        for file in self.storage.names(LEASES):
            what, number = _parts(file)
            latest[what] = max(number, latest.get(what, 0))
        looked = {what: self._look(_file(what, number)) for what, number in latest.items()}
        return {what: Holder.read(data) for what, (over, data) in looked.items() if not over}

    def tidy(self) -> None:
        """Remove leases of killed processes of this machine that are not claimed again: of sweeps, and of fleets that
        have ended.
        """
        ended = set(self.storage.names(MARKS))
        for file in self.storage.names(LEASES):
            unclaimed = file.startswith(DRIVER) or _parts(file)[0] in ended
            holder = Holder.read(self.storage.read(f"{LEASES}/{file}")) if unclaimed else None
            if holder is not None and holder.gone:
                self.storage.remove(f"{LEASES}/{file}")

    def over(self, what: str) -> bytes | None:
        """Return the contents of an expired lease, empty if there is none. None: the lease is held."""
        there = self._generations(what)
        over, data = self._look(_file(what, there[-1])) if there else (True, None)
        return data or b"" if over else None

    def claim(self, what: str, over: bytes = b"") -> Lease | None:
        """Claim a lease. None: another process has it. `over`: contents of the lease that others know to have
        expired.
        """
        there = self._generations(what)
        if there:
            is_over, data = self._look(_file(what, there[-1]))
            if data is None:  # released since it was listed: another process may have created the first generation
                return None
            if not is_over and (not over or data != over):
                return None
        lease = Lease(self.storage, what, there[-1] + 1 if there else 1)
        if not self.storage.create(lease.file, lease.data()):
            return None
        if self._generations(what)[-1:] != [lease.number]:  # others claimed it while this process was suspended
            lease.release()
            return None
        for number in there:
            self.storage.remove(_file(what, number))
        return lease

    @contextlib.contextmanager
    def holding(self, what: str) -> Iterator[None]:
        """Hold a lease as soon as it is free."""
        wait = 0.05
        while (lease := self.claim(what)) is None:
            time.sleep(wait)
            wait = min(2 * wait, self.storage.pause)
        with lease.beating():
            yield

    def _generations(self, what: str) -> list[int]:
        return sorted(number for name, number in map(_parts, self.storage.names(LEASES)) if name == what)

    def _look(self, file: str) -> tuple[bool, bytes | None]:
        """Return if a lease has expired, and its contents."""
        data = self.storage.read(file)
        if file not in self.seen or self.seen[file][0] != data:
            self.seen[file] = data, Stopwatch()
        holder = Holder.read(data)
        over = data is None or (holder is not None and holder.gone) or self.seen[file][1].seconds > EXPIRY
        return over, data


class Lease:
    """A lease that this process holds."""

    def __init__(self, storage: Storage, what: str, number: int) -> None:
        self.storage, self.what, self.number = storage, what, number
        self.holder = Holder.here()
        self.share = 0.0  # of the work that is done; written with the next renewal
        self.lost = False  # another process has claimed it

    @property
    def file(self) -> str:
        return _file(self.what, self.number)

    def data(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode()

    def renew(self) -> None:
        later = any(
            name == self.what and number > self.number for name, number in map(_parts, self.storage.names(LEASES))
        )
        self.lost = self.lost or later
        if not self.lost:
            self.holder = replace(self.holder, beat=self.holder.beat + 1, share=round(self.share, 4))
            self.storage.write(self.file, self.data())

    def release(self) -> None:
        self.storage.remove(self.file)

    @contextlib.contextmanager
    def beating(self, also: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Renew the lease inside the context, and release it at its end. `also` is called with every renewal. A
        renewal that fails is no reason to stop: the next may succeed, and without any the lease expires.
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
