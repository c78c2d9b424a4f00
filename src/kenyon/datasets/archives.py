"""The public datasets: their archives, the folders that are searched for them, and copies that are found.

Addresses, sizes and checksums are those published by the authors of the datasets and by common loaders. A copy may be
packed or unpacked. Imports nothing heavy: the command line lists datasets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from kenyon.datasets.trees import Content, Tree, open_tree
from kenyon.errors import DataError
from kenyon.utils.files import exists, is_file, is_folder

__all__ = ["DATASETS", "Archive", "Copy", "Dataset", "find", "locate"]


@dataclass(frozen=True)
class Archive:
    """One file to download."""

    url: str
    size: int | None  # in bytes; None if it is not published, and only the checksum decides
    checksum: str  # "md5:..." or "sha256:..."
    folder: str  # inside the archive, "/" between its parts
    members: tuple[str, ...]  # files or folders in that folder that identify an unpacked copy
    places: tuple[str, ...] = ()  # other names of that folder; "" is the data folder itself

    @property
    def file(self) -> str:
        return PurePosixPath(self.url).name


@dataclass(frozen=True)
class Dataset:
    name: str
    archives: tuple[Archive, ...]
    inside: tuple[str, ...] = ()  # folders in which other libraries keep the archives

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member for archive in self.archives for member in archive.members)

    @property
    def size(self) -> int | None:
        """Bytes of the whole download; None if not known."""
        sizes = [archive.size for archive in self.archives]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def remedy(self, path: Path) -> str:
        """Return the remedy for a damaged copy at a path."""
        again = f"download it again with `kenyon data get {self.name}`"
        return f"Remove {path} and {again}, or point --data at another copy."


CIFAR_100 = Dataset(
    "cifar-100",
    (
        Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            size=169_001_437,
            checksum="sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            folder="cifar-100-python",
            members=("train", "test", "meta"),
        ),
    ),
)
CIFAR_10 = Dataset(
    "cifar-10",
    (
        Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            size=170_498_071,
            checksum="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            folder="cifar-10-batches-py",
            members=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        ),
    ),
)
OMNIGLOT = Dataset(
    "omniglot",
    (
        Archive(
            url="https://github.com/brendenlake/omniglot/raw/master/python/images_background.zip",
            size=None,
            checksum="md5:68d2efa1b9178cc56df9314c21c6e718",
            folder="images_background",
            members=("Alphabet_of_the_Magi", "Tifinagh"),
        ),
        Archive(
            url="https://github.com/brendenlake/omniglot/raw/master/python/images_evaluation.zip",
            size=None,
            checksum="md5:6b91aef0f799c5bb55b94e3f2daec811",
            folder="images_evaluation",
            members=("Angelic", "ULOG"),
        ),
    ),
    inside=("omniglot-py", "omniglot"),
)
CUB_200 = Dataset(
    "cub-200",
    (
        Archive(
            url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            size=1_150_585_339,
            checksum="md5:97eceeb196236b17998738112f37df78",
            folder="CUB_200_2011/images",
            members=("001.Black_footed_Albatross", "200.Common_Yellowthroat"),
            places=("images", ""),
        ),
    ),
)
TINY_IMAGENET = Dataset(
    "tiny-imagenet",
    (
        Archive(
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            size=248_100_043,
            checksum="md5:90528d7ca1a48142e341f4ef8d21d0de",
            folder="tiny-imagenet-200",
            members=("wnids.txt", "train", "val"),
            places=("tiny-imagenet", ""),
        ),
    ),
)
CORE50 = Dataset(
    "core50",
    (
        Archive(
            url="http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
            size=None,
            checksum="md5:745f3373fed08d69343f1058ee559e13",
            folder="core50_128x128",
            members=tuple(f"s{session}" for session in range(1, 12)),
            places=("",),
        ),
    ),
    inside=("core50",),
)
DATASETS = {dataset.name: dataset for dataset in (CIFAR_100, CIFAR_10, OMNIGLOT, CUB_200, TINY_IMAGENET, CORE50)}

VARIABLE = "KENYON_DATA"


def data_folders(explicit: Path | None = None) -> list[Path]:
    """Return the folders to search, in order: `--data` alone, or those of KENYON_DATA and the cache.

    Folders other than `--data` may not exist: the error for a missing dataset names them.
    """
    if explicit is None:
        return [*_from_environment(), _cache_folder()]
    folder = explicit.expanduser()
    if not exists(folder):
        raise DataError(
            f"The data folder {folder} does not exist, or this user may not look into it. Check the path given to "
            "--data."
        )
    if not is_folder(folder):
        raise DataError(f"--data {folder} is a file. Give the folder that holds it instead.")
    return [folder]


def download_folder(explicit: Path | None = None) -> Path:
    """Return the folder of downloads: `--data`, else the first of KENYON_DATA, else the cache. It may not exist."""
    if explicit is not None:
        return explicit.expanduser()
    return [*_from_environment(), _cache_folder()][0]


def decoded_folder() -> Path:
    """Return the folder of decoded images. It may not exist."""
    return _cache_folder() / "decoded"


def _from_environment() -> list[Path]:
    listed = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [Path(entry).expanduser() for entry in listed if entry.strip()]


def _cache_folder() -> Path:
    try:
        home = Path.home()
    except RuntimeError:
        raise DataError(f"There is no home folder to keep data in. Use --data or set {VARIABLE}.") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "kenyon"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "kenyon"
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG standard asks for relative paths to be ignored.
    return (shared if shared.is_absolute() else home / ".cache") / "kenyon"


@dataclass(frozen=True)
class Copy:
    """A dataset on this machine: for each archive the unpacked folder or the archive itself."""

    dataset: Dataset
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The folder or archive, for messages."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        pairs = zip(self.paths, self.dataset.archives, strict=True)
        return tuple(open_tree(path, archive.folder, self.dataset.remedy(path)) for path, archive in pairs)

    def where(self, member: str) -> str:
        """Return the name of a member for messages."""
        return self._tree_of(member).where(member)

    def remedy(self, member: str) -> str:
        return self._tree_of(member).remedy

    def read(self, *members: str) -> Iterator[tuple[str, Content]]:
        """Yield the named members (all, if none is named) with their bytes, in the order of the copy."""
        wanted = members or self.dataset.members
        for tree in self.trees:
            for member, content in tree.contents({name for name in wanted if self._tree_of(name) is tree}):
                yield member, content()

    def _tree_of(self, member: str) -> Tree:
        return next(t for t, a in zip(self.trees, self.dataset.archives, strict=True) if member in a.members)


def locate(dataset: Dataset, folders: list[Path]) -> Copy | None:
    """Return the first copy in the folders: an unpacked folder, which reads faster, before an archive."""
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
    return [member for member in archive.members if not exists(unpacked / member)]


def find(dataset: Dataset, folders: list[Path]) -> Copy:
    """Return the first copy, as `locate`; raise DataError, with the folders and the remedy, if there is none."""
    copy = locate(dataset, folders)
    if copy is not None:
        return copy
    wanted = " and ".join(f"{archive.folder}/ or {archive.file}" for archive in dataset.archives)
    searched = "\n".join(f"  {folder}{_defects(dataset, folder)}" for folder in folders)
    raise DataError(
        f"The dataset {dataset.name} was not found. Looked for {wanted} in\n"
        f"{searched}\n"
        f"Download it with `kenyon data get {dataset.name}`, or point --data at the folder that has it."
    )


def _defects(dataset: Dataset, folder: Path) -> str:
    """Return, for the message, what is missing in a folder that exists."""
    if exists(folder) and not os.access(folder, os.R_OK | os.X_OK):
        return " (this user may not look into it)"
    defects = [
        f"its {archive.folder}/ lacks {', '.join(_lacking(archive, folder / archive.folder))}"
        for archive in dataset.archives
        if is_folder(folder / archive.folder) and _lacking(archive, folder / archive.folder)
    ]
    return f" ({'; '.join(defects)})" if defects else ""
