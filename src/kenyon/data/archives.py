"""Finding a dataset on this machine, packed or unpacked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kenyon.data.datasets import DATASETS, Archive, Dataset
from kenyon.data.trees import Content, Tree, open_tree
from kenyon.errors import DataError
from kenyon.files import is_file, is_folder, is_there

__all__ = ["DATASETS", "Archive", "Copy", "Dataset", "find", "locate"]


@dataclass(frozen=True)
class Copy:
    """A dataset on this machine: of each of its archives the unpacked folder, or the archive itself."""

    dataset: Dataset
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """Where it is, in one word."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        pairs = zip(self.paths, self.dataset.archives, strict=True)
        return tuple(open_tree(path, archive.folder, self.dataset.remedy(path)) for path, archive in pairs)

    def where(self, member: str) -> str:
        """The member's name in messages."""
        return self._tree_of(member).where(member)

    def remedy(self, member: str) -> str:
        return self._tree_of(member).remedy

    def read(self, *members: str) -> Iterator[tuple[str, Content]]:
        """The named members (all of them when none is named) and their bytes, in the order of the copy."""
        wanted = members or self.dataset.members
        for tree in self.trees:
            for member, content in tree.contents({name for name in wanted if self._tree_of(name) is tree}):
                yield member, content()

    def _tree_of(self, member: str) -> Tree:
        return next(t for t, a in zip(self.trees, self.dataset.archives, strict=True) if member in a.members)


def locate(dataset: Dataset, folders: list[Path]) -> Copy | None:
    """The first copy found in the folders: an unpacked folder, which reads faster, before an archive."""
    for folder in folders:
        for place in (folder, *(folder / name for name in dataset.inside)):
            paths = [_locate_archive(archive, place) for archive in dataset.archives]
            if None not in paths:
                return Copy(dataset, tuple(path for path in paths if path is not None))
    return None


def _locate_archive(archive: Archive, folder: Path) -> Path | None:
    # The data folder may itself be the dataset's folder.
    for unpacked in (folder / archive.folder, *(folder / place for place in archive.places), folder):
        if not _lacking(archive, unpacked):
            return unpacked
    packed = folder / archive.file
    return packed if is_file(packed) else None


def _lacking(archive: Archive, unpacked: Path) -> list[str]:
    return [member for member in archive.members if not is_there(unpacked / member)]


def find(dataset: Dataset, folders: list[Path]) -> Copy:
    """Like `locate`, but nothing found is an error that says where it looked and what to do."""
    copy = locate(dataset, folders)
    if copy is not None:
        return copy
    wanted = " and ".join(f"{archive.folder}/ or {archive.file}" for archive in dataset.archives)
    looked = "\n".join(f"  {folder}{_lack(dataset, folder)}" for folder in folders)
    raise DataError(
        f"The dataset {dataset.name} was not found. Looked for {wanted} in\n"
        f"{looked}\n"
        f"Download it with `kenyon data get {dataset.name}`, or point --data at the folder that has it."
    )


def _lack(dataset: Dataset, folder: Path) -> str:
    """What is missing in the folders that are there, in words."""
    if is_there(folder) and not os.access(folder, os.R_OK | os.X_OK):
        return " (this user may not look into it)"
    found = [
        f"its {archive.folder}/ lacks {', '.join(_lacking(archive, folder / archive.folder))}"
        for archive in dataset.archives
        if is_folder(folder / archive.folder) and _lacking(archive, folder / archive.folder)
    ]
    return f" ({'; '.join(found)})" if found else ""
