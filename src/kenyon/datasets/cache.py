"""Pixels decoded once: a file of raw bytes that is mapped into memory, and a JSON header beside it.

The header is written last and names the bytes by their checksum. Whoever finds a header therefore finds whole bytes;
two processes may build the same cache at once, and the header renamed last counts. What is damaged or not ours is
named, set aside under another name and built anew.
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

import numpy as np
from numpy.typing import NDArray

from kenyon.datasets.archives import decoded_folder
from kenyon.errors import DataError, ResultsError
from kenyon.utils.files import MACHINE_ID, cores, is_alive, make_folder, set_aside, sync_folder
from kenyon.utils.progress import reporter

FORMAT = 1
BLOCK = 2**24  # bytes under one checksum: large enough to be few, small enough for all cores to share the work
FORGOTTEN = 86_400.0  # seconds after which another machine's temporary file has no living owner
ELSEWHERE = (
    "Make it readable, remove it, or let the environment variable XDG_CACHE_HOME (LOCALAPPDATA on Windows) name "
    "another folder."
)
Identity = Mapping[str, Any]  # plain JSON values: what the pixels were made from, and how


@dataclass(frozen=True, eq=False)
class Cached:
    pixels: NDArray[np.uint8]  # flat; private to this process when written to
    facts: dict[str, Any]  # what the builder noted, as plain JSON values


def cached(name: str, identity: Identity, build: Callable[[IO[bytes]], dict[str, Any]]) -> Cached:
    """The pixels known by name and identity; where there are none yet, `build` writes them and returns its facts."""
    folder = decoded_folder()
    identity = json.loads(json.dumps(identity))  # as a header gives it back
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
    """A header or its pixels are not what they should be."""


def _load(header: Path, identity: Identity) -> Cached:
    try:
        table = json.loads(header.read_text(encoding="utf-8"))
        version, made_from = table["format"], table["identity"]
        file, size, checksums, facts = table["file"], table["size"], table["checksums"], table["facts"]
        path = header.with_name(Path(file).name)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _DamagedError("its header is not readable") from None
    if version != FORMAT:
        raise _DamagedError(f"it has the format {version}, where this version of Kenyon writes {FORMAT}")
    if made_from != identity or not isinstance(facts, dict):
        raise _DamagedError("it was made from other files")
    if not path.is_file() or path.stat().st_size != size:
        raise _DamagedError(f"its pixels in {path.name} are missing or incomplete")
    pixels = _map(path)
    if _checksums(pixels) != checksums:
        raise _DamagedError(f"its pixels in {path.name} have changed")
    return Cached(pixels, facts)


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
    """A file that is gone in the end unless it was renamed. Others may read it, as far as they may read files of
    this process.
    """
    path = header.with_name(f"{header.stem}.{MACHINE_ID}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with path.open("x+b") as file:
        try:
            yield file, path
        finally:
            path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left. Of other machines nobody here can say what is alive."""
    for path in folder.glob("*.tmp"):
        owner = re.search(rf"\.{MACHINE_ID}-(\d+)-\w+\.tmp$", path.name)
        try:
            if not is_alive(int(owner[1])) if owner else time.time() - path.stat().st_mtime > FORGOTTEN:
                path.unlink()
        except OSError:
            continue  # another process was faster


def _remove_superseded(header: Path, identity: Identity) -> None:
    """What was made of the same folder when its files were others: nobody asks for it again."""
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
    reporter().notice(f"{header} cannot be used: {problem}. It was set aside as {aside.name} and is built anew.")


def _map(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)  # which cannot be mapped
    return np.memmap(path, np.uint8, "c")


def _checksums(pixels: NDArray[np.uint8]) -> list[int]:
    starts = range(0, len(pixels), BLOCK)
    with ThreadPoolExecutor(min(8, cores())) as pool:  # zlib lets go of the interpreter
        return list(pool.map(lambda start: zlib.crc32(pixels[start : start + BLOCK].data), starts))
