from __future__ import annotations

import io
import os
import pickle
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.datasets.pickles import load_plain_pickle
from kenyon.errors import DataError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(min_size=1, max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.binary(min_size=1) | st.integers(), inner)
    ),
    max_leaves=20,
)


def written_by_python_2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The opcodes of the public files: cPickle, protocol 2, byte strings, numpy before 2."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def whole(number: int) -> bytes:
        return b"K" + bytes([number]) if number < 256 else b"M" + struct.pack("<H", number)

    names = b"".join(
        string(f"bos_taurus_s_{i:06d}.png".encode()) + b"r" + struct.pack("<I", 300 + i) for i in range(len(labels))
    )
    minus_one = b"J\xff\xff\xff\xff"
    return b"".join(
        [
            b"\x80\x02}q\x01(",
            string(b"filenames") + b"q\x02]q\x03(" + names + b"e",
            string(b"fine_labels") + b"q\x05]q\x06(" + b"".join(whole(label) for label in labels) + b"e",
            string(b"data") + b"q\x07cnumpy.core.multiarray\n_reconstruct\nq\x08",
            b"cnumpy\nndarray\nq\x09K\x00\x85" + string(b"b") + b"\x87Rq\x0a",
            b"(K\x01" + whole(pixels.shape[0]) + whole(pixels.shape[1]) + b"\x86",
            b"cnumpy\ndtype\nq\x0b" + string(b"u1") + b"K\x00K\x01\x87Rq\x0c",
            b"(K\x03" + string(b"|") + b"NNN" + minus_one + minus_one + b"K\x00tb",
            b"\x89T" + struct.pack("<I", pixels.size) + pixels.tobytes() + b"tb",
            b"u.",
        ]
    )


PIXELS = np.arange(2 * 3072, dtype=np.uint64).reshape(2, 3072).astype(np.uint8)
PYTHON_2 = written_by_python_2(PIXELS, [3, 99])
PYTHON_3 = pickle.dumps({b"data": PIXELS, b"fine_labels": [3, 99], b"filenames": [b"a.png"] * 2}, protocol=2)


def load(raw: bytes) -> Any:
    return load_plain_pickle(raw, "some/file")


@pytest.mark.parametrize("raw", [PYTHON_2, PYTHON_3])
def test_public_layouts_load(raw: bytes) -> None:
    table = load(raw)
    assert table[b"fine_labels"] == [3, 99]
    assert type(table[b"data"]) is np.ndarray
    np.testing.assert_array_equal(table[b"data"], PIXELS)
    np.testing.assert_equal(table, pickle.loads(raw, encoding="bytes"))


@settings(deadline=None, max_examples=100)
@given(value=plain, protocol=st.integers(2, 4))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("kind", ["u1", "i8", "f4", "bool", "<i2"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_come_back(kind: str, order: Any, protocol: int) -> None:
    array = np.array(np.arange(6).reshape(2, 3), dtype=kind, order=order)
    # Twice, so that the second one is fetched from the memo.
    for back in load(pickle.dumps([array, array], protocol=protocol)):
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


class Calls:
    def __init__(self, function: Any, *arguments: object) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "evil",
    [
        Calls(os.system, "touch kenyon-was-here"),
        Calls(eval, "1 + 1"),
        Calls(getattr, {}, "keys"),
        np.array([Calls(os.system, "true"), None], dtype=object),
        np.array([{}], dtype=object),
        np.zeros(2, dtype=[("a", "u1"), ("b", "u1")]),
        np.array(["text"]),
        np.zeros(1, dtype=">i4"),
        np.ma.masked_array([1], [True]),
        {1, 2},
        {(1, 2): 3},
        1 + 2j,
        io.BytesIO(b"x"),
        print,
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_that_is_not_plain_is_refused(evil: object, protocol: int) -> None:
    with pytest.raises(DataError, match="some/file is not a plain data file"):
        load(pickle.dumps({b"data": evil}, protocol=protocol))


def test_codecs_other_than_latin1_are_refused() -> None:
    for codec in (b"rot13", b"zlib", b"utf-8"):
        text = b"X\x01\x00\x00\x00a" + b"X" + struct.pack("<I", len(codec)) + codec
        with pytest.raises(DataError, match="plain"):
            load(b"\x80\x02c_codecs\nencode\n" + text + b"\x86R.")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"<html>Sign in</html>",
        b"\x80\x02.",
        b"\x80\x02a.",
        b"\x80\x02(.",
        b"\x80\x02h\x07.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02}K\x01s.",
        b"\x80\x02e.",
        b"\x80\x02K\x01\x87.",
        b"\x80\x05N.",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02\x8e" + b"\xff" * 8 + b".",
        b"\x80\x02cnumpy\nndarray\nK\x09\x85R.",
        b"\x80\x02cnumpy\nndarray\n}b.",
        b"\x80\x02c\xff\n\n.",
    ],
)
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(DataError, match=r"some/file .*kenyon data get NAME.*--data"):
        load(raw)


def test_an_array_with_the_wrong_number_of_bytes_is_refused() -> None:
    raw = PYTHON_2.replace(b"K\x02M\x00\x0c\x86", b"K\x03M\x00\x0c\x86")
    with pytest.raises(DataError, match=r"shape \(3, 3072\) comes with 6144 bytes"):
        load(raw)


def test_a_wild_memo_index_claims_no_memory() -> None:
    assert load(b"\x80\x02Kar\xff\xff\xff\xff.") == ord("a")


@pytest.mark.parametrize("raw", [PYTHON_2, PYTHON_3])
def test_truncated_files_are_refused_wherever_they_end(raw: bytes) -> None:
    for end in [*range(200), *range(200, len(raw) - 200, 997), *range(len(raw) - 200, len(raw))]:
        with pytest.raises(DataError, match="some/file"):
            load(raw[:end])


@settings(deadline=None, max_examples=300)
@given(data=st.data(), raw=st.sampled_from([PYTHON_2, PYTHON_3]))
def test_flipped_bits_never_give_anything_but_data_errors(data: st.DataObject, raw: bytes) -> None:
    spoiled = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly outside the pixels, where the instructions are.
        at = data.draw(st.integers(0, 400) | st.integers(len(raw) - 200, len(raw) - 1))
        spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        load(bytes(spoiled))
    except DataError as error:
        assert "some/file" in str(error)


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=60))
def test_random_bytes_never_give_anything_but_data_errors(raw: bytes) -> None:
    with suppress(DataError):
        load(b"\x80\x02" + raw)
