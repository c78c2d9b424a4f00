from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from kenyon.data import FIRST_SEED, SearchProtocol, Source, find_source, withheld
from kenyon.datasets.archives import CORE50
from kenyon.errors import DataError
from tests.image_replicas import pack, write_core50


def load(folder: Path) -> Source:
    return find_source("core50").load(folder)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core50")
    write_core50(folder)
    return folder


def test_things_are_classes_and_three_sessions_test(replica: Path) -> None:
    source, spec = load(replica), find_source("core50")
    assert source.images.shape == (50 * 11 * 2 + 1, 3, 84, 84) and isinstance(source.test, torch.Tensor)
    red, green = (source.images[:, channel, 0, 0].long() for channel in (0, 1))
    assert torch.equal(red, source.labels + 1)
    assert torch.equal(source.test, torch.isin(green // 20, torch.tensor([3, 7, 10])))
    stream = source.stream(0)
    assert stream.class_counts == spec.class_counts and stream.input_shape == spec.shape
    assert sum(len(task.test) for task in stream.tasks) == 50 * 3 * 2
    assert source.class_names[:6:5] == ("plug adapter 1", "mobile phone 1")
    assert (0 - source.mean[0]) / source.std[0] == -1 and (1 - source.mean[0]) / source.std[0] == 1


def test_a_search_is_scored_on_other_sessions_than_it_learns_from(replica: Path) -> None:
    source = withheld(load(replica), SearchProtocol(share=0.3), whole=find_source("core50").whole)
    for task in source.stream(FIRST_SEED, validation=0.0).tasks:
        learned, scored = (set((s.images[:, 1, 0, 0].long() // 20).tolist()) for s in (task.train, task.test))
        assert len(learned) == 6 and len(scored) == 2 and not learned & scored
        assert not (learned | scored) & {3, 7, 10}


def test_zips_and_folders_hold_the_same(replica: Path, tmp_path: Path) -> None:
    whole = load(replica).images
    assert torch.equal(load(replica / "core50_128x128").images, whole)
    inside = shutil.copytree(replica / "core50_128x128", tmp_path / "core50" / "core50_128x128")
    pack(inside, CORE50.archives[0])
    assert torch.equal(load(tmp_path).images, whole)


@pytest.mark.parametrize(
    ("frame", "size", "told"),
    [
        ("C_04_08_000.png", (128, 128), r"s4/o9/C_04_08_000\.png is no frame of that film"),
        ("C_04_09_001 copy.PNG", (128, 128), r"copy\.PNG is no frame of that film"),
        ("C_04_09_007.png", (640, 360), r"C_04_09_007\.png has 640 x 360 pixels, not 128 x 128"),
    ],
)
def test_frames_that_are_none_are_named(
    replica: Path, tmp_path: Path, frame: str, size: tuple[int, int], told: str
) -> None:
    copy = shutil.copytree(replica / "core50_128x128", tmp_path / "core50_128x128")
    Image.new("RGB", size).save(copy / "s4" / "o9" / frame, format="PNG")
    with pytest.raises(DataError, match=rf"{told}.*Remove .*core50_128x128 and download"):
        load(tmp_path)


def test_a_missing_film_is_named(replica: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(replica / "core50_128x128", tmp_path / "core50_128x128")
    shutil.rmtree(copy / "s4" / "o9")
    with pytest.raises(DataError, match=r"s4/o9 holds no images.*kenyon data get core50"):
        load(tmp_path)
    shutil.rmtree(copy / "s11")
    with pytest.raises(DataError, match=r"core50 was not found(.|\n)*lacks s11"):
        load(tmp_path)
