from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from kenyon.datasets.trees import MAPPED_FROM, Tree, open_tree, read_text
from kenyon.errors import DataError

FILES = {"a.txt": b"first", "b/c.bin": bytes(range(256)), "b/d/large": b"x" * (MAPPED_FROM + 1), "e": b""}
HIDDEN = ("._a.txt", "b/.DS_Store", ".git/config")
KINDS = ("folder", "zip", "tar")


def make(tmp_path: Path, kind: str) -> Tree:
    root = tmp_path / "inside"
    for name, content in [*FILES.items(), *((name, b"junk") for name in HIDDEN)]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (tmp_path / "insider").mkdir()
    (tmp_path / "insider" / "no.txt").write_text("of another folder")
    paths = sorted(path for path in tmp_path.rglob("*"))
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "made.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for path in paths:
                packed.write(path, path.relative_to(tmp_path))
        return open_tree(tmp_path / "made.zip", "inside", "Mend it.")
    if kind == "tar":
        with tarfile.open(tmp_path / "made.tgz", "w:gz") as packed_tar:
            for path in reversed(paths):
                packed_tar.add(path, f"./{path.relative_to(tmp_path)}", recursive=False)
        return open_tree(tmp_path / "made.tgz", "inside", "Mend it.")
    return open_tree(root, "inside", "Mend it.")


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_found_and_read_by_name(tmp_path: Path, kind: str) -> None:
    tree = make(tmp_path, kind)
    assert tree.names() == sorted(FILES)
    assert {name: bytes(read()) for name, read in tree.contents(FILES)} == FILES
    assert [name for name, _ in tree.contents({"e"})] == ["e"]
    assert read_text(tree, "a.txt") == "first"
    assert "a.txt" in tree.where("a.txt") and str(tmp_path) in tree.where("a.txt")


@pytest.mark.parametrize("kind", KINDS)
def test_missing_files_are_named(tmp_path: Path, kind: str) -> None:
    tree = make(tmp_path, kind)
    with pytest.raises(DataError, match="nowhere"):
        for _, read in tree.contents(["a.txt", "nowhere"]):
            read()


@pytest.mark.parametrize("kind", KINDS)
def test_traits_follow_the_files(tmp_path: Path, kind: str) -> None:
    tree = make(tmp_path, kind)
    path = next(tmp_path.glob("made.*"), tmp_path / "inside")
    before = tree.traits(lambda name: True)
    assert open_tree(path, "inside", "").traits(lambda name: True) == before
    changed = path / "a.txt" if kind == "folder" else path
    changed.write_bytes(changed.read_bytes() + b"more")
    assert open_tree(path, "inside", "").traits(lambda name: True) != before


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_damage_anywhere_is_an_error_that_says_what_to_do(tmp_path: Path, kind: str) -> None:
    make(tmp_path, kind)
    path = next(tmp_path.glob("made.*"))
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-9]):
        path.write_bytes(damaged)
        tree = open_tree(path, "inside", "Mend it.")
        with pytest.raises(DataError, match=rf"{path.name}.* Mend it\."):
            for _, read in tree.contents(FILES):
                read()
    for at in range(40, len(whole), 131):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        tree = open_tree(path, "inside", "Mend it.")
        try:
            contents = {name: bytes(read()) for name, read in tree.contents(FILES)}
        except DataError as error:
            assert path.name in str(error) and "Mend it." in str(error)
        else:
            assert contents == FILES


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    tree = open_tree(tmp_path / "empty", "inside", "Mend it.")
    (tmp_path / "empty").rmdir()
    with pytest.raises(DataError, match="empty cannot be read"):
        tree.names()


def test_a_zip_with_a_file_that_has_no_name(tmp_path: Path) -> None:
    """Found by mutation: Python's zipfile raises IndexError when asked whether it is a folder."""
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("inside/a.txt", "first")
        packed.writestr("x", "nameless")
    whole = path.read_bytes()
    entry = whole.rindex(b"PK\x01\x02")  # of "x" in the directory at the end: the length of its name, and the name
    nameless = whole[: entry + 28] + b"\0\0" + whole[entry + 30 : entry + 46] + whole[entry + 47 :]
    size = nameless.rindex(b"PK\x05\x06") + 12  # of that directory
    length = int.from_bytes(nameless[size : size + 4], "little") - 1
    path.write_bytes(nameless[:size] + length.to_bytes(4, "little") + nameless[size + 4 :])
    assert zipfile.ZipFile(path).namelist() == ["inside/a.txt", ""]
    assert open_tree(path, "inside", "Mend it.").names() == ["a.txt"]


def test_a_zip_whose_names_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("inside/é.txt", "first")
    whole = path.read_bytes()
    path.write_bytes(whole.replace("é".encode(), b"\xff\xff", 1))  # in front of the file, not in the directory
    tree = open_tree(path, "inside", "Mend it.")
    with pytest.raises(DataError, match="Mend it"):
        for _, read in tree.contents(tree.names()):
            read()
