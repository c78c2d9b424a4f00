from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kenyon.data import Crop, Source, find_source
from kenyon.datasets.archives import TINY_IMAGENET, data_folders, locate
from kenyon.errors import DataError
from tests.image_replicas import WNIDS, pack, write_tiny_imagenet


def load(folder: Path) -> Source:
    return find_source("tiny-imagenet").load(folder)


def same(one: Source, other: Source) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)  # type: ignore[arg-type]


def test_labels_and_parts_are_those_of_the_folders(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    source = load(tmp_path)
    assert source.images.shape == (600, 3, 64, 64)
    red, green = (source.images[:, channel, 30, 30].long() for channel in (0, 1))
    coloured = source.labels > 0  # the first class is grey
    assert int((red[coloured] - source.labels[coloured]).abs().max()) <= 2  # JPEG
    assert torch.equal(source.images[~coloured], torch.full((3, 3, 64, 64), 10, dtype=torch.uint8))
    assert torch.equal(source.test[coloured], green[coloured] > 50)  # type: ignore[index]
    assert int(source.test.sum()) == 200  # type: ignore[union-attr]


def test_classes_are_dealt_by_the_seed(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    source, spec = load(tmp_path), find_source("tiny-imagenet")
    streams = [source.stream(seed, validation=0.0) for seed in range(3)]
    for stream in streams:
        assert stream.class_counts == spec.class_counts and stream.input_shape == spec.shape
        assert stream.augmentation == Crop(4, flip=True) and stream.testing is None
        assert len({name for task in stream.tasks for name in task.classes}) == 200
        for task in stream.tasks:
            assert (len(task.train), len(task.validation), len(task.test)) == (40, 0, 20)
    assert len({stream.tasks[0].classes for stream in streams}) == 3
    assert streams[0].pool is streams[1].pool


def test_names_come_from_the_word_list(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    names = load(tmp_path).class_names
    assert names[:2] == (f"thing 0 ({WNIDS[0]})", f"thing 0 ({WNIDS[1]})") and names[10] == "thing 10"
    (folder / "words.txt").unlink()
    assert load(tmp_path).class_names == tuple(WNIDS)


def test_all_layouts_hold_the_same(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path / "folder")
    whole = load(tmp_path / "folder")
    assert same(load(folder), whole)
    write_tiny_imagenet(tmp_path / "sorted", sorted_folders=True)
    assert same(load(tmp_path / "sorted"), whole)
    pack(write_tiny_imagenet(tmp_path / "zip"), TINY_IMAGENET.archives[0])
    assert same(load(tmp_path / "zip"), whole)


def missing_class(folder: Path) -> None:
    shutil.rmtree(folder / "train" / WNIDS[5])


def missing_image(folder: Path) -> None:
    (folder / "train" / WNIDS[5] / "images" / f"{WNIDS[5]}_1.JPEG").unlink()


def missing_line(folder: Path) -> None:
    path = folder / "val" / "val_annotations.txt"
    path.write_text("".join(path.read_text().splitlines(True)[1:]))


def no_annotations(folder: Path) -> None:
    (folder / "val" / "val_annotations.txt").unlink()


def one_more(folder: Path) -> None:
    images = folder / "train" / WNIDS[7] / "images"
    shutil.copy(next(images.iterdir()), images / "copy.JPEG")


def odd_line(folder: Path) -> None:
    path = folder / "val" / "val_annotations.txt"
    path.write_text(path.read_text() + "nonsense\n")


def unknown_class(folder: Path) -> None:
    (folder / "train" / WNIDS[7]).rename(folder / "train" / "n99999999")


def fewer_classes(folder: Path) -> None:
    path = folder / "wnids.txt"
    path.write_text("".join(path.read_text().splitlines(True)[1:]))


def odd_size(folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 63)).save(folder / "train" / WNIDS[7] / "images" / f"{WNIDS[7]}_0.JPEG")


def cut_image(folder: Path) -> None:
    path = folder / "train" / WNIDS[7] / "images" / f"{WNIDS[7]}_0.JPEG"
    path.write_bytes(path.read_bytes()[:400])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing_class, f"0 images of the class {WNIDS[5]}, where others have 2"),
        (missing_image, f"1 images of the class {WNIDS[5]}, where others have 2"),
        (no_annotations, "val_annotations.txt is missing"),
        (one_more, f"3 images of the class {WNIDS[7]}, where others have 2: some are no part of the dataset"),
        (missing_line, r"val_\d+\.JPEG has no line in val/val_annotations.txt"),
        (odd_line, "lines without a tab"),
        (unknown_class, "images of n99999999, which wnids.txt lacks"),
        (fewer_classes, "names 199 classes, not 200"),
        (odd_size, rf"{WNIDS[7]}_0.JPEG has the shape \(63, 64, 3\)"),
        (cut_image, rf"{WNIDS[7]}_0.JPEG is not an image"),
    ],
)
def test_damaged_folders_are_refused(
    tmp_path: Path, decoded: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(write_tiny_imagenet(tmp_path))
    with pytest.raises(DataError, match=f"{message}.*kenyon data get tiny-imagenet"):
        load(tmp_path)
    assert list(decoded.iterdir()) == []


def test_a_test_set_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    shutil.copytree(folder / "val" / "images", folder / "val" / WNIDS[0])
    with pytest.raises(DataError, match="its images twice: in val/images, and sorted"):
        load(tmp_path)


def test_labels_that_are_mended_count_and_other_files_do_not(tmp_path: Path, decoded: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    before = load(tmp_path)
    path = folder / "val" / "val_annotations.txt"
    lines = path.read_bytes().decode().splitlines(True)
    (folder / "results").mkdir()
    (folder / "results" / "result.json").write_text("{}")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a mark that some editors leave
    assert same(load(tmp_path), before)
    classes = [line.split("\t")[1] for line in lines]
    swapped = zip(lines, classes, reversed(classes), strict=True)
    path.write_text("".join(line.replace(old, new) for line, old, new in swapped))
    assert not same(load(tmp_path), before)


@pytest.mark.realdata
def test_the_real_files() -> None:
    if locate(TINY_IMAGENET, data_folders(None)) is None:
        pytest.skip("needs the real tiny-imagenet")
    stream = find_source("tiny-imagenet").load(None).stream(0, validation=0.0)
    for task in stream.tasks:
        assert (len(task.train), len(task.test)) == (10_000, 1_000)
    assert "goldfish" in {name for task in stream.tasks for name in task.classes}
