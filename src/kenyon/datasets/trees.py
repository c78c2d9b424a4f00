"""File trees: the files of a dataset by name, in a folder, a zip or a tar archive.

Names are relative to the folder of the dataset, with "/" between their parts. `contents` yields each file as a
function that reads it, which any thread may call.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Protocol

from kenyon.errors import DataError

# Limits on archives. The largest of the public datasets: a file of 155 MB (CIFAR-100), 165,000 files (CORe50); all of
# them hold images, which hardly compress.
LARGEST_MEMBER = 2**28  # bytes of a file
MOST_MEMBERS = 2**18
LARGEST_TEXT = 2**26  # bytes of a table of names
LARGEST_NAME = 2**16  # bytes of the name and other metadata of a file in a tar
UNPACKED, ALLOWANCE = 8, 2**28  # all files have at most UNPACKED times the bytes of the archive, and ALLOWANCE
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others in Python unpack any amount at once
CHUNK = 2**20  # bytes that are unpacked at once
MAPPED_FROM = 2**20  # bytes from which files are mapped rather than read, which avoids a copy of 150 MB
# Errors of Python's readers on damaged archives, besides their own classes.
BROKEN = (OSError, EOFError, ValueError, LookupError, OverflowError, struct.error, zlib.error)
LABELS = ".txt"  # the suffix of files of labels, whose text counts: an edit may keep their size
Content = bytes | mmap
Reader = Callable[[], Content]
Uses = Callable[[str], bool]  # True if a file of that name is used
Trait = tuple[str | int, ...]  # name, size, and other signs of a change


class Tree(Protocol):
    @property
    def remedy(self) -> str:
        """The remedy for a damaged copy."""
        ...

    def where(self, name: str) -> str:
        """Return the name of a file for messages."""
        ...

    def names(self) -> list[str]:
        """Return all files, sorted."""
        ...

    def traits(self, uses: Uses) -> list[Trait]:
        """Return values that change with the used files, without reading images; for an archive, its own."""
        ...

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        """Yield the named files, in the order that reads fastest."""
        ...


@dataclass(frozen=True)
class Folder:
    path: Path
    remedy: str
    dated: bool = False  # a file with a new time counts as changed, also with the same size

    def where(self, name: str) -> str:
        return str(self.path / name)

    def names(self) -> list[str]:
        return [name for name, *_ in self._files]

    def traits(self, uses: Uses) -> list[Trait]:
        return [self._trait(*file) for file in self._files if uses(file[0])]

    def _trait(self, name: str, size: int, written: int) -> Trait:
        if name.endswith(LABELS):
            return name, zlib.crc32(self._read(name))
        return (name, size, written) if self.dated else (name, size)

    @cached_property
    def _files(self) -> list[tuple[str, int, int]]:
        """All files with size and time, without hidden ones, which desktops add."""
        files: list[tuple[str, int, int]] = []
        folders = [(self.path, "")]
        try:
            while folders:
                folder, prefix = folders.pop()
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir():
                            if entry.is_symlink() and folder.resolve().is_relative_to(Path(entry.path).resolve()):
                                raise DataError(f"{entry.path} links to a folder that it lies in. Remove the link.")
                            folders.append((Path(entry.path), f"{prefix}{entry.name}/"))
                        elif entry.is_file():
                            status = entry.stat()
                            files.append((prefix + entry.name, status.st_size, status.st_mtime_ns))
        except OSError as problem:
            raise DataError(
                f"{problem.filename or self.path} cannot be read: {problem.strerror}. {self.remedy}"
            ) from None
        return sorted(files)

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        for name in sorted(names):
            yield name, partial(self._read, name)

    def _read(self, name: str) -> Content:
        try:
            with (self.path / name).open("rb") as file:
                large = os.fstat(file.fileno()).st_size >= MAPPED_FROM
                return mmap(file.fileno(), 0, access=ACCESS_READ) if large else file.read()
        except OSError as problem:
            raise DataError(f"{self.where(name)} cannot be read: {problem.strerror}. {self.remedy}") from None


@dataclass(frozen=True)
class Zip:
    path: Path
    folder: str  # inside the archive
    remedy: str

    def where(self, name: str) -> str:
        return f"{self.folder}/{name} in {self.path}"

    def names(self) -> list[str]:
        return sorted(self._members)

    def traits(self, uses: Uses) -> list[Trait]:
        return _of_archive(self.path, self.remedy)

    @cached_property
    def _file(self) -> zipfile.ZipFile:
        try:
            return _Archive(self.path)
        except _TooLargeError as problem:
            raise DataError(f"{self.path} {problem}. {self.remedy}") from None
        except (*BROKEN, zipfile.BadZipFile, NotImplementedError) as problem:
            raise DataError(f"{self.path} is damaged ({problem}). {self.remedy}") from None

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._file.infolist()
        if sum(info.file_size for info in infos) > _most_unpacked(self.path):
            raise DataError(f"{self.path} {_unpacks(self.path)}. {self.remedy}")
        # A damaged archive may have a file without a name, for which zipfile fails.
        files = (info for info in infos if info.filename and not info.is_dir())
        inside = ((_below(self.folder, info.filename), info) for info in files)
        return {name: info for name, info in inside if name}

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        missing = [name for name in names if name not in self._members]
        if missing:
            raise _lacks(self.path, self.folder, missing, self.remedy)
        for name in sorted(names, key=lambda name: self._members[name].header_offset):
            yield name, partial(self._read, name)

    def _read(self, name: str) -> bytes:
        info = self._members[name]
        if info.file_size > LARGEST_MEMBER or info.compress_type not in METHODS:
            raise DataError(f"{self.where(name)} {_strange(info.file_size)}. {self.remedy}")
        try:
            with self._file.open(info) as file:
                return _read_chunks(file)
        except (*BROKEN, zipfile.BadZipFile, RuntimeError, NotImplementedError) as problem:
            raise DataError(f"{self.where(name)} is damaged ({problem}). {self.remedy}") from None


@dataclass(frozen=True)
class Tar:
    """A gzipped tar, which is read from its beginning."""

    path: Path
    folder: str
    remedy: str

    def where(self, name: str) -> str:
        return f"{self.folder}/{name} in {self.path}"

    def names(self) -> list[str]:
        with self._guarded():
            return sorted(name for name, _, entry in self._entries() if entry.isreg())

    def traits(self, uses: Uses) -> list[Trait]:
        return _of_archive(self.path, self.remedy)

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        """Yield the named files in one pass that ends with the checksum of the archive."""
        missing = set(names)
        with self._guarded():
            for name, tar, entry in self._entries():
                if name not in missing:
                    continue
                missing.remove(name)
                if entry.isreg() and entry.size > LARGEST_MEMBER:
                    raise DataError(f"{self.where(name)} {_strange(entry.size)}. {self.remedy}")
                file = tar.extractfile(entry) if entry.isreg() else None
                if file is None:
                    raise DataError(f"{self.where(name)} is not a plain file. {self.remedy}")
                yield name, partial(bytes, _read_chunks(file))
        if missing:
            raise _lacks(self.path, self.folder, missing, self.remedy)

    def _entries(self) -> Iterator[tuple[str, tarfile.TarFile, tarfile.TarInfo]]:
        # Stream mode never seeks backwards, so forged sizes cannot loop.
        with gzip.open(self.path) as packed:
            plain = _Bounded(packed, self.path)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=CHUNK, tarinfo=_Entry) as tar:  # type: ignore[call-overload]
                for number, entry in enumerate(tar):
                    if number >= MOST_MEMBERS:
                        raise _TooLargeError(f"holds more than {MOST_MEMBERS:,} files")
                    tar.members = []  # tarfile would keep all of them
                    name = _below(self.folder, entry.name)
                    if name:
                        yield name, tar, entry
                while plain.read(CHUNK):
                    pass

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except _TooLargeError as problem:
            raise DataError(f"{self.path} {problem}. {self.remedy}") from None
        except (*BROKEN, tarfile.TarError) as problem:
            raise DataError(f"{self.path} is damaged ({problem}). {self.remedy}") from None


class _TooLargeError(Exception):
    """An archive beyond a limit. The message completes a sentence that begins with its name."""


class _Archive(zipfile.ZipFile):
    """A zip with a bounded list of members, checked before objects are made of it."""

    def __init__(self, path: Path) -> None:
        self._source = _Directory(path.open("rb", buffering=0))
        try:
            super().__init__(self._source)
        except BaseException:
            self._source.close()
            raise

    def close(self) -> None:
        super().close()
        self._source.close()


class _Directory(io.BufferedReader):
    """The file of a zip, from which `zipfile` reads the list of members at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = MOST_MEMBERS * 2**8
        data = super().read(most + 1 if size is None or size < 0 else min(size, most + 1))
        if len(data) > most or data.count(b"PK\1\2") > MOST_MEMBERS:
            raise _TooLargeError(f"lists more than {MOST_MEMBERS:,} files")
        return data


class _Bounded:
    """A reader of a compressed file that stops at a limit."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self.file, self.path, self.remaining = file, path, _most_unpacked(path)

    def read(self, size: int) -> bytes:
        data = self.file.read(min(size, CHUNK))
        self.remaining -= len(data)
        if self.remaining < 0:
            raise _TooLargeError(_unpacks(self.path))
        return data


class _Entry(tarfile.TarInfo):
    """A member of a tar, or a record with metadata of the next one: those are read whole, and must be small."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Check a header before its data are read. New versions of Python do not call `frombuf` for every header."""
        if self.size > LARGEST_NAME and not (self.isreg() or self.isdir() or self.isdev() or self.issym()):
            raise _TooLargeError("has a name that is too long")
        return super()._proc_member(archive)  # type: ignore[misc]


def _read_chunks(file: IO[bytes]) -> bytes:
    """Read the rest of a file in chunks: zipfile and tarfile then return no more than its declared size."""
    return b"".join(iter(lambda: file.read(CHUNK), b""))


def _most_unpacked(path: Path) -> int:
    return UNPACKED * path.stat().st_size + ALLOWANCE


def _unpacks(path: Path) -> str:
    return f"unpacks to more than {_most_unpacked(path):,} bytes, which no archive of images does"


def _strange(size: int) -> str:
    if size > LARGEST_MEMBER:
        return f"has {size:,} bytes, and at most {LARGEST_MEMBER:,} are read"
    return "is compressed in another way than deflate"


def open_tree(path: Path, folder: str, remedy: str) -> Tree:
    """Open the folder of a dataset, or the archive that holds it under the name `folder`."""
    if path.is_dir():
        return Folder(path, remedy)
    return Zip(path, folder, remedy) if path.suffix == ".zip" else Tar(path, folder, remedy)


def _below(folder: str, name: str) -> str | None:
    """Return a name relative to the folder; None for files outside of it and hidden ones."""
    name = name.removeprefix("./")
    inside = name.removeprefix(f"{folder}/")
    return None if inside == name or not inside or "/." in f"/{inside}" else inside


def _of_archive(path: Path, remedy: str) -> list[Trait]:
    try:
        return [(path.name, path.stat().st_size)]
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}. {remedy}") from None


def _lacks(path: Path, folder: str, missing: Collection[str], remedy: str) -> DataError:
    first = [f"{folder}/{name}" for name in sorted(missing)[:5]]
    more = f" and {len(missing) - len(first)} more" if len(missing) > len(first) else ""
    return DataError(f"{path} lacks {', '.join(first)}{more}. {remedy}")


def read_text(tree: Tree, name: str) -> str:
    """Read a small text file. Bytes that are not UTF-8 become replacement characters; a BOM is removed."""
    [(_, read)] = tree.contents({name})
    content = read()
    if len(content) > LARGEST_TEXT:
        raise DataError(
            f"{tree.where(name)} has {len(content):,} bytes, too many for a table of names. {tree.remedy}"
        )
    return bytes(content).decode("utf-8-sig", "replace")
