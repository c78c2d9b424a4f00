"""Files that are there whole or not at all, and files that cannot be used.

This machine, as others see it that share a folder with it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from kenyon.errors import ConfigError, ResultsError, expected

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What a disk that can sync says when it has failed to; others mean that a file system has no such thing.
FAILING = (errno.EIO, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def as_path(name: str, value: Any) -> Path:
    """An argument that says where files are."""
    try:
        path = Path(value)
    except TypeError:
        raise expected(name, "a path", value) from None
    if isinstance(value, str) and not value:
        raise ConfigError(f"{name} is empty. Give a path; the present folder is '.'.")
    if "\0" in str(path):
        raise expected(name, "a path, which has no character 0", value)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise expected(name, "a path of characters that the system's file names have", value) from None
    return path


def exists(path: Path) -> bool:
    """Whether something is there that this process may see. `Path.exists` raises where it may not look, or where a
    name is too long.
    """
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: Path) -> bool:
    """Like `exists`."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Like `exists`."""
    return os.path.isfile(path)  # noqa: PTH113


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, given whole or in pieces, so that it is there whole or not at all.

    It is written beside its place under a name of this process's own, synced, renamed, and the folder synced: after
    the return it is there even if the power fails; until then what was there before is.
    """
    if not path.name:
        problem = IsADirectoryError(errno.EISDIR, "it is a folder")
        raise ResultsError(f"Cannot write {path}: it is a folder. Give the name of a file.") from problem
    temporary = temporary_path(path)
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        make_folder(path.parent)
        remove_stale(path.parent, path.name)
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
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
    """Of this process alone, also where several machines write into one folder."""
    return path.with_name(f"{path.name}.{MACHINE_ID}-{os.getpid()}.tmp")


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it is in nobody's way and can still be looked at."""
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder lasting. Not every file system can, and Windows has no such thing; but a disk that
    fails at it may have lost them.
    """
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in FAILING:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """For a moment, among the processes that ask for the same: what one reads and then writes, none writes between.

    Where the system or the file system has no such locks, nobody waits.
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
    """Lock an open file until it is closed, and say whether that could be done: another process may have it. Where
    the system or the file system has no locks, it counts as done.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return True
    return True


def make_folder(folder: Path) -> None:
    """Make a folder with those above it, lasting: files in a folder that a power failure takes are gone with it."""
    if not folder.is_dir():
        if folder.exists() and not folder.is_dir():  # another process may have made it just now
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a file, where a folder has to be")
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_stale(folder: Path, name: str = "*") -> None:
    """Remove what processes that were killed while they wrote a file have left: it may be gigabytes.

    Of other machines nobody here can say what is alive.
    """
    for left in folder.glob(f"{name}.*.tmp"):
        owner = re.search(rf"\.(?:{MACHINE_ID}-)?(\d+)\.tmp$", left.name)
        if owner and not is_alive(int(owner[1])):
            left.unlink(missing_ok=True)


HOST_NAME = platform.node() or "unnamed"  # for people


def _identity() -> str:
    """Processes whose numbers mean the same: containers of one machine may have one name, but count their own."""
    words = [HOST_NAME]
    with contextlib.suppress(OSError):
        words.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("/".join(words).encode()).hexdigest()[:8]


MACHINE_ID = _identity()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_alive(process: int) -> bool:
    """Whether a process of this machine is still there."""
    if os.name != "posix":
        return True  # nothing can be asked without harm
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
