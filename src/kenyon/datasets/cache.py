"""A cache of decoded pixels: a file of raw bytes that is mapped into memory, and its JSON header.

The header is written last and names the file of bytes by checksum, so a header implies complete bytes. Two processes
may build the same entry at once; the header renamed last counts. A damaged entry is reported, set aside under another
name and rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kenyon.datasets.archives import decoded_folder
from kenyon.errors import DataError, ResultsError
from kenyon.utils.files import MACHINE_ID, cores, is_alive, make_folder, set_aside, sync_folder
from kenyon.utils.progress import reporter

FORMAT = 1
BLOCK = 2**24  # bytes under one checksum: large enough to be few, small enough for all cores to share the work
FORGOTTEN = 86_400.0  # seconds after which a temporary file of another machine counts as stale
ELSEWHERE = (
    "Make it readable, remove it, or let the environment variable XDG_CACHE_HOME (LOCALAPPDATA on Windows) name "
    "another folder."
)
Identity = Mapping[str, Any]  # plain JSON values: the sources of the pixels, and the decoding


@dataclass(frozen=True, eq=False)
class Cached:
    pixels: NDArray[np.uint8]  # flat; private to this process when written to
    facts: dict[str, Any]  # returned by the builder, as plain JSON values


def cached(name: str, identity: Identity, build: Callable[[IO[bytes]], dict[str, Any]]) -> Cached:
    """Return the pixels of a name and identity. If there are none, `build` writes them and returns facts on them."""
    folder = decoded_folder()
    identity = json.loads(json.dumps(identity))  # as it is read from a header
    header = folder / f"{name}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]}.json"
    try:
        return _load(header, identity)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as problem:
        raise DataError(f"{problem.filename or header} cannot be read: {problem.strerror}. {ELSEWHERE}") from None
    except _DamagedError as problem:
        _set_aside(header, str(problem))
    return _build(header, identity, build)


class _DamagedError(Exception):
    """A header, or pixels that do not fit it."""


class _Header(msgspec.Struct):
    format: int
    identity: dict[str, Any]
    file: str
    size: int
    checksums: list[int]
    facts: dict[str, Any]


def _load(header: Path, identity: Identity) -> Cached:
    try:
        entry = msgspec.json.decode(header.read_bytes(), type=_Header)
        path = header.with_name(Path(entry.file).name)
    except (ValueError, RecursionError):
        raise _DamagedError("its header is not readable") from None
    if entry.format != FORMAT:
        raise _DamagedError(f"it has the format {entry.format}, where this version of Kenyon writes {FORMAT}")
    if entry.identity != identity:
        raise _DamagedError("it was made from other files")
    if not path.is_file() or path.stat().st_size != entry.size:
        raise _DamagedError(f"its pixels in {path.name} are missing or incomplete")
    pixels = _map(path)
    if _checksums(pixels) != entry.checksums:
        raise _DamagedError(f"its pixels in {path.name} have changed")
    return Cached(pixels, entry.facts)


def _build(header: Path, identity: Identity, build: Callable[[IO[bytes]], dict[str, Any]]) -> Cached:
    folder = header.parent
    try:
        make_folder(folder)
        _sweep(folder)
        with _temporary(header) as (file, draft):
            facts = build(file)
            file.flush()
            os.fsync(file.fileno())
            checksums = _checksums(_map(draft))
            digest = hashlib.sha256(json.dumps(checksums).encode()).hexdigest()[:8]
            path = header.with_name(f"{header.stem}-{digest}.pixels")
            draft.replace(path)
        table = {
            "format": FORMAT,
            "identity": identity,
            "file": path.name,
            "size": path.stat().st_size,
            "checksums": checksums,
            "facts": facts,
        }
        with _temporary(header) as (file, draft):
            file.write(json.dumps(table).encode())
            file.flush()
            os.fsync(file.fileno())
            draft.replace(header)
        sync_folder(folder)
        _remove_superseded(header, identity)
        pixels = _map(path)
    except OSError as problem:
        raise DataError(
            f"Decoded images cannot be kept in {folder}: {problem.strerror or problem}. Make room there, or let the "
            "environment variable XDG_CACHE_HOME (LOCALAPPDATA on Windows) name a folder on another disk."
        ) from None
    return Cached(pixels, json.loads(json.dumps(facts)))


@contextmanager
def _temporary(header: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Open a temporary file with the permissions of ordinary files; it is removed at the end unless renamed."""
    path = header.with_name(f"{header.stem}.{MACHINE_ID}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with path.open("x+b") as file:
        try:
            yield file, path
        finally:
            path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes, and old ones of other machines, whose processes cannot be asked."""
    for path in folder.glob("*.tmp"):
        owner = re.search(rf"\.{MACHINE_ID}-(\d+)-\w+\.tmp$", path.name)
        try:
            if not is_alive(int(owner[1])) if owner else time.time() - path.stat().st_mtime > FORGOTTEN:
                path.unlink()
        except OSError:
            continue  # another process was faster


def _remove_superseded(header: Path, identity: Identity) -> None:
    """Remove the entry of the same folder with other files, which cannot be used again."""
    if "path" not in identity:
        return
    for other in header.parent.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            table = json.loads(other.read_text(encoding="utf-8"))
            if other != header and {**table["identity"], "files": ""} == {**identity, "files": ""}:
                other.unlink()
                header.with_name(Path(table["file"]).name).unlink()


def _set_aside(header: Path, problem: str) -> None:
    try:
        aside = set_aside(header)
    except ResultsError as trouble:
        if not header.exists():
            return  # another process was faster
        raise DataError(f"{header} cannot be used: {problem}. {trouble}") from None
    reporter().notice(f"{header} cannot be used: {problem}. It was set aside as {aside.name} and is built again.")


def _map(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)  # an empty file cannot be mapped
    return np.memmap(path, np.uint8, "c")


def _checksums(pixels: NDArray[np.uint8]) -> list[int]:
    starts = range(0, len(pixels), BLOCK)
    with ThreadPoolExecutor(min(8, cores())) as pool:  # zlib releases the GIL
        return list(pool.map(lambda start: zlib.crc32(pixels[start : start + BLOCK].data), starts))
