"""The public datasets as they are handed out: one archive each, read packed or unpacked."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from os import SEEK_END
from pathlib import Path, PurePosixPath

from kenyon.errors import DataError

LARGEST_MEMBER = 2**30  # no file of these datasets comes near; a damaged archive may claim anything


@dataclass(frozen=True)
class Dataset:
    """What is known of a public archive."""

    name: str
    url: str
    size: int  # in bytes
    sha256: str
    folder: str  # inside the archive
    members: tuple[str, ...]  # the files of that folder that are needed

    @property
    def archive(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def remedy(self) -> str:
        return f"Remove it and download it again with `kenyon data get {self.name}`, or point --data at another copy."


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="cifar-100",
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            size=169_001_437,
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            folder="cifar-100-python",
            members=("train", "test", "meta"),
        ),
        Dataset(
            name="cifar-10",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            size=170_498_071,
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            folder="cifar-10-batches-py",
            members=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        ),
    )
}


@dataclass(frozen=True)
class Copy:
    """A dataset on this machine: its unpacked folder or its archive."""

    dataset: Dataset
    path: Path

    def where(self, member: str) -> str:
        """The member's name in messages."""
        return f"{self.path / member}" if self.path.is_dir() else f"{self.dataset.folder}/{member} in {self.path}"

    def read(self, *members: str) -> Iterator[tuple[str, bytes | mmap]]:
        """The named members (all of them when none is named) and their bytes, in the order of the copy.

        Unpacked files are mapped rather than read, which spares one copy of 150 MB.
        An archive is read in one pass and to its end, so that its own checksum has the last word.
        """
        wanted = set(members or self.dataset.members)
        yield from self._unpacked(wanted) if self.path.is_dir() else self._packed(wanted)

    def _unpacked(self, wanted: set[str]) -> Iterator[tuple[str, bytes | mmap]]:
        for member in sorted(wanted):
            try:
                with (self.path / member).open("rb") as file:
                    empty = file.seek(0, SEEK_END) == 0  # which cannot be mapped
                    content = b"" if empty else mmap(file.fileno(), 0, access=ACCESS_READ)
                yield member, content
            except OSError as problem:
                raise DataError(f"{self.where(member)} cannot be read: {problem.strerror}.") from None

    def _packed(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        missing = {f"{self.dataset.folder}/{member}": member for member in wanted}
        try:
            # Stream mode never seeks backwards, which also keeps forged sizes from looping for ever.
            with gzip.open(self.path) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=2**20) as tar:
                for entry in tar:
                    member = missing.pop(entry.name.removeprefix("./"), None)
                    if member is None:
                        continue
                    file = tar.extractfile(entry) if entry.isreg() and entry.size <= LARGEST_MEMBER else None
                    if file is None:
                        raise DataError(f"{self.where(member)} is not a plain file. {self.dataset.remedy}")
                    yield member, file.read()
                while plain.read(2**20):
                    pass
        except (OSError, EOFError, tarfile.TarError, zlib.error) as problem:
            raise DataError(f"{self.path} is damaged ({problem}). {self.dataset.remedy}") from None
        if missing:
            raise DataError(f"{self.path} lacks {', '.join(sorted(missing))}. {self.dataset.remedy}")


def locate(dataset: Dataset, folders: list[Path]) -> Copy | None:
    """The first copy found in the folders: an unpacked folder, which reads faster, before an archive."""
    for folder in folders:
        for unpacked in (folder / dataset.folder, folder):
            if all((unpacked / member).is_file() for member in dataset.members):
                return Copy(dataset, unpacked)
        if (folder / dataset.archive).is_file():
            return Copy(dataset, folder / dataset.archive)
    return None


def find(dataset: Dataset, folders: list[Path]) -> Copy:
    """Like `locate`, but nothing found is an error that says where it looked and what to do."""
    copy = locate(dataset, folders)
    if copy is not None:
        return copy
    looked = "\n".join(f"  {folder}{_lack(dataset, folder)}" for folder in folders)
    raise DataError(
        f"The dataset {dataset.name} was not found. Looked for {dataset.folder}/ and {dataset.archive} in\n"
        f"{looked}\n"
        f"Download it with `kenyon data get {dataset.name}`, or point --data at the folder that has it."
    )


def _lack(dataset: Dataset, folder: Path) -> str:
    unpacked = folder / dataset.folder
    if not unpacked.is_dir():
        return ""
    lacking = [member for member in dataset.members if not (unpacked / member).is_file()]
    return f" (its {dataset.folder}/ lacks {', '.join(lacking)})"
