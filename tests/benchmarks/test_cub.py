from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from kenyon.benchmarks import cub
from kenyon.data import CentreCrop, Ragged, ResizedCrop, Source, find_source
from kenyon.datasets.archives import CUB_200, data_folders, locate
from kenyon.errors import DataError
from tests.image_replicas import CUB_CLASSES, pack, write_cub


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("realdata") is None:
        monkeypatch.setattr(cub, "SHORTER", 12)
        monkeypatch.setattr(cub, "IMAGES", 1100)


def load(folder: Path) -> Source:
    return find_source("cub-200").load(folder)


def pool(source: Source) -> Ragged:
    assert isinstance(source.images, Ragged)
    return source.images


def same(one: Source, other: Source) -> bool:
    pairs = zip((pool(one)[i] for i in range(1100)), (pool(other)[i] for i in range(1100)), strict=True)
    return torch.equal(one.labels, other.labels) and all(torch.equal(a, b) for a, b in pairs)


def test_images_keep_their_proportions_and_classes(tmp_path: Path) -> None:
    write_cub(tmp_path)
    source = load(tmp_path)
    images = pool(source)
    assert len(images) == 1100
    assert torch.equal(torch.minimum(images.height, images.width), torch.full((1100,), 12))
    assert len(set(images.width.tolist())) > 10
    for i in range(0, 1100, 17):
        red, green, _ = images[i].float().mean((1, 2)).tolist()
        label = int(source.labels[i])
        if label % 10 == 9:
            assert red == green  # grey
        else:
            assert abs(red - label) < 4 and abs(green - (255 - label)) < 4
    assert source.class_names[0] == "Black footed Albatross" and source.class_names[199] == "Common Yellowthroat"


def test_the_first_four_fifths_of_each_class_train(tmp_path: Path) -> None:
    write_cub(tmp_path)
    source, spec = load(tmp_path), find_source("cub-200")
    stream = source.stream(0, validation=0.0)
    assert stream.class_counts == spec.class_counts and stream.input_shape == spec.shape
    assert stream.augmentation == ResizedCrop(224) and stream.testing == CentreCrop(224)
    assert isinstance(source.test, torch.Tensor)
    for label in range(200):
        # 80% of 5 and of 6, rounded up
        assert source.test[source.labels == label].tolist() == [False] * (4 + label % 2) + [True]


def test_all_layouts_hold_the_same(tmp_path: Path) -> None:
    images = write_cub(tmp_path / "folder")
    whole = load(tmp_path / "folder")
    assert same(load(images), whole) and same(load(images.parent), whole)
    shutil.copytree(images, tmp_path / "plain")
    assert same(load(tmp_path / "plain"), whole)
    pack(write_cub(tmp_path / "packed"), CUB_200.archives[0])
    assert same(load(tmp_path / "packed"), whole)
    assert same(load(tmp_path / "packed"), whole)  # from the cache


def test_another_number_of_classes_or_images_is_refused(tmp_path: Path) -> None:
    images = write_cub(tmp_path)
    (next((images / CUB_CLASSES[3]).iterdir())).unlink()
    with pytest.raises(DataError, match=r"1,099 images in 200 class folders.*1,100 in 200.*kenyon data get cub-200"):
        load(tmp_path)
    shutil.rmtree(images / CUB_CLASSES[3])
    with pytest.raises(DataError, match=r"199 class folders.*nothing in 004"):
        load(tmp_path)


def test_a_damaged_photograph_and_a_truncated_archive_are_named(tmp_path: Path, decoded: Path) -> None:
    photograph = next((write_cub(tmp_path) / CUB_CLASSES[150]).iterdir())
    photograph.write_bytes(b"\xff\xd8" + bytes(100))
    with pytest.raises(DataError, match=f"{photograph.name} is not an image"):
        load(tmp_path)
    archive = pack(photograph.parent.parent, CUB_200.archives[0])
    with pytest.raises(DataError, match=rf"{photograph.name} in .*CUB_200_2011\.tgz is not an image"):
        load(tmp_path)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(DataError, match=r"CUB_200_2011\.tgz is damaged.*kenyon data get cub-200"):
        load(tmp_path)
    assert list(decoded.iterdir()) == []


@pytest.mark.realdata
def test_the_real_files() -> None:
    if locate(CUB_200, data_folders(None)) is None:
        pytest.skip("needs the real cub-200")
    source = find_source("cub-200").load(None)
    assert isinstance(source.test, torch.Tensor)
    assert int((~source.test).sum()) == 9465 and int(source.test.sum()) == 2323
