"""Fetching a dataset's archive: resumable, checked, and in place only when it is whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from kenyon.data.archives import Dataset
from kenyon.errors import DataError
from kenyon.version import __version__

Progress = Callable[[int, int], None]  # bytes done, bytes in all

CHUNK = 2**18
TIMEOUT = 30.0  # seconds without a single byte
RESUMES = "What has arrived is kept: running the command again resumes the download."


def download(dataset: Dataset, folder: Path, *, progress: Progress | None = None, url: str | None = None) -> Path:
    """The path of the dataset's archive in `folder`, downloaded unless a whole one is there already.

    `url` names another server for the same file. An interrupted download leaves a `.part` file that the
    next call continues.
    """
    address = url or dataset.url
    if urlsplit(address).scheme not in ("http", "https"):
        raise DataError(f"{address} is not an address that begins with http:// or https://.")
    archive = folder / dataset.archive
    part = folder / f"{dataset.archive}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _is_whole(archive, dataset):
            return archive
        # A full-length part that is not the file can only come from elsewhere: begin again.
        if _size(part) >= dataset.size and not _is_whole(part, dataset):
            part.unlink()
        if _size(part) < dataset.size:
            with part.open("ab") as file:
                _fetch(file, dataset, address, progress or (lambda done, total: None))
                os.fsync(file.fileno())
            if not _is_whole(part, dataset):
                part.unlink()
                raise DataError(
                    f"What {address} sent is not {dataset.archive}: its checksum is wrong. The bad file was "
                    "removed. Run the command again; if that does not help, try another network."
                )
        part.replace(archive)
    except OSError as problem:
        raise DataError(
            f"{dataset.archive} cannot be kept in {folder}: {problem.strerror or problem}. "
            f"Make room or choose another folder with --data. {RESUMES}"
        ) from None
    return archive


def _fetch(file: BinaryIO, dataset: Dataset, url: str, progress: Progress) -> None:
    """Bring the open part to its full length. Only trouble with the disk leaves as an OSError."""
    here = done = file.seek(0, os.SEEK_END)
    with _answer(url, done) as answer:
        if answer.status != 206:
            done = 0  # the server sends everything, whatever was asked
        offered = answer.headers.get("Content-Length", "")
        if offered.isdigit() and done + int(offered) != dataset.size:
            raise DataError(
                f"{url} offers {done + int(offered):,} bytes where {dataset.archive} has {dataset.size:,}. "
                f"It may be a sign-in page of your network. {RESUMES}"
            )
        if done < here:
            file.truncate(done)
        progress(done, dataset.size)
        while done < dataset.size:
            try:
                chunk = answer.read(min(CHUNK, dataset.size - done))
            except (OSError, HTTPException) as problem:
                raise _cut(url, done, dataset, str(problem)) from None
            if not chunk:
                raise _cut(url, done, dataset, "the server closed the connection")
            file.write(chunk)
            done += len(chunk)
            progress(done, dataset.size)


def _answer(url: str, start: int) -> HTTPResponse:
    """The server's answer for the bytes from `start` on, or for the whole file if it cannot give these."""
    headers = {"User-Agent": f"kenyon/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        if start and answer.status == 206 and not _begins_at(start, answer):
            answer.close()
            return _answer(url, 0)
        return answer
    except HTTPError as problem:
        problem.close()
        if problem.code == 416 and start:
            return _answer(url, 0)
        reason = f"the server answered {problem.code} {problem.reason}"
    except (OSError, HTTPException, ValueError) as problem:
        reason = str(getattr(problem, "reason", None) or problem)
    raise DataError(f"{url} cannot be downloaded: {reason}. {RESUMES}")


def _begins_at(start: int, answer: HTTPResponse) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _cut(url: str, done: int, dataset: Dataset, reason: str) -> DataError:
    return DataError(f"The download of {url} stopped after {done:,} of {dataset.size:,} bytes: {reason}. {RESUMES}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_whole(path: Path, dataset: Dataset) -> bool:
    if _size(path) != dataset.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == dataset.sha256
