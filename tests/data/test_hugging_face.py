"""Real datasets of Hugging Face, against the arrays that they were made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kenyon.data import Classes, Groups, from_arrays, from_dataset, from_hugging_face
from kenyon.errors import DataError

datasets: Any = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # the program's advice

LABELS = ["cat", "ant", "dog", "bee"]  # not in the order of the alphabet


def arrays(count: int = 40, shape: tuple[int, ...] = (3, 4, 5), dtype: Any = np.uint8) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return (generator.random((count, *shape)) * 255).astype(dtype), np.arange(count) % 4


def nested(feature: Any, depth: int) -> Any:
    for _ in range(depth):
        feature = datasets.Sequence(feature)
    return feature


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64", "int32"])
@pytest.mark.parametrize("form", ["array", "lists", "shuffled", "streamed"])
def test_numbers_keep_their_type(kind: str, form: str) -> None:
    x, y = arrays(dtype=kind)
    feature = nested(datasets.Value(kind), 3) if form == "lists" else datasets.Array3D(x.shape[1:], kind)
    features = datasets.Features({"x": feature, "y": datasets.Value("int64"), "more": datasets.Value("string")})
    data = datasets.Dataset.from_dict({"x": list(x), "y": y.tolist(), "more": ["a"] * len(y)}, features=features)
    if form == "shuffled":
        order = np.random.default_rng(1).permutation(len(y))
        data, x, y = data.select(order.tolist()), x[order], y[order]
    if form == "streamed":
        data = data.to_iterable_dataset()
    found = from_hugging_face(data, "x", "y", test=0.25)
    expected = from_arrays(x, y, test=0.25)
    assert isinstance(found.images, torch.Tensor) and isinstance(expected.images, torch.Tensor)
    assert found.images.dtype == expected.images.dtype and torch.equal(found.images, expected.images)
    assert torch.equal(found.labels, expected.labels) and (found.mean, found.std) == (expected.mean, expected.std)


def test_classes_have_their_names() -> None:
    x, y = arrays()
    features = datasets.Features(
        {"x": datasets.Array3D(x.shape[1:], "uint8"), "y": datasets.ClassLabel(names=LABELS)}
    )
    data = datasets.Dataset.from_dict({"x": list(x), "y": y.tolist()}, features=features)
    source = from_hugging_face(data, "x", "y", Classes(2), ordered=True)
    assert source.class_names == tuple(LABELS)
    assert [task.classes for task in source.stream(0).tasks] == [("cat", "ant"), ("dog", "bee")]
    for groups in ([["bee", "cat"], ["dog", "ant"]], [[3, 0], [2, 1]]):
        tasks = from_hugging_face(data, "x", "y", Groups(groups), ordered=True).stream(0).tasks
        assert [task.classes for task in tasks] == [("bee", "cat"), ("dog", "ant")]
    named = Groups({"first": [3, 0], "second": [2, 1]})
    assert [t.name for t in from_hugging_face(data, "x", "y", named, ordered=True).stream(0).tasks] == [
        "first",
        "second",
    ]
    some = from_hugging_face(data.filter(lambda row: row["y"] in (1, 3)), "x", "y")
    assert some.class_names == ("ant", "bee")
    unknown = datasets.Dataset.from_dict({"x": list(x), "y": [-1, *y[1:].tolist()]}, features=features)
    with pytest.raises(DataError, match="has the label -1, and there are 4 classes"):
        from_hugging_face(unknown, "x", "y")


def picture(mode: str, shade: int) -> Any:
    if mode == "I;16":
        return Image.fromarray(np.full((4, 6), shade << 8, dtype=np.uint16))
    plain = Image.new("RGB", (6, 4), (shade,) * 3)
    return plain.quantize(2) if mode == "P" else plain.convert(mode)


@pytest.mark.parametrize(
    ("modes", "channels"),
    [("L", 1), ("L 1", 1), ("RGB", 3), ("RGBA", 4), ("L RGB", 3), ("RGB L", 3), ("RGBA L P", 3), ("LA RGB I;16", 3)],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_pictures_of_several_kinds(modes: str, channels: int, streamed: bool, tmp_path: Path) -> None:
    """They come in whole batches of one kind too, so that a later one may ask for color."""
    shades = [0, 255] if "1" in modes.split() else [30, 200]
    each = [mode for mode in modes.split() for _ in range(300)]
    pictures = [picture(mode, shades[i % 2]) for i, mode in enumerate(each)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])})
    rows = {"image": pictures, "label": [i % 2 for i in range(len(each))]}
    data = datasets.Dataset.from_dict(rows, features=features)
    source = from_hugging_face(data.to_iterable_dataset() if streamed else data, "image", "label")
    images = source.images
    assert isinstance(images, torch.Tensor) and images.dtype == torch.uint8
    assert images.shape == (len(each), channels, 4, 6) and source.class_names == ("dark", "light")
    expected = torch.tensor(shades, dtype=torch.uint8).repeat(len(each) // 2)
    assert torch.equal(images[:, : min(channels, 3)], expected.view(-1, 1, 1, 1).expand(-1, min(channels, 3), 4, 6))
    mixed = from_dataset([(one, i % 2) for i, one in enumerate(pictures)])
    assert torch.equal(mixed.images, images)  # type: ignore[arg-type]


def test_splits_of_several_kinds_of_pictures() -> None:
    def split(mode: str, count: int) -> Any:
        pictures = [picture(mode, 10 * (i % 2)) for i in range(count)]
        return datasets.Dataset.from_dict({"image": pictures, "label": [i % 2 for i in range(count)]}).cast_column(
            "image", datasets.Image()
        )

    source = from_hugging_face(datasets.DatasetDict(train=split("RGB", 20), test=split("L", 8)), "image", "label")
    assert isinstance(source.images, torch.Tensor) and source.images.shape == (28, 3, 4, 6)


def test_a_transformation_of_the_users_counts() -> None:
    x, y = arrays(dtype=np.float32)
    data = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
    data.set_transform(lambda rows: {"x": [np.asarray(one) * 2 for one in rows["x"]], "y": rows["y"]})
    source = from_hugging_face(data, "x", "y")
    torch.testing.assert_close(source.images, torch.from_numpy(2 * x))


def test_domains_are_a_column() -> None:
    x, y = arrays(dtype=np.float32)
    rows = {"x": x.tolist(), "y": (y % 2).tolist(), "place": [("here", "there")[i // 2 % 2] for i in range(len(y))]}
    stream = from_hugging_face(datasets.Dataset.from_dict(rows), "x", "y", "place", ordered=True).stream(0)
    assert stream.heads == "shared" and [task.name for task in stream.tasks] == ["here", "there"]


def test_columns_that_make_no_array_are_told() -> None:
    ragged = datasets.Dataset.from_dict({"x": [[1, 2], [1, 2, 3]] * 4, "y": [0, 1] * 4})
    with pytest.raises(DataError, match=r"hugging-face: train: x has lists of unequal lengths, such as 2 and 3"):
        from_hugging_face(ragged, "x", "y")
    missing = datasets.Dataset.from_dict({"x": [[1.0, None], [1.0, 2.0]] * 4, "y": [0, 1] * 4})
    with pytest.raises(DataError, match="x has values that are missing"):
        from_hugging_face(missing, "x", "y")
    words = datasets.Dataset.from_dict({"x": ["a", "b"] * 4, "y": [0, 1] * 4})
    with pytest.raises(DataError, match="must be an array of numbers"):
        from_hugging_face(words, "x", "y")
    with pytest.raises(DataError, match="has the columns x, y, and no z"):
        from_hugging_face(words, "z", "y")
    fractions = [Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32))] * 4
    with pytest.raises(DataError, match="sample 0 has fractions as pixels"):
        from_dataset([(one, i % 2) for i, one in enumerate(fractions)])


MEMORY = """
import sys
import datasets, torch
from kenyon.data import from_hugging_face
sys.path.insert(0, sys.argv[2])
from tests.memory import peak
data = datasets.load_from_disk(sys.argv[1])
with peak() as used:
    source = from_hugging_face(data, "x", "y")
print(used.mib, source.images.numel() / 2**20)
"""


def test_memory_is_that_of_the_pixels(tmp_path: Path) -> None:
    """30 MiB on disk: twice their size at most. As Python's numbers they took twenty times."""
    pytest.importorskip("resource")
    x, y = arrays(10_000, (3, 32, 32))
    features = datasets.Features({"x": datasets.Array3D(x.shape[1:], "uint8"), "y": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"x": list(x[:100]), "y": y[:100].tolist()}, features=features)
    datasets.concatenate_datasets([data] * 100).save_to_disk(tmp_path / "data")
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "data"), root]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    used, pixels = map(float, said[-2:])
    assert pixels == pytest.approx(29.3, abs=0.1) and used < 2 * pixels
