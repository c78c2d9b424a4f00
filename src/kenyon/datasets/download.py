"""Downloads of archives: resumable, verified, and at their final path only when complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from kenyon.datasets.archives import Archive
from kenyon.errors import DataError
from kenyon.utils.files import make_folder, sync_folder, try_lock
from kenyon.version import __version__

Progress = Callable[[int, int], None]  # bytes done, bytes in all (0 if not known)

CHUNK = 2**18
TIMEOUT = 30.0  # seconds without a single byte
RESUMES = "What has arrived is kept: running the command again resumes the download."


def download(archive: Archive, folder: Path, *, progress: Progress | None = None, url: str | None = None) -> Path:
    """Return the path of the archive in `folder`; download it unless it is complete already.

    `url`: another server for the same file. An interrupted download leaves a `.part` file that the next call
    continues.
    """
    address = url or archive.url
    if urlsplit(address).scheme not in ("http", "https"):
        raise DataError(f"{address} is not an address that begins with http:// or https://.")
    path = folder / archive.file
    part = folder / f"{archive.file}.part"
    try:
        make_folder(folder)
        if _is_whole(path, archive):
            return path
        _complete(part, path, archive, address, progress or (lambda done, total: None))
        sync_folder(folder)
    except OSError as problem:
        raise DataError(
            f"{archive.file} cannot be kept in {folder}: {problem.strerror or problem}. "
            f"Make room or choose another folder with --data. {RESUMES}"
        ) from None
    return path


def _complete(part: Path, path: Path, archive: Archive, url: str, progress: Progress) -> None:
    """Complete the part and move it to its place, in one of the processes that ask for it."""
    with part.open("ab") as file:
        if not try_lock(file):
            raise DataError(
                f"Another process is downloading {archive.file} into {part.parent}. Run the command again when it is "
                "done."
            )
        try:
            if not _is_whole(path, archive):  # another process may have been faster
                _fill(file, part, archive, url, progress)
                os.fsync(file.fileno())  # includes bytes written by an earlier process
        finally:
            if _size(part) == 0:
                with suppress(OSError):  # Windows cannot remove an open file
                    part.unlink()
    if not _is_whole(path, archive):
        part.replace(path)
    part.unlink(missing_ok=True)


def _fill(file: BinaryIO, part: Path, archive: Archive, url: str, progress: Progress) -> None:
    """Complete the open part; raise DataError if it cannot become the archive."""
    if _is_whole(part, archive):
        return
    # A part of full length with another checksum is another file: start over.
    if archive.size is not None and _size(part) >= archive.size:
        file.truncate(0)
    resumed = _size(part) > 0
    size_known = _fetch(file, archive, url, progress)
    file.flush()
    if _is_whole(part, archive):
        return
    if not size_known:  # possibly cut off; a complete but wrong file is fetched from its beginning the next time
        raise _cut(url, _size(part), None, "what has arrived is not the whole file, or another one")
    file.truncate(0)
    if resumed:  # the earlier bytes may be at fault: a power failure loses the middle of a file
        _fill(file, part, archive, url, progress)
        return
    raise DataError(
        f"What {url} sent is not {archive.file}: its checksum is wrong. The bad file was removed. Run the command "
        "again; if that does not help, try another network."
    )


def _fetch(file: BinaryIO, archive: Archive, url: str, progress: Progress) -> bool:
    """Extend the open part to its full length; return True if the length is known or given by the server. Raises
    OSError only for the disk.
    """
    before = done = file.seek(0, os.SEEK_END)
    with _request(url, done) as response:
        if response.status != 206:
            done = 0  # the server ignores the range
        length = response.headers.get("Content-Length", "")
        offered = done + int(length) if length.isdigit() else None
        size = offered if archive.size is None else archive.size
        if offered is not None and offered != size:
            raise DataError(
                f"{url} offers {offered:,} bytes where {archive.file} has {size:,}. "
                f"It may be a sign-in page of your network. {RESUMES}"
            )
        progress(done, size or 0)
        first = done == 0
        while size is None or done < size:
            try:
                chunk = response.read(CHUNK if size is None else min(CHUNK, size - done))
            except (OSError, HTTPException) as problem:
                raise _cut(url, done, size, str(problem)) from None
            if not chunk and size is not None:
                raise _cut(url, done, size, "the server closed the connection")
            if first and not chunk.startswith(_begins_with(archive)):
                raise DataError(
                    f"What {url} sends does not begin like {archive.file}. It may be a sign-in page of your network. "
                    f"{RESUMES}"
                )
            if not chunk:
                return False  # the end, or a lost connection
            if first and before:
                file.truncate(0)
            first = False
            file.write(chunk)
            done += len(chunk)
            progress(done, size or 0)
    return size is not None


def _begins_with(archive: Archive) -> bytes:
    return b"PK" if archive.file.endswith(".zip") else b"\x1f\x8b"


def _request(url: str, start: int) -> HTTPResponse:
    """Request the bytes from `start`, or the whole file if the server does not support ranges."""
    headers = {"User-Agent": f"kenyon/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        if start and response.status == 206 and not _begins_at(start, response):
            response.close()
            return _request(url, 0)
        return response
    except HTTPError as problem:
        problem.close()
        if problem.code == 416 and start:
            return _request(url, 0)
        reason = f"the server answered {problem.code} {problem.reason}"
    except (OSError, HTTPException, ValueError) as problem:
        reason = str(getattr(problem, "reason", None) or problem)
    raise DataError(
        f"{url} cannot be downloaded: {reason}. {RESUMES} Where there is no network, put a copy of the file into one "
        "of the folders that `kenyon data list` names."
    )


def _begins_at(start: int, response: HTTPResponse) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _cut(url: str, done: int, size: int | None, reason: str) -> DataError:
    of = "" if size is None else f" of {size:,}"
    return DataError(f"The download of {url} stopped after {done:,}{of} bytes: {reason}. {RESUMES}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_whole(path: Path, archive: Archive) -> bool:
    if not path.is_file() or archive.size not in (None, _size(path)):
        return False
    kind, _, digest = archive.checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == digest
