"""The place that all workers of a sweep share: a results folder, or any address that fsspec knows.

Names are relative to it and have slashes. Results stand where `kenyon run` puts them; everything else of a sweep is
below `.sweep`:

    plan.json          what is asked for, and the fleets it was cut into
    leases/ID.1        who trains a fleet now, see `leases`
    fleets/ID/         what a fleet has so far: a results folder of its own, with states
    marks/ID           fleets that came to an end, and how
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Protocol

from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.store import check_writable
from kenyon.files import remove_unfinished, temporary_path, write_atomically

HOME = ".sweep"
PLAN = f"{HOME}/plan.json"
LEASES = f"{HOME}/leases"
FLEETS = f"{HOME}/fleets"
MARKS = f"{HOME}/marks"
BEGUN = f"{HOME}/begun"  # how much of a fleet was done when it was last stopped


class Space(Protocol):
    """Small files that all see, and whole folders that one worker at a time has on its machine."""

    address: str  # what other processes open it with
    local: Path  # where its files are on this machine, or the copies of those that were pulled
    pause: float  # seconds between two looks at it

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that nobody has written. False: somebody has, and it stays as it is."""
        ...

    def write(self, name: str, data: bytes) -> None: ...

    def read(self, name: str) -> bytes | None:
        """None: it is not there."""
        ...

    def names(self, folder: str) -> list[str]:
        """Of what is in a folder, not below."""
        ...

    def remove(self, name: str) -> None:
        """A file, or a folder with all that is in it; or nothing, where nothing is there."""
        ...

    def pull(self, folder: str, start: str = "") -> None:
        """Have the files at and below a folder here, those whose names start so."""
        ...

    def push(self, folder: str) -> None:
        """Let all see what has changed here at and below a folder, or a file."""
        ...

    def drop(self, name: str) -> None:
        """A file that is not needed here any more, where this is a copy of it."""
        ...


class Folder:
    """A folder of this machine or of a network. What is written is there for all at once: nothing to pull or push."""

    pause = 1.0

    def __init__(self, path: Path) -> None:
        self.local, self.address = path, str(path)

    def create(self, name: str, data: bytes) -> bool:
        path = self.local / name
        temporary = temporary_path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(path.parent)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a power failure leaves no name without contents, which nobody could read
            try:
                path.hardlink_to(temporary)  # with all of its contents, or not at all
            except FileExistsError:
                return False
            except OSError:  # a file system without second names
                with path.open("xb") as file:
                    file.write(data)
        except FileExistsError:
            return False
        except OSError as error:
            raise ResultsError(
                f"Cannot write {path}: {error.strerror or error}. Make room, or choose another folder with --out."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.local / name, data)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.local / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResultsError(f"Cannot read {self.local / name}: {error.strerror or error}.") from error

    def names(self, folder: str) -> list[str]:
        try:
            entries = list(os.scandir(self.local / folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ResultsError(f"Cannot read {self.local / folder}: {error.strerror or error}.") from error
        return sorted(entry.name for entry in entries if not entry.name.endswith(".tmp"))

    def remove(self, name: str) -> None:
        path = self.local / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def pull(self, folder: str, start: str = "") -> None: ...

    def push(self, folder: str) -> None: ...

    def drop(self, name: str) -> None: ...


def open_space(address: Path | str) -> Space:
    """A folder's path, or an address with `://`."""
    if not str(address):
        raise ConfigError("--out is empty. Give a folder or an address; the present folder is '.'.")
    if "://" in str(address):
        from kenyon.sweep.address import Address

        return Address(str(address))
    return Folder(Path(address).absolute())


def check_space(space: Space) -> None:
    """That it can be written to, before anything is planned."""
    if isinstance(space, Folder):
        check_writable(space.local / HOME)
    else:
        space.write(f"{HOME}/.writable", b"")
        space.remove(f"{HOME}/.writable")
