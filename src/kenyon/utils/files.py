"""Files and the machine they are written from: paths, atomic writes, locks, and the identity of processes.

Several processes, also of several machines, may share a folder. Files are written under a name of the process's own
and renamed, so that a reader finds a whole file or none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kenyon.errors import ConfigError, ResultsError, expected

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# ---------------------------------------------------------------------- paths


def as_path(name: str, value: Any) -> Path:
    """Return an argument called `name` as a path that the file system can have."""
    try:
        path = Path(value)
    except TypeError:
        raise expected(name, "a path", value) from None
    if value == "":
        raise ConfigError(f"{name} is empty. Give a path; the present folder is '.'.")
    if "\0" in str(path):
        raise expected(name, "a path, which has no character 0", value)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise expected(name, "a path of characters that the system's file names have", value) from None
    return path


def exists(path: Path) -> bool:
    """Return True if this process can see the path. `Path.exists` raises where it may not look, or where a name is
    too long.
    """
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """Like `exists`, for a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Like `exists`, for a file."""
    return os.path.isfile(path)  # noqa: PTH113


# ---------------------------------------------------------------------- writing

# Errors of a disk that supports syncing; others mean that the file system has no such operation.
SYNC_ERRORS = (errno.EIO, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def write_atomically(path: Path, *chunks: bytes | memoryview) -> None:
    """Write a file, in one chunk or several, so that it is there whole or not at all.

    The data are written to a temporary file in the same folder, synced and renamed, and the folder is synced: after
    the return the file survives a power failure; before it, the previous file is intact.
    """
    if not path.name:
        problem = IsADirectoryError(errno.EISDIR, "it is a folder")
        raise ResultsError(f"Cannot write {path}: it is a folder. Give the name of a file.") from problem
    temporary = temporary_path(path)
    try:
        make_folder(path.parent)
        remove_stale(path.parent, path.name)
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(
            f"Cannot write {path}: {reason}. Make room or choose another folder with --out; "
            "what was saved before is intact and the same command continues from it."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Return the temporary name of a file, unique to this process among all machines that share the folder."""
    return path.with_name(f"{path.name}.{MACHINE_ID}-{os.getpid()}.tmp")


def remove_stale(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed processes, which may be gigabytes. Those of other machines stay: their
    processes may be alive.
    """
    for path in folder.glob(f"{name}.*.tmp"):
        owner = re.search(rf"\.(?:{MACHINE_ID}-)?(\d+)\.tmp$", path.name)
        if owner and not is_alive(int(owner[1])):
            path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it blocks nothing and can be inspected; return its new path."""
    number, aside = 1, path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    try:
        path.replace(aside)
        sync_folder(path.parent)
    except OSError as error:
        raise ResultsError(f"{path} cannot be used, nor renamed ({error.strerror}). Move it away.") from error
    return aside


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and sync them: files in a folder lost to a power failure are lost with it."""
    if not folder.is_dir():
        if folder.exists() and not folder.is_dir():  # another process may have made it just now
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a file, where a folder has to be")
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can; raise if the disk fails at it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in SYNC_ERRORS:
            raise
    finally:
        os.close(handle)


# ---------------------------------------------------------------------- locks


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, among processes that use this function, for a read followed by a write.

    Without support by the system or the file system, there is no lock.
    """
    if fcntl is None or not folder.is_dir():
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ResultsError(f"Cannot open {folder}: {error.strerror}. The same command tries again.") from error
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock. True without support by
    the system or the file system.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return True
    return True


# ---------------------------------------------------------------------- this machine

HOST_NAME = platform.node() or "unnamed"  # for messages


def _machine_id() -> str:
    """Return a digest that processes share whose process numbers mean the same. Containers of one machine may share a
    host name, but number their own processes.
    """
    facts = [HOST_NAME]
    with contextlib.suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("/".join(facts).encode()).hexdigest()[:8]


MACHINE_ID = _machine_id()


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_alive(process: int) -> bool:
    """Return True if a process of this machine exists, also where that cannot be found out."""
    if os.name != "posix":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
