"""The files of a dataset by name, whether they lie in a folder, a zip or a tar archive.

Names are relative to the dataset's own folder, with "/" between their parts. `contents` gives each file as a
function that reads it: several threads may call such functions at once.
"""

from __future__ import annotations

import gzip
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
from typing import Protocol

from kenyon.errors import DataError

LARGEST_MEMBER = 2**30  # no file of these datasets comes near; a damaged archive may claim anything
MAPPED_FROM = 2**20  # bytes: larger files are mapped rather than read, which spares a copy of 150 MB
# What Python's own readers raise on damaged archives beside errors of their own.
BROKEN = (OSError, EOFError, ValueError, LookupError, OverflowError, struct.error, zlib.error)
LABELS = ".txt"  # the ending of small files that say which image is what: an edit may leave their size as it was
Content = bytes | mmap
Reader = Callable[[], Content]
Uses = Callable[[str], bool]  # whether a file of that name counts
Trait = tuple[str | int, ...]  # name, size, and what else may tell


class Tree(Protocol):
    @property
    def remedy(self) -> str:
        """What to do about a damaged copy."""
        ...

    def where(self, name: str) -> str:
        """The file's name in messages."""
        ...

    def names(self) -> list[str]:
        """All files, sorted."""
        ...

    def traits(self, uses: Uses) -> list[Trait]:
        """What changes when the files that are used do, found without reading images; of an archive, its own."""
        ...

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        """The named files, in the order that reads fastest."""
        ...


@dataclass(frozen=True)
class Folder:
    path: Path
    remedy: str
    dated: bool = False  # whether a file that was written again counts as changed, whatever its size

    def where(self, name: str) -> str:
        return str(self.path / name)

    def names(self) -> list[str]:
        return [name for name, *_ in self._found]

    def traits(self, uses: Uses) -> list[Trait]:
        return [self._trait(*found) for found in self._found if uses(found[0])]

    def _trait(self, name: str, size: int, written: int) -> Trait:
        if name.endswith(LABELS):
            return name, zlib.crc32(self._read(name))
        return (name, size, written) if self.dated else (name, size)

    @cached_property
    def _found(self) -> list[tuple[str, int, int]]:
        """Hidden files, which desktops strew about, are no part of a dataset."""
        found: list[tuple[str, int, int]] = []
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
                            found.append((prefix + entry.name, status.st_size, status.st_mtime_ns))
        except OSError as problem:
            raise DataError(
                f"{problem.filename or self.path} cannot be read: {problem.strerror}. {self.remedy}"
            ) from None
        return sorted(found)

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
            return zipfile.ZipFile(self.path)
        except (*BROKEN, zipfile.BadZipFile, NotImplementedError) as problem:
            raise DataError(f"{self.path} is damaged ({problem}). {self.remedy}") from None

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        # A damaged archive may have a file without a name, which zipfile itself stumbles over.
        files = (info for info in self._file.infolist() if info.filename and not info.is_dir())
        inside = ((_below(self.folder, info.filename), info) for info in files)
        return {name: info for name, info in inside if name and info.file_size <= LARGEST_MEMBER}

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Reader]]:
        missing = [name for name in names if name not in self._members]
        if missing:
            raise _lacks(self.path, self.folder, missing, self.remedy)
        for name in sorted(names, key=lambda name: self._members[name].header_offset):
            yield name, partial(self._read, name)

    def _read(self, name: str) -> bytes:
        try:
            return self._file.read(self._members[name])
        except (*BROKEN, zipfile.BadZipFile, RuntimeError, NotImplementedError) as problem:
            raise DataError(f"{self.where(name)} is damaged ({problem}). {self.remedy}") from None


@dataclass(frozen=True)
class Tar:
    """A gzipped tar, which can only be read from its beginning."""

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
        """In one pass and to its end, so that the archive's own checksum has the last word."""
        missing = set(names)
        with self._guarded():
            for name, tar, entry in self._entries():
                if name not in missing:
                    continue
                missing.remove(name)
                file = tar.extractfile(entry) if entry.isreg() and entry.size <= LARGEST_MEMBER else None
                if file is None:
                    raise DataError(f"{self.where(name)} is not a plain file. {self.remedy}")
                yield name, partial(bytes, file.read())
        if missing:
            raise _lacks(self.path, self.folder, missing, self.remedy)

    def _entries(self) -> Iterator[tuple[str, tarfile.TarFile, tarfile.TarInfo]]:
        # Stream mode never seeks backwards, which also keeps forged sizes from looping for ever.
        with gzip.open(self.path) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=2**20) as tar:
            for entry in tar:
                name = _below(self.folder, entry.name)
                if name:
                    yield name, tar, entry
            while plain.read(2**20):
                pass

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (*BROKEN, tarfile.TarError) as problem:
            raise DataError(f"{self.path} is damaged ({problem}). {self.remedy}") from None


def open_tree(path: Path, folder: str, remedy: str) -> Tree:
    """A dataset's folder, or the archive that holds it under the name `folder`."""
    if path.is_dir():
        return Folder(path, remedy)
    return Zip(path, folder, remedy) if path.suffix == ".zip" else Tar(path, folder, remedy)


def _below(folder: str, name: str) -> str | None:
    """The name within the folder; None for files elsewhere and for hidden ones."""
    name = name.removeprefix("./")
    inside = name.removeprefix(f"{folder}/")
    return None if inside == name or not inside or "/." in f"/{inside}" else inside


def _of_archive(path: Path, remedy: str) -> list[Trait]:
    try:
        return [(path.name, path.stat().st_size)]
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}. {remedy}") from None


def _lacks(path: Path, folder: str, missing: Collection[str], remedy: str) -> DataError:
    some = [f"{folder}/{name}" for name in sorted(missing)[:5]]
    more = f" and {len(missing) - len(some)} more" if len(missing) > len(some) else ""
    return DataError(f"{path} lacks {', '.join(some)}{more}. {remedy}")


def read_text(tree: Tree, name: str) -> str:
    """One small file of lines; bytes that are no text are shown as such rather than refused. Some editors put an
    invisible mark at its beginning.
    """
    [(_, read)] = tree.contents({name})
    return bytes(read()).decode("utf-8-sig", "replace")
