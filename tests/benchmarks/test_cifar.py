from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kenyon.data import Source, find_source
from kenyon.datasets.archives import DATASETS, data_folders, find, locate
from kenyon.errors import DataError
from tests.replicas import (
    CIFAR_10_NAMES,
    SUPERCLASS_NAMES,
    pack,
    superclass_of,
    write_cifar_10,
    write_cifar_100,
)


def load(name: str, folder: Path) -> Source:
    return find_source(name).load(folder)


def same(one: Source, other: Source) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_r_cifar_100_takes_neighbouring_labels(tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    source = load("r-cifar-100", tmp_path)
    assert source.images.shape == (600, 3, 32, 32)
    assert [group.classes for group in source.groups] == [tuple(range(i, i + 5)) for i in range(0, 100, 5)]
    stream = source.stream(0)
    assert stream.class_counts == find_source("r-cifar-100").class_counts
    assert stream.input_shape == find_source("r-cifar-100").shape
    for task in stream.tasks:
        assert (len(task.train), len(task.validation), len(task.test)) == (18, 2, 10)


def test_pixels_are_read_channel_by_channel(tmp_path: Path) -> None:
    def mark(name: str, table: dict[bytes, Any]) -> None:
        if name == "train":
            table[b"data"][0] = np.arange(3072) // 1024 * 100 + np.arange(3072) % 32

    write_cifar_100(tmp_path, change=mark)
    image = load("r-cifar-100", tmp_path).images[0]
    assert image[:, 5, 7].tolist() == [7, 107, 207]
    assert image[1, 9].tolist() == list(range(100, 132))


def test_s_cifar_100_takes_superclasses(tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    source = load("s-cifar-100", tmp_path)
    assert [group.name for group in source.groups] == SUPERCLASS_NAMES
    for i, group in enumerate(source.groups):
        assert list(group.classes) == [label for label in range(100) if superclass_of(label) == i]


def test_r_cifar_10_100_begins_with_cifar_10(tmp_path: Path) -> None:
    write_cifar_10(tmp_path)
    write_cifar_100(tmp_path)
    source = load("r-cifar-10-100", tmp_path)
    streams = [source.stream(seed) for seed in range(3)]
    for stream in streams:
        assert stream.class_counts == find_source("r-cifar-10-100").class_counts
        assert [task.classes for task in stream.tasks[:2]] == [
            tuple(CIFAR_10_NAMES[:5]),
            tuple(CIFAR_10_NAMES[5:]),
        ]
    assert len({tuple(task.name for task in stream.tasks) for stream in streams}) == 3
    alone = load("r-cifar-100", tmp_path)
    assert torch.equal(source.images[-600:], alone.images)
    assert torch.equal(source.labels[-600:], alone.labels + 10)
    assert torch.equal(source.test[-600:], alone.test)
    assert int(source.test[:-600].sum()) == 20


def test_archives_and_folders_hold_the_same(tmp_path: Path) -> None:
    folder = write_cifar_100(tmp_path / "unpacked")
    pack(write_cifar_100(tmp_path / "packed"))
    unpacked = load("r-cifar-100", tmp_path / "unpacked")
    assert same(load("r-cifar-100", tmp_path / "packed"), unpacked)
    assert same(load("r-cifar-100", folder), unpacked)  # --data may be the dataset's own folder
    write_cifar_10(tmp_path / "unpacked")
    pack(write_cifar_10(tmp_path / "packed"))
    both = [load("r-cifar-10-100", tmp_path / place) for place in ("unpacked", "packed")]
    assert same(*both)


def test_one_member_can_be_read_from_either(tmp_path: Path) -> None:
    dataset = DATASETS["cifar-100"]
    folder = write_cifar_100(tmp_path)
    meta = (folder / "meta").read_bytes()
    for _ in range(2):
        [(name, content)] = find(dataset, [tmp_path]).read("meta")
        assert name == "meta" and content[:] == meta
        if folder.exists():
            pack(folder)


def test_an_incomplete_folder_gives_way_to_the_archive(tmp_path: Path) -> None:
    pack(write_cifar_100(tmp_path))
    (write_cifar_100(tmp_path) / "meta").unlink()
    copy = locate(DATASETS["cifar-100"], [tmp_path])
    assert copy is not None and copy.path.name == "cifar-100-python.tar.gz"


def test_nothing_found_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write_cifar_100(tmp_path / "one") / "meta").unlink()
    monkeypatch.setenv("KENYON_DATA", str(tmp_path / "one"))
    monkeypatch.setattr("kenyon.datasets.archives._cache_folder", lambda: tmp_path / "two")
    with pytest.raises(DataError) as caught:
        find_source("r-cifar-100").load(None)
    for part in (str(tmp_path / "one"), str(tmp_path / "two"), "lacks meta", "kenyon data get cifar-100"):
        assert part in str(caught.value)


def drop(key: bytes) -> Callable[[dict[bytes, Any]], None]:
    return lambda table: table.__delitem__(key)


def put(key: bytes, make: Callable[[Any], Any]) -> Callable[[dict[bytes, Any]], None]:
    return lambda table: table.__setitem__(key, make(table[key]))


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        ("train", drop(b"fine_labels"), "'fine_labels' is missing"),
        ("train", drop(b"data"), "'data' is missing"),
        ("test", drop(b"coarse_labels"), "'coarse_labels' is missing"),
        ("meta", drop(b"coarse_label_names"), "'coarse_label_names' is missing"),
        ("train", put(b"data", lambda d: d.astype(np.int16)), "uint8"),
        ("train", put(b"data", lambda d: d.tolist()), "uint8"),
        ("train", put(b"data", lambda d: d[:, :100].copy()), r"shape \(400, 100\).*3072"),
        ("test", put(b"data", lambda d: d[:-1].copy()), "200 labels for 199 images"),
        ("train", put(b"data", lambda d: d[:1].copy()), "400 labels for 1 images"),
        ("train", put(b"fine_labels", lambda x: [100, *x[1:]]), "from 0 to 100, where 0 to 99"),
        ("train", put(b"fine_labels", lambda x: [-1, *x[1:]]), "from -1"),
        ("train", put(b"fine_labels", lambda x: [2**80, *x[1:]]), "where 0 to 99"),
        ("train", put(b"fine_labels", lambda x: [0.5, *x[1:]]), "whole numbers"),
        ("train", put(b"fine_labels", lambda x: tuple(x)), "whole numbers"),
        ("train", put(b"fine_labels", lambda x: [max(y, 1) for y in x]), "'class_00' has 0 training images"),
        ("test", put(b"fine_labels", lambda x: [max(y, 1) for y in x]), "'class_00' has 0 test images"),
        ("train", put(b"coarse_labels", lambda x: [(x[0] + 1) % 20, *x[1:]]), "different 'coarse_labels'"),
        ("train", put(b"coarse_labels", lambda x: [min(y, 18) for y in x]), "5 classes into each of 20"),
        ("test", put(b"coarse_labels", lambda x: [(y + 1) % 20 for y in x]), "do not agree"),
        ("meta", put(b"fine_label_names", lambda x: x[1:]), "99 different names, where 100"),
        ("meta", put(b"fine_label_names", lambda x: [x[1], *x[1:]]), "99 different names, where 100"),
        ("meta", put(b"coarse_label_names", lambda x: [1, *x[1:]]), "list of names"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, file: str, spoil: Any, message: str) -> None:
    write_cifar_100(tmp_path, change=lambda name, table: spoil(table) if name == file else None)
    with pytest.raises(DataError, match=message) as caught:
        load("r-cifar-100", tmp_path)
    assert str(tmp_path / "cifar-100-python" / file) in str(caught.value)
    assert "kenyon data get cifar-100" in str(caught.value)


def test_foreign_cifar_10_files_are_refused(tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    folder = write_cifar_10(tmp_path)
    content = (folder / "data_batch_3").read_bytes()
    for foreign in (
        content[: len(content) // 2],
        b"",
        b"\x80\x02K\x07.",
        (folder / "batches.meta").read_bytes(),
    ):
        (folder / "data_batch_3").write_bytes(foreign)
        with pytest.raises(DataError, match=r"data_batch_3.*kenyon data get cifar-10\b"):
            load("r-cifar-10-100", tmp_path)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    archive = pack(write_cifar_100(tmp_path))
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    empty_gzip = bytes.fromhex("1f8b08000000000000ff0300") + bytes(8)
    for damaged in (whole[:-4], whole[: len(whole) // 2], bytes(flipped), b"", b"no archive", empty_gzip):
        archive.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz.*kenyon data get cifar-100"):
            load("r-cifar-100", tmp_path)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["r-cifar-100", "s-cifar-100", "r-cifar-10-100"])
def test_the_real_files(name: str) -> None:
    spec = find_source(name)
    if any(locate(DATASETS[need], data_folders(None)) is None for need in spec.needs):
        pytest.skip(f"needs the real {' and '.join(spec.needs)}")
    source = spec.load(None)
    stream = source.stream(0)
    assert stream.class_counts == spec.class_counts
    small = [task for task in stream.tasks if task.classes[0] not in CIFAR_10_NAMES]
    assert len(small) == 20
    for task in small:
        assert (len(task.train), len(task.validation), len(task.test)) == (2250, 250, 500)
    for task in stream.tasks[:-20]:
        assert (len(task.train), len(task.validation), len(task.test)) == (22500, 2500, 5000)
    if name == "s-cifar-100":
        fish = next(task for task in stream.tasks if task.name == "fish")
        assert fish.classes == ("aquarium_fish", "flatfish", "ray", "shark", "trout")
    train = source.images[~source.test][-50_000:]
    mean = torch.stack([train[:, channel].sum(dtype=torch.int64) for channel in range(3)]) / (255 * 1024 * 50_000)
    assert torch.allclose(mean, torch.tensor(source.mean), atol=1e-3)
