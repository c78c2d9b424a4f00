"""Streams from folders of images and from datasets of other libraries (with stand-ins for those not installed)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from kenyon.data import Classes, Times, from_avalanche, from_dataset, from_folder, from_hugging_face
from kenyon.errors import ConfigError, DataError


def draw(folder: Path, count: int, shade: int, size: tuple[int, int] = (9, 7)) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", size, (shade, 0, i)).save(folder / f"{i}.png")


def test_folders_of_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("ant", "bee", "cat", "dog")):
        draw(tmp_path / name, 10, 60 * number)
    (tmp_path / "readme.txt").write_text("no image")
    source = from_folder(tmp_path, side=5, ordered=True)
    stream = source.stream(0, validation=0.2)
    assert [task.classes for task in stream.tasks] == [("ant", "bee"), ("cat", "dog")]
    assert stream.input_shape == (3, 5, 5) and stream.heads == "task" and stream.in_place
    test = stream.tasks[1].test
    assert [int(image[0, 2, 2]) for image in test.images] == [120 + 60 * label for label in test.labels.tolist()]
    assert from_folder(tmp_path, side=5, grey=True).stream(0).input_shape == (1, 5, 5)


def test_folders_of_domains_with_parts_given(tmp_path: Path) -> None:
    for purpose, count in (("train", 6), ("test", 3), ("val", 2)):
        for d, domain in enumerate(("day", "night")):
            for c, name in enumerate(("car", "van")):
                draw(tmp_path / purpose / domain / name, count, 100 * d + 50 * c)
    stream = from_folder(tmp_path, side=4, ordered=True).stream(0)
    assert stream.heads == "shared" and [task.name for task in stream.tasks] == ["day", "night"]
    for d, task in enumerate(stream.tasks):
        assert [len(part) for part in (task.train, task.validation, task.test)] == [12, 4, 6]
        for part in (task.train, task.validation, task.test):
            assert [int(i[0, 0, 0]) for i in part.images] == [100 * d + 50 * c for c in part.labels.tolist()]


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "valid"), ("train", "validation"), ("train",)])
def test_folders_for_training_without_those_for_testing_are_no_domains(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for purpose in names:
        for name in ("a", "b"):
            draw(tmp_path / purpose / name, 3, 0)
    with pytest.raises(DataError, match=rf"holds .*{names[0]}.*where train and test were expected"):
        from_folder(tmp_path, side=4)


def test_parts_have_several_usual_names(tmp_path: Path) -> None:
    for purpose, count in (("training", 6), ("testing", 3), ("valid", 2)):
        for name in ("a", "b"):
            draw(tmp_path / purpose / name, count, 0)
    [task] = from_folder(tmp_path, Classes(2), side=4).stream(0).tasks
    assert [len(part) for part in (task.train, task.validation, task.test)] == [12, 4, 6]


def test_images_written_again_are_read_again(tmp_path: Path) -> None:
    """Those of a format without compression have the size that they had."""

    def shade(red: int) -> int:
        for name in ("a", "b"):
            for i in range(3):
                (tmp_path / name).mkdir(exist_ok=True)
                Image.new("RGB", (4, 4), (red, 0, 0)).save(tmp_path / name / f"{i}.bmp")
        images = from_folder(tmp_path, side=4).images
        assert isinstance(images, torch.Tensor)
        return int(images[:, 0].float().mean())

    assert [shade(100), shade(7)] == [100, 7]


def test_an_image_of_fractions_is_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a", 2, 0)
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "a" / "x.tiff")
    with pytest.raises(DataError, match=r"x\.tiff has fractions as pixels.*8 or 16 bits"):
        from_folder(tmp_path, side=4)


def test_folders_that_are_no_stream_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        from_folder(tmp_path / "missing", side=4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        from_folder(tmp_path / "empty", side=4)
    draw(tmp_path / "a", 2, 0)
    draw(tmp_path / "b" / "c", 2, 0)
    with pytest.raises(DataError, match=r"all alike: .*png lies otherwise"):
        from_folder(tmp_path, side=4)
    draw(tmp_path / "domains" / "one" / "x", 2, 0)
    draw(tmp_path / "domains" / "one" / "y", 2, 0)
    with pytest.raises(DataError, match="Leave `by` out"):
        from_folder(tmp_path / "domains", Classes(2), side=4)
    (tmp_path / "bad" / "x").mkdir(parents=True)
    (tmp_path / "bad" / "x" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not an image that can be read"):
        from_folder(tmp_path / "bad", side=4)
    (tmp_path / "bad" / "x" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"\(it is empty\)"):
        from_folder(tmp_path / "bad", side=4)
    (tmp_path / "bad" / "x" / "again").symlink_to(tmp_path / "bad")
    with pytest.raises(DataError, match=r"again links to a folder that it lies in"):
        from_folder(tmp_path / "bad", side=4)
    side: Any
    for side in (0, "4", None, 1.5):
        with pytest.raises(ConfigError, match="side must be a whole number of pixels"):
            from_folder(tmp_path / "domains", side=side)
    with pytest.raises(DataError, match=r"test must be .* bools, one a sample, not None"):
        from_folder(tmp_path / "domains", side=4, test=None)  # type: ignore[arg-type]


def test_pictures_of_all_kinds_in_one_folder(tmp_path: Path) -> None:
    """Greys of 16 bits were white but for the darkest."""
    for name in ("a", "b"):
        draw(tmp_path / name, 2, 0)
        for mode in ("L", "LA", "P", "RGBA", "1"):
            Image.new("RGB", (5, 3), (128, 128, 128)).convert(mode).save(tmp_path / name / f"{mode}.png")
        Image.new("RGB", (4, 4), (128, 128, 128)).convert("CMYK").save(tmp_path / name / "c.jpg")
        Image.fromarray(np.full((6, 2), 128 << 8, dtype=np.uint16)).save(tmp_path / name / "deep.png")
    source = from_folder(tmp_path, side=4, ordered=True)
    assert isinstance(source.images, torch.Tensor)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    for name in ("L.png", "LA.png", "RGBA.png", "c.jpg", "deep.png"):
        grey = source.images[names.index(name)].float()
        assert (grey - 128).abs().max() <= 3, name


def pairs(count: int, classes: int, start: int = 0) -> TensorDataset:
    x = torch.arange(start, start + count, dtype=torch.float32).view(-1, 1).expand(-1, 3)
    return TensorDataset(x, torch.arange(count) % classes)


def test_datasets_of_pytorch() -> None:
    drawn = from_dataset(pairs(40, 4), Classes(2), normalise=False).stream(1)
    assert drawn.class_counts == (2, 2) and len(drawn.tasks[0].test) == 4
    with pytest.raises(DataError, match="Times cuts one sequence"):
        from_dataset(pairs(40, 2), Times(2), test=pairs(20, 2, 40))
    classes = from_dataset(pairs(40, 4), test=pairs(20, 4, 100), validation=pairs(12, 4, 200), normalise=False)
    for task in classes.stream(0).tasks:
        assert (task.test.images[:, 0] >= 100).all() and (task.test.images[:, 0] < 200).all()
        assert (task.validation.images[:, 0] >= 200).all() and len(task.train) == 20
    pictures = [(Image.new("RGB", (4, 3), (i, 0, 0)), i % 2) for i in range(10)]
    stream = from_dataset(pictures).stream(0, validation=0.0)
    assert stream.input_shape == (3, 3, 4) and stream.in_place
    with pytest.raises(DataError, match="sample 1 has the shape"):
        from_dataset([(np.zeros(3), 0), (np.zeros(4), 1)])
    with pytest.raises(DataError, match=r"items \(sample, label\)"):
        from_dataset([1, 2, 3])


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"text": [start + i] * 4, "label": i % 2, "place": ("here", "there")[i // 2 % 2]} for i in range(count)]


def test_datasets_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": rows(24), "test": rows(12, 100), "unsupervised": rows(4)}
    stream = from_hugging_face(splits, "text", "label", "place", ordered=True).stream(0, validation=0.2)
    assert stream.heads == "shared" and stream.input_dtype == torch.int64
    assert [task.name for task in stream.tasks] == ["here", "there"]
    assert all((task.test.images >= 100).all() and len(task.test) == 6 for task in stream.tasks)
    fake = SimpleNamespace(load_dataset=lambda name: splits)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert from_hugging_face("some/where", "text", "label").name == "some/where"
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"kenyon\[hf\]"):
        from_hugging_face("some/where", "text", "label")
    with pytest.raises(DataError, match="no sound"):
        from_hugging_face(splits, "sound", "label")
    with pytest.raises(DataError, match="none called train"):
        from_hugging_face({"all": rows(4)}, "text", "label")


def avalanche(classes: list[list[int]], tests: int | None = None) -> Any:
    """The interface of an Avalanche benchmark: streams of experiences with datasets of (x, y, task label)."""

    def stream(count: int, start: float) -> list[Any]:
        return [
            SimpleNamespace(dataset=[(torch.full((2,), start + e), c, e) for c in mine for _ in range(count)])
            for e, mine in enumerate(classes)
        ]

    return SimpleNamespace(train_stream=stream(6, 0.0), test_stream=stream(3, 100.0)[:tests])


def test_benchmarks_of_avalanche() -> None:
    stream = from_avalanche(avalanche([[0, 1], [4, 2, 3]]), normalise=False).stream(5, validation=0.0)
    assert stream.heads == "task" and [task.classes for task in stream.tasks] == [("0", "1"), ("2", "3", "4")]
    for e, task in enumerate(stream.tasks):
        assert task.train.images.unique().tolist() == [e] and task.test.images.unique().tolist() == [100 + e]
        assert task.name == f"experience {e + 1}"
    assert from_avalanche(avalanche([[0, 1], [1, 0]])).stream(0, validation=0.0).heads == "shared"
    with pytest.raises(DataError, match="2 experiences to learn and 1 to test"):
        from_avalanche(avalanche([[0, 1], [2, 3]], tests=1))
    with pytest.raises(DataError, match="experience 2 has one class"):
        from_avalanche(avalanche([[0, 1], [2]]))
