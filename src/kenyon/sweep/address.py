"""A store at an address of fsspec (s3://, gs://, sftp://, memory://, ...), and copies of its files on this machine.

A file is there whole or not at all where the service does so, as object stores do. That of all who create a file one
succeeds holds where the service has such a call and fsspec uses it (files, memory, S3); elsewhere two workers may
train one fleet, which costs time and changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kenyon.errors import ConfigError, ResultsError
from kenyon.files import write_atomically


class Address:
    pause = 15.0  # every look is a request, and some are paid for

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files, self.root = _file_system(self.address)
        self.local = Path(tempfile.mkdtemp(prefix="kenyon-sweep-"))
        atexit.register(shutil.rmtree, self.local, ignore_errors=True)
        self.known: dict[str, tuple[int, int]] = {}  # files as they were pulled or pushed: time and size
        self.lock = threading.RLock()  # a lease's thread pushes while its fleet trains

    def create(self, name: str, data: bytes) -> bool:
        with self._told("write", name):
            self._make_parent(name)
            try:
                self.files.pipe_file(self._at(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def write(self, name: str, data: bytes) -> None:
        with self._told("write", name):
            self._make_parent(name)
            self.files.pipe_file(self._at(name), data)

    def read(self, name: str) -> bytes | None:
        with self._told("read", name):
            try:
                return bytes(self.files.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        with self._told("list", folder):
            try:
                self.files.invalidate_cache(self._at(folder))  # others write there
                found = self.files.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
        names = (entry["name"].rstrip("/").rpartition("/")[2] for entry in found)
        return sorted(name for name in names if not name.endswith(".tmp"))

    def remove(self, name: str) -> None:
        with self.lock, contextlib.suppress(FileNotFoundError), self._told("remove", name):
            shutil.rmtree(self.local / name, ignore_errors=True)
            self.drop(name)
            self.files.rm(self._at(name), recursive=True)

    def pull(self, folder: str, start: str = "") -> None:
        with self._told("read", folder):
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
    def _told(self, deed: str, name: str) -> Iterator[None]:
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
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            f"A store at an address such as {address} needs fsspec: pip install 'kenyon[remote]'. A folder does not."
        ) from None
    if "mode" not in inspect.signature(fsspec.AbstractFileSystem.pipe_file).parameters:
        raise ConfigError(
            f"fsspec {fsspec.__version__} cannot create a file so that only one of several workers succeeds. "
            "Install a newer one: pip install 'kenyon[remote]'."
        )
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:  # of the service's own package
        raise ConfigError(f"The address {address} cannot be opened: {error}.") from None
    except ValueError as error:
        raise ConfigError(f"The address {address} is none that fsspec knows: {error}.") from None
    return files, str(root).rstrip("/")
