"""The store that all workers of a sweep share: a results folder, or an address of fsspec (s3://, gs://, sftp://,
...).

Names are relative to it and have slashes. Results are where `kenyon run` puts them; everything else of a sweep is
below `.sweep`:

    plan.json          the request, and the fleets it was cut into
    leases/ID.1        who trains a fleet now, see `leases`
    fleets/ID/         the work on a fleet: a results folder of its own, with states
    marks/ID           fleets that have ended, and how

At an address, files are there whole or not at all if the service does so, as object stores do. Creating a file
exclusively needs a service with such a call that fsspec uses (files, memory, S3); elsewhere two workers may train one
fleet, which costs time and does not change results.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from kenyon.errors import ConfigError, ResultsError, optional_import
from kenyon.experiments.store import check_writable
from kenyon.utils.files import remove_stale, temporary_path, write_atomically


class Address:
    """A store at an address, with copies of its files on this machine."""

    is_folder = False
    pause = 15.0  # every look is a request, which may cost money

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files, self.root = _file_system(self.address)
        self.local = Path(tempfile.mkdtemp(prefix="kenyon-sweep-"))
        atexit.register(shutil.rmtree, self.local, ignore_errors=True)
        self.known: dict[str, tuple[int, int]] = {}  # files as they were pulled or pushed: time and size
        self.lock = threading.RLock()  # a lease's thread pushes while its fleet trains

    def create(self, name: str, data: bytes) -> bool:
        with self._reporting("write", name):
            self._make_parent(name)
            try:
                self.files.pipe_file(self._at(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def write(self, name: str, data: bytes) -> None:
        with self._reporting("write", name):
            self._make_parent(name)
            self.files.pipe_file(self._at(name), data)

    def read(self, name: str) -> bytes | None:
        with self._reporting("read", name):
            try:
                return bytes(self.files.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        with self._reporting("list", folder):
            try:
                self.files.invalidate_cache(self._at(folder))  # others write there
                found = self.files.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
        names = (entry["name"].rstrip("/").rpartition("/")[2] for entry in found)
        return sorted(name for name in names if not name.endswith(".tmp"))

    def remove(self, name: str) -> None:
        with self.lock, contextlib.suppress(FileNotFoundError), self._reporting("remove", name):
            shutil.rmtree(self.local / name, ignore_errors=True)
            self.drop(name)
            self.files.rm(self._at(name), recursive=True)

    def pull(self, folder: str, start: str = "") -> None:
        with self._reporting("read", folder):
            self.files.invalidate_cache(self._at(folder))
            below = self.files.find(self._at(folder))
        for path in below:
            name = path.removeprefix(self.root).lstrip("/")
            if name.rpartition("/")[2].startswith(start) and (data := self.read(name)) is not None:
                write_atomically(self.local / name, data)
                self.known[name] = _moment(self.local / name)

    def push(self, folder: str) -> None:
        with self.lock:
            top = self.local / folder
            for path in [top] if top.is_file() else top.rglob("*"):
                name = path.relative_to(self.local).as_posix()
                with contextlib.suppress(FileNotFoundError):  # replaced or removed just now: the next push has it
                    moment = _moment(path)
                    if path.is_file() and not name.endswith(".tmp") and self.known.get(name) != moment:
                        self.write(name, path.read_bytes())
                        self.known[name] = moment

    def drop(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.local / name).unlink(missing_ok=True)

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _make_parent(self, name: str) -> None:
        with contextlib.suppress(FileExistsError, NotImplementedError):  # as services without folders answer
            self.files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)

    @contextlib.contextmanager
    def _reporting(self, deed: str, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # every service has errors of its own
            raise ResultsError(
                f"Cannot {deed} {self.address}/{name}: {error}. Mend the address or its rights, or choose another "
                "store with --out."
            ) from error


def _moment(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _file_system(address: str) -> tuple[Any, str]:
    with optional_import(f"A store at an address (not in a folder) such as {address}", "remote", "fsspec"):
        import fsspec
    if "mode" not in inspect.signature(fsspec.AbstractFileSystem.pipe_file).parameters:
        raise ConfigError(
            f"fsspec {fsspec.__version__} cannot create a file that only one of several workers succeeds in making. "
            "Install a newer one: pip install 'kenyon[remote]'."
        )
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:  # of the service's own package
        raise ConfigError(f"The address {address} cannot be opened: {error}.") from None
    except ValueError as error:
        raise ConfigError(f"The address {address} is none that fsspec knows: {error}.") from None
    return files, str(root).rstrip("/")


HOME = ".sweep"
PLAN = f"{HOME}/plan.json"
LEASES = f"{HOME}/leases"
FLEETS = f"{HOME}/fleets"
MARKS = f"{HOME}/marks"
BEGUN = f"{HOME}/begun"  # share of a fleet that was done when it was stopped


class Storage(Protocol):
    """Small files that all processes see, and folders that one worker at a time has on its machine."""

    address: str  # other processes open it with this
    is_folder: bool  # commands such as `kenyon run --out` can use it
    local: Path  # where its files are on this machine, or the copies of those that were pulled
    pause: float  # seconds between two looks at it

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist. False: it exists, and stays as it is."""
        ...

    def write(self, name: str, data: bytes) -> None: ...

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file. None: there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, without those below."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents, if it exists."""
        ...

    def pull(self, folder: str, start: str = "") -> None:
        """Copy the files at and below a folder to this machine, those whose names begin with `start`."""
        ...

    def push(self, folder: str) -> None:
        """Publish the changes of this machine at and below a folder, or of a file."""
        ...

    def drop(self, name: str) -> None:
        """Remove the local copy of a file, if it is a copy."""
        ...


class Folder:
    """A folder of this machine or of a network. All processes see its files: there is nothing to pull or push."""

    is_folder = True
    pause = 1.0

    def __init__(self, path: Path) -> None:
        self.local, self.address = path, str(path)

    def create(self, name: str, data: bytes) -> bool:
        path = self.local / name
        temporary = temporary_path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_stale(path.parent)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # no name without contents after a power failure
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


def open_storage(address: Path | str) -> Storage:
    """Open a folder by its path, or an address with `://`."""
    if not str(address):
        raise ConfigError("--out is empty. Give a folder or an address; the present folder is '.'.")
    if "://" in str(address):
        return Address(str(address))
    return Folder(Path(address).absolute())


def check_storage(storage: Storage) -> None:
    """Raise ResultsError unless the store can be written to."""
    if storage.is_folder:
        check_writable(storage.local / HOME)
    else:
        storage.write(f"{HOME}/.writable", b"")
        storage.remove(f"{HOME}/.writable")
