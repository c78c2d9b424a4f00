"""The public datasets as they are handed out: addresses, checksums, and what an unpacked copy looks like.

Addresses, sizes and checksums are those that the datasets' keepers and the common loaders publish.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Archive:
    """One file to download."""

    url: str
    size: int | None  # in bytes; None where it is not published, and the checksum alone decides
    checksum: str  # "md5:..." or "sha256:..."
    folder: str  # inside the archive, "/" between its parts
    members: tuple[str, ...]  # files or folders in that folder by which an unpacked copy is known
    places: tuple[str, ...] = ()  # other names under which people keep that folder; "" is the data folder itself

    @property
    def file(self) -> str:
        return PurePosixPath(self.url).name


@dataclass(frozen=True)
class Dataset:
    name: str
    archives: tuple[Archive, ...]
    inside: tuple[str, ...] = ()  # folders in which other software keeps the archives

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member for archive in self.archives for member in archive.members)

    @property
    def size(self) -> int | None:
        """Of the whole download, where it is known."""
        sizes = [archive.size for archive in self.archives]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def remedy(self, path: Path) -> str:
        """What to do about a damaged copy there."""
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
