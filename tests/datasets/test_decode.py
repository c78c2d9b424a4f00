from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kenyon.datasets.images import fingerprint, pictures, require_room, write_equal, write_ragged
from kenyon.datasets.trees import Folder, Tree, open_tree
from kenyon.errors import DataError
from kenyon.utils.progress import reporting_to


class Listener:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def progress(self, what: str, done: int, total: int) -> None:
        self.seen.append((what, done, total))

    def notice(self, text: str) -> None:
        raise AssertionError(text)


def tree_of(folder: Path, count: int) -> Tree:
    for i in range(count):
        Image.new("RGB", (3 + i % 4, 2), (i % 256, i // 256, 7)).save(folder / f"{i:04d}.png")
    return open_tree(folder, "", "Mend it.")


def rgb(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def test_every_picture_comes_once_and_progress_is_told(tmp_path: Path) -> None:
    tree, listener = tree_of(tmp_path, 300), Listener()
    files = [(tree, name) for name in reversed(tree.names())]
    with reporting_to(listener):
        found = dict(pictures(files, rgb, "decoding"))
    assert sorted(found) == list(range(300))
    for position, picture in found.items():
        number = 299 - position
        assert picture[0, 0].tolist() == [number % 256, number // 256, 7]
    assert listener.seen[0] == ("decoding", 0, 300) and listener.seen[-1] == ("decoding", 300, 300)
    assert listener.seen == sorted(listener.seen)


def test_ragged_and_equal_images_are_written_in_their_places(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 100)
    files = [(tree, name) for name in reversed(tree.names())]
    with (tmp_path / "ragged").open("w+b") as file:
        table = write_ragged(file, files, rgb, "")
        file.seek(0)
        flat = np.frombuffer(file.read(), np.uint8).reshape(-1, 3)
    assert len(flat) == sum(h * w for h, w in zip(table["height"], table["width"], strict=True))
    for i, start in enumerate(table["start"]):
        assert flat[start].tolist() == [99 - i, 0, 7] and table["width"][i] == 3 + (99 - i) % 4
    with (tmp_path / "equal").open("w+b") as file:
        write_equal(file, files, lambda image: rgb(image)[:, :3], (2, 3, 3), "")
        file.seek(0)
        equal = np.frombuffer(file.read(), np.uint8).reshape(100, 2, 3, 3)
    assert equal[:, 0, 0, 0].tolist() == list(range(99, -1, -1))


def test_an_image_of_another_shape_or_a_damaged_one_is_named(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 40)
    files = [(tree, name) for name in tree.names()]
    message = r"0001\.png has the shape \(2, 4, 3\), not \(2, 3, 3\)\. Mend it"
    with (tmp_path / "equal").open("wb") as file, pytest.raises(DataError, match=message):
        write_equal(file, files, rgb, (2, 3, 3), "")
    whole = (tmp_path / "0033.png").read_bytes()
    for damaged in (b"", b"GIF89a", whole[:20], whole[:50], whole[:30] + bytes(20) + whole[50:]):
        (tmp_path / "0033.png").write_bytes(damaged)
        with pytest.raises(DataError, match=r"0033\.png is not an image.*Mend it"):
            list(pictures(files, rgb, ""))
    assert threading.active_count() < 20  # no thread is left behind


def test_too_small_a_disk_is_told_at_once(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        require_room(file, 10)
        with pytest.raises(OSError, match="GB are needed"):
            require_room(file, 10**18)


def test_the_fingerprint_follows_what_is_used(tmp_path: Path) -> None:
    def now() -> str:
        return fingerprint([open_tree(tmp_path, "", "")], lambda name: name.endswith((".png", "labels.txt")))

    tree_of(tmp_path, 5)
    (tmp_path / "labels.txt").write_text("ab")
    before = now()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "result.json").write_text("{}")
    os.utime(tmp_path / "0001.png", (0, 0))
    assert now() == before
    (tmp_path / "labels.txt").write_text("ba")  # as long as before
    assert now() != before
    (tmp_path / "labels.txt").write_text("ab")
    assert now() == before
    (tmp_path / "0002.png").rename(tmp_path / "0009.png")
    assert now() != before


def test_where_files_are_dated_one_written_again_has_changed(tmp_path: Path) -> None:
    tree_of(tmp_path, 2)
    before = fingerprint([Folder(tmp_path, "", dated=True)], lambda name: True)
    assert fingerprint([Folder(tmp_path, "", dated=True)], lambda name: True) == before
    os.utime(tmp_path / "0001.png", (0, 0))
    assert fingerprint([Folder(tmp_path, "", dated=True)], lambda name: True) != before
