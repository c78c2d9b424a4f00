"""Files that unpack to far more than they are: refused before memory is spent, or time."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

MEGABYTE = 2**20
SPENT = 60  # megabytes that refusing may take


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def zeros(megabytes: int, form: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, form)
    block = bytes(MEGABYTE)
    return b"".join([*(packer.compress(block) for _ in range(megabytes)), packer.flush()])


def large_png(path: Path) -> None:
    """13,000 x 13,000: a bit a pixel in the file, a byte decoded and three as colours."""
    body = struct.pack(">IIBBBBB", 13_000, 13_000, 1, 0, 0, 0, 0)
    packed = zlib.compress(bytes(13_000 * (1 + 13_000 // 8)), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", body) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def large_tile(path: Path) -> None:
    """A TIFF of 16 x 16 pixels in one tile of 16,384 x 16,384."""
    side, packed = 16_384, zeros(256, 15)
    entries = [
        (256, 4, 1, 16), (257, 4, 1, 16), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1),
        (322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, 1000), (325, 4, 1, len(packed)),
    ]  # fmt: skip
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    head += b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    path.write_bytes(head.ljust(1000, b"\0") + packed)


def large_screen(path: Path) -> None:
    """A GIF whose screen is larger than its picture."""
    raw = io.BytesIO()
    Image.new("L", (2, 2)).save(raw, "GIF")
    content = bytearray(raw.getvalue())
    content[6:10] = struct.pack("<HH", 65_535, 65_535)
    path.write_bytes(content)


def large_file(path: Path) -> None:
    """A gibibyte of nothing behind an image."""
    Image.new("L", (2, 2)).save(path)
    os.truncate(path, 2**30)


def zip_of_zeros(path: Path, said: int, method: int = zipfile.ZIP_DEFLATED) -> None:
    """300 MB in one member, of which the archive says another size."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("set/wnids.txt", b"")
        archive.writestr("set/filler", np.random.default_rng(0).bytes(4 * MEGABYTE))
    packed = zeros(300, -15)
    name = b"set/a.png"
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    directory = int.from_bytes(content[end + 16 : end + 20], "little")
    fields = (20, 0, method, 0, 0, 0, len(packed), said, len(name), 0)
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", *fields) + name + packed
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, *fields, 0, 0, 0, 0, directory) + name
    listed = content[directory:end] + entry
    begin = directory + len(local)
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 3, 3, len(listed), begin, 0)
    path.write_bytes(content[:directory] + local + listed + tail)


def zip_of_many(path: Path) -> None:
    """A million members without a byte. (Only the list of them is there.)"""
    name = b"set/a"
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + name
    listed = entry * 1_000_000
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 65_535, 65_535, len(listed), 0, 0)
    path.write_bytes(listed + tail)


def zip_bzip2(path: Path) -> None:
    """Half a kilobyte that unpacks to 100 MB at once."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("set/a.png", bytes(210 * MEGABYTE))


def tar_of_zeros(path: Path) -> None:
    path.write_bytes(zeros(400, 31))


def tar_header(name: str, size: int, kind: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return entry.tobuf(tarfile.GNU_FORMAT)


def tar_with_a_long_name(path: Path, kind: bytes = tarfile.GNUTYPE_LONGNAME) -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    head, block = tar_header("set/x", 100 * MEGABYTE, kind), b"a" * MEGABYTE
    path.write_bytes(b"".join([packer.compress(head), *(packer.compress(block) for _ in range(100)), packer.flush()]))


def tar_of_many(path: Path) -> None:
    path.write_bytes(gzip.compress(tar_header("set/x", 0, tarfile.REGTYPE) * 6_000, 1))


def tar_large_member(path: Path) -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    head = tar_header("set/a.png", 2**29, tarfile.REGTYPE)
    # Added to incompressible bytes, so that the whole archive may unpack to that size.
    noise = np.random.default_rng(0).bytes(64 * MEGABYTE)
    path.write_bytes(b"".join([packer.compress(head), packer.compress(noise), packer.flush()]))


def pickle_of_lists(path: Path) -> None:
    path.write_bytes(b"\x80\x02" + b"]" * (10 * MEGABYTE))


def pickle_of_numbers(path: Path) -> None:
    path.write_bytes(b"\x80\x02]" + b"(" + b"N" * (5 * MEGABYTE))


def pickle_encoded_again(path: Path) -> None:
    """One text of a megabyte, turned into bytes five hundred times."""
    text = b"X" + struct.pack("<I", MEGABYTE) + b"a" * MEGABYTE
    begin = b"\x80\x02" + text + b"q\0" + b"X\6\0\0\0latin1q\1" + b"c_codecs\nencode\nq\2"
    path.write_bytes(begin + b"h\2h\0h\1\x86R" * 500 + b".")


def large_table(path: Path) -> None:
    path.write_bytes(b"word\n")
    os.truncate(path, 2**30)


# What is made, who reads it (below), and what it says.
BOMBS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "large.png": (large_png, "image", "169,000,000 pixels, and at most 67,108,864 are read"),
    "tile.tif": (large_tile, "image", "268,435,456 pixels, and at most"),
    "screen.gif": (large_screen, "image", "more pixels than"),
    "file.png": (large_file, "image", "1,073,741,824 bytes, too many"),
    "lies.zip": (lambda path: zip_of_zeros(path, 100), "tree", "is damaged"),
    "member.zip": (lambda path: zip_of_zeros(path, 290 * MEGABYTE), "tree", "304,087,040 bytes, and at most"),
    "whole.zip": (lambda path: zip_of_zeros(path, 1000 * MEGABYTE), "tree", "unpacks to more than"),
    "bzip2.zip": (zip_bzip2, "tree", "compressed in another way than deflate"),
    "many.zip": (zip_of_many, "tree", "lists more than 262,144 files"),
    "zeros.tgz": (tar_of_zeros, "tree", "unpacks to more than"),
    "name.tgz": (tar_with_a_long_name, "tree", "a name that is too long"),
    "pax.tgz": (lambda path: tar_with_a_long_name(path, tarfile.XHDTYPE), "tree", "a name that is too long"),
    "many.tgz": (tar_of_many, "tree", "holds more than 5,000 files"),
    "member.tgz": (tar_large_member, "tree", "536,870,912 bytes, and at most 268,435,456"),
    "numbers.pickle": (pickle_of_numbers, "pickle", "more than 4,194,304 instructions"),
    "lists.pickle": (pickle_of_lists, "pickle", "more than 65,536 lists"),
    "encoded.pickle": (pickle_encoded_again, "pickle", "makes more bytes than it has"),
    "words.txt": (large_table, "table", "1,073,741,824 bytes, too many for a table"),
}  # fmt: skip


def read(kind: str, path: Path) -> None:
    from kenyon.datasets import trees
    from kenyon.datasets.images import _decode_one, as_bytes
    from kenyon.datasets.pickles import load_plain_pickle
    from kenyon.datasets.trees import Folder, read_text

    folder: Any = Folder(path.parent, "Mend it.")
    if kind == "image":
        [(_, reader)] = folder.contents({path.name})
        _decode_one((folder, path.name), reader, lambda image: np.asarray(as_bytes(image, "RGB").resize((8, 8))))
    elif kind == "tree":
        trees.MOST_MEMBERS = 5_000 if path.name == "many.tgz" else trees.MOST_MEMBERS  # a header at a time takes long
        tree = trees.open_tree(path, "set", "Mend it.")
        for _, reader in tree.contents(tree.names() if path.suffix == ".zip" else {"a.png"}):
            reader()
    elif kind == "pickle":
        load_plain_pickle(path.read_bytes(), str(path))
    else:
        read_text(folder, path.name)


def measure(folder: Path) -> None:
    """Print what each bomb says, and the megabytes that it took, each in a child of its own."""
    from kenyon.datasets import pickles  # noqa: F401
    from kenyon.datasets.images import _decode_one  # noqa: F401 - before the children
    from kenyon.errors import KenyonError

    Image.init()
    for name, (_, kind, _) in BOMBS.items():
        here, there = os.pipe()
        if os.fork() == 0:
            before = _peak()
            try:
                read(kind, folder / name)
                said = "taken"
            except KenyonError as error:
                said = str(error)
            except BaseException as error:
                said = repr(error)
            told = [name, said, _peak() - before]
            os.write(there, json.dumps(told).encode())
            os._exit(0)
        os.close(there)
        os.wait()
        with os.fdopen(here) as answer:
            print(answer.read(), flush=True)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
def test_refused_before_memory_is_spent(tmp_path: Path) -> None:
    for name, (make, _, _) in BOMBS.items():
        make(tmp_path / name)
    done = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True, check=True)
    told = {name: (said, spent) for name, said, spent in map(json.loads, done.stdout.splitlines())}
    assert list(told) == list(BOMBS)
    for name, (said, spent) in told.items():
        assert BOMBS[name][2] in said, (name, said)
        assert spent < SPENT, (name, f"{spent:.0f} MB")


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
