"""Unusual images: each becomes the right pixels, by hand, or is refused in words."""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from kenyon.data import from_folder
from kenyon.data.external import stack_samples
from kenyon.datasets import images
from kenyon.datasets.images import UnfitError, _decode_one, as_bytes, open_image
from kenyon.datasets.trees import Folder
from kenyon.errors import ConfigError, DataError

Make = Callable[[], Image.Image]


def saved(image: Image.Image, kind: str, **more: Any) -> bytes:
    raw = io.BytesIO()
    image.save(raw, kind, **more)
    return raw.getvalue()


def pixels(content: bytes, mode: Any = "RGB") -> list[Any]:
    """The pixels of an image of one row."""
    with open_image(content) as image:
        return np.asarray(as_bytes(image, mode))[0].tolist()


def tags(**more: Any) -> ImageFileDirectory_v2:
    found = ImageFileDirectory_v2()
    for name, value in more.items():
        found[{"ink": 262}[name]] = value
    return found


def row(mode: str, *values: Any) -> Image.Image:
    image = Image.new(mode, (len(values), 1))
    for x, value in enumerate(values):
        image.putpixel((x, 0), value)
    return image


def deep(*values: int) -> Image.Image:
    return Image.fromarray(np.array([values], np.uint16))


def with_palette(*, transparent: bool) -> bytes:
    image = row("P", 0, 1, 2)
    image.putpalette([10, 20, 30, 200, 100, 50, 1, 2, 3])
    return saved(image, "PNG", **({"transparency": 1} if transparent else {}))


ALPHA = row("RGBA", (10, 20, 30, 255), (10, 20, 30, 0), (100, 0, 200, 51))  # opaque, clear, a fifth
# What white paper shows through: 100 / 5 + 255 * 4 / 5 = 224, 204, 244.
PAPER = [[10, 20, 30], [255, 255, 255], [224, 204, 244]]
CONVERTED: dict[str, tuple[Callable[[], bytes], list[Any]]] = {
    "colours": (lambda: saved(row("RGB", (1, 2, 3), (255, 0, 7)), "PNG"), [[1, 2, 3], [255, 0, 7]]),
    "grey": (lambda: saved(row("L", 0, 7, 255), "PNG"), [[0] * 3, [7] * 3, [255] * 3]),
    "one bit": (lambda: saved(row("1", 0, 1), "PNG"), [[0] * 3, [255] * 3]),
    "one bit, TIFF": (lambda: saved(row("1", 0, 1), "TIFF"), [[0] * 3, [255] * 3]),
    "grey of 16 bits, PNG": (
        lambda: saved(deep(0, 255, 256, 0x8040, 65535), "PNG"),
        [[v] * 3 for v in (0, 0, 1, 128, 255)],
    ),
    "grey of 16 bits, TIFF": (lambda: saved(deep(0, 256, 65535), "TIFF"), [[v] * 3 for v in (0, 1, 255)]),
    "grey of 16 bits, white is 0": (
        lambda: saved(deep(0, 256, 65535), "TIFF", tiffinfo=tags(ink=0)),
        [[v] * 3 for v in (255, 254, 0)],
    ),
    "transparent": (lambda: saved(ALPHA, "PNG"), PAPER),
    "transparent, TIFF": (lambda: saved(ALPHA, "TIFF"), PAPER),
    "transparent, WebP": (lambda: saved(ALPHA, "WEBP", lossless=True, exact=True), PAPER),
    "transparent grey": (
        lambda: saved(row("LA", (9, 255), (9, 0), (55, 51)), "PNG"),
        [[9] * 3, [255] * 3, [215] * 3],
    ),
    "a colour that stands for nothing": (
        lambda: saved(row("RGB", (1, 2, 3), (4, 5, 6)), "PNG", transparency=(4, 5, 6)),
        [[1, 2, 3], [255] * 3],
    ),
    "palette": (lambda: with_palette(transparent=False), [[10, 20, 30], [200, 100, 50], [1, 2, 3]]),
    "transparent palette": (lambda: with_palette(transparent=True), [[10, 20, 30], [255] * 3, [1, 2, 3]]),
    # Ink of each colour takes its share of what black leaves: (255 - 51) * (255 - 0, 128, 255) / 255.
    "inks": (lambda: saved(row("CMYK", (0, 0, 0, 0), (0, 127, 255, 51)), "TIFF"), [[255] * 3, [204, 102, 0]]),
    "bitmap": (lambda: saved(row("RGB", (1, 2, 3)), "BMP"), [[1, 2, 3]]),
}  # fmt: skip


@pytest.mark.parametrize("what", CONVERTED)
def test_converted(what: str) -> None:
    make, expected = CONVERTED[what]
    found = np.array(pixels(make()))
    assert np.abs(found - np.array(expected)).max() <= (1 if "transparent" in what or what == "inks" else 0), found
    grey = np.array(pixels(make(), "L"))
    assert np.abs(grey - np.array(expected) @ [0.299, 0.587, 0.114]).max() <= 1.5


def test_inks_of_a_photograph() -> None:
    """JPEG stores them inverted; Pillow turns them back."""
    [[red, green, blue]] = pixels(saved(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "JPEG", quality=100))
    assert red > 250 and green < 5 and blue < 5


def test_lightness_and_two_axes_of_colour() -> None:
    sRGB, LAB = (ImageCms.createProfile(name) for name in ("sRGB", "LAB"))
    image = ImageCms.profileToProfile(row("RGB", (10, 200, 30), (255, 255, 255)), sRGB, LAB, outputMode="LAB")
    assert image is not None
    assert np.abs(np.array(pixels(saved(image, "TIFF"))) - [[10, 200, 30], [255] * 3]).max() <= 10  # of bytes only


def test_a_camera_s_file_shows_its_first_picture() -> None:
    first, preview = Image.new("RGB", (8, 8), (200, 10, 10)), Image.new("RGB", (8, 8))
    content = saved(first, "MPO", save_all=True, append_images=[preview])
    with open_image(content) as image:
        assert image.format == "MPO" and np.asarray(as_bytes(image, "RGB"))[0, 0, 0] > 190


def test_lengths_of_16_bits_in_colours_keep_the_upper_eight() -> None:
    """Pillow itself reads 16 bits a colour so. Written by hand, for it does not write them."""
    import struct
    import zlib

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    line = b"\0" + np.array([0, 256, 65535], ">u2").tobytes()
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    content += chunk(b"IDAT", zlib.compress(line)) + chunk(b"IEND", b"")
    assert pixels(content) == [[0, 1, 255]]


def frames(kind: str) -> bytes:
    some = [Image.new("RGB", (4, 4), (60 * i, 0, 0)) for i in range(3)]
    return saved(some[0], kind, save_all=True, append_images=some[1:])


def twelve_bits() -> bytes:
    """A TIFF whose greys have 12 bits."""
    content = saved(deep(*range(0, 4096, 1024)), "TIFF")
    return content.replace(b"\x02\x01\x03\x00\x01\x00\x00\x00\x10\x00", b"\x02\x01\x03\x00\x01\x00\x00\x00\x0c\x00")


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "whole numbers of 32 bits": (lambda: saved(Image.new("I", (2, 2), 70000), "TIFF"), "32 bits.*Save it with 8"),
    "whole numbers with a sign": (
        lambda: saved(Image.fromarray(np.array([[-5, 5]], np.int32)), "TIFF"),
        "with a sign.*Save it with 8 or 16",
    ),
    "fractions": (lambda: saved(Image.new("F", (2, 2), 0.5), "TIFF"), "fractions as pixels"),
    "12 bits": (twelve_bits, "greys of 12 bits"),
    "a grey of 16 bits, transparent": (lambda: saved(deep(1, 2), "PNG", transparency=1), "transparent grey"),
    "moving, GIF": (lambda: frames("GIF"), "several frames"),
    "moving, PNG": (lambda: frames("PNG"), "several frames"),
    "moving, WebP": (lambda: frames("WEBP"), "several frames"),
    "pages, TIFF": (lambda: frames("TIFF"), "several frames"),
    "no image": (lambda: b"x" * 100, "none of BMP, GIF, JPEG, PNG, TIFF, WEBP"),
    "empty": (lambda: b"", "it is empty"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    make, message = REFUSED[what]
    try:
        (tmp_path / "odd.png").write_bytes(make())
    except OSError as error:  # not every Pillow writes them all
        pytest.skip(str(error))
    tree = Folder(tmp_path, "Mend it.")
    with pytest.raises(DataError, match=rf"odd\.png.*{message}.* Mend it\."):
        [(_, read)] = tree.contents({"odd.png"})
        _decode_one((tree, "odd.png"), read, lambda image: np.asarray(as_bytes(image, "RGB")))


FOREIGN = {
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
    "ppm": b"P6 1 1 255 abc",
    "xbm": b"#define a_width 8\n#define a_height 1\nstatic char a_bits[] = {0x00};",
    "tga": bytes((0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 24, 0, 1, 2, 3)),
    "dds": b"DDS " + (124).to_bytes(4, "little") + bytes(120),
    "psd": b"8BPS\0\x01" + bytes(30),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "wmf": b"\xd7\xcd\xc6\x9a\0\0" + bytes(40),
    "pdf": b"%PDF-1.4\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_of_other_formats_nothing_is_tried(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPS makes Pillow start Ghostscript, whatever the file is called."""

    def started(*what: object, **more: object) -> None:
        raise AssertionError(f"{what} was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "1.png")
    (tmp_path / "b" / "2.png").write_bytes(FOREIGN[kind])
    monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: tmp_path / ".decoded")
    with pytest.raises(DataError, match=r"2\.png is not an image that can be read \(it is none of BMP, GIF"):
        from_folder(tmp_path, side=2)


def test_nobody_else_opens_images() -> None:
    found = [
        path
        for path in Path(images.__file__).parents[1].rglob("*.py")
        if "Image.open(" in path.read_text(encoding="utf-8")
    ]
    assert found == [Path(images.__file__)]


def test_more_pixels_are_a_user_s_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(Image.new("1", (20, 20)), "PNG")
    monkeypatch.setattr(images, "MOST_PIXELS", 399)
    with (
        pytest.raises(UnfitError, match=r"400 pixels, and at most 399 are read.*KENYON_IMAGE_PIXELS"),
        open_image(content),
    ):
        pass
    monkeypatch.setenv("KENYON_IMAGE_PIXELS", "400")
    with open_image(content) as image:
        assert image.size == (20, 20)
    for odd in ("many", "-1", "0", "1e6", "٣"):
        monkeypatch.setenv("KENYON_IMAGE_PIXELS", odd)
        with pytest.raises(ConfigError, match="KENYON_IMAGE_PIXELS is a number of pixels"), open_image(content):
            pass


def test_threads_together_hold_no_more_than_one_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_PIXELS", 1000)
    content = saved(Image.new("1", (20, 20)), "PNG")
    at_once, most, lock = [0], [0], threading.Lock()

    def decode() -> None:
        for _ in range(20):
            with open_image(content):
                with lock:
                    at_once[0] += 1
                    most[0] = max(most[0], at_once[0])
                threading.Event().wait(0.0005)
                with lock:
                    at_once[0] -= 1

    threads = [threading.Thread(target=decode) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most[0] == 2  # of 400 pixels each


PICTURES: dict[str, tuple[Make, Any]] = {
    "grey": (lambda: row("L", 1, 2), [[[1, 2]]]),
    "one bit": (lambda: row("1", 0, 1), [[[0, 255]]]),
    "colours": (lambda: row("RGB", (1, 2, 3)), [[[1]], [[2]], [[3]]]),
    "four channels": (lambda: row("RGBA", (1, 2, 3, 4)), [[[1]], [[2]], [[3]], [[4]]]),
    "16 bits": (lambda: deep(256, 65535), [[[1, 255]]]),
    "palette": (
        lambda: Image.open(io.BytesIO(with_palette(transparent=False))),
        [[[10, 200, 1]], [[20, 100, 2]], [[30, 50, 3]]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PICTURES)
def test_pictures_of_a_dataset_become_bytes(what: str) -> None:
    make, expected = PICTURES[what]
    found = stack_samples([make(), make()], "mine")
    assert str(found.dtype) == "torch.uint8" and found[1].tolist() == expected


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_of_a_dataset_that_have_no_white(mode: str) -> None:
    with pytest.raises(DataError, match=r"mine: sample 1 has .* white value is not known"):
        stack_samples([Image.new("L", (2, 2)), Image.new(mode, (2, 2))], "mine")
