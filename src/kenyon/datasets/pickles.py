"""A safe reader for the pickles of public datasets.

A pickle is a program. Python's `pickle.Unpickler` can restrict the functions that it calls, but still lets a file set
attributes on them, and before Python 3.14 one damaged byte in a memo index makes it allocate gigabytes. Here only the
instructions for plain containers and arrays are implemented.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from math import prod
from mmap import mmap
from typing import Any

import numpy as np

from kenyon.errors import DataError

REMEDY = "Download it again with `kenyon data get NAME`, or point --data at another copy."
# Limits on the work of a file; CIFAR-100 takes about 200,000 instructions and 500 containers.
MOST_STEPS, MOST_CONTAINERS = 2**22, 2**16
UINT16, INT32, UINT32, UINT64, DOUBLE = map(struct.Struct, ("<H", "<i", "<I", "<Q", ">d"))
KEYS = frozenset((bytes, str, int, bool))  # types of the keys of a dictionary
NUMBERS = frozenset(kind + size for kind in "iuf" for size in "1248") - {"f1"} | {"b1"}


class _Name(Enum):
    """The names that a file may use. They are plain values: nothing is imported."""

    RECONSTRUCT = "numpy's _reconstruct"
    NDARRAY = "numpy.ndarray"
    DTYPE = "numpy.dtype"
    ENCODE = "_codecs.encode"


NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy", "ndarray"): _Name.NDARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("_codecs", "encode"): _Name.ENCODE,
}


class _RefusedError(ValueError):
    """An instruction that a dataset does not need."""


def load_plain_pickle(content: bytes | mmap, where: str, remedy: str = REMEDY) -> object:
    """Return the containers, numbers, strings and numeric arrays of a pickle of protocol 2 to 4.

    Strings written by Python 2 become bytes. `where`: name of the file in messages; `remedy`: their last sentence.
    """
    try:
        return _Machine(content).run()
    except _RefusedError as refused:
        raise DataError(f"{where} is not a plain data file: {refused}. {remedy}") from None
    except EOFError:
        raise DataError(f"{where} ends too early: the file is incomplete. {remedy}") from None
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error) as problem:
        raise DataError(f"{where} is damaged or not a pickle at all ({problem}). {remedy}") from None


class _Machine:
    """A pickle machine with plain values only: its stack never holds anything callable."""

    def __init__(self, raw: bytes | mmap) -> None:
        self.raw = raw
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each open mark
        self.memo: dict[int, Any] = {}
        self.encoded, self.containers = 0, 0  # bytes encoded from text, and containers value

    def run(self) -> object:
        steps = {code: method.__get__(self) for code, method in STEPS.items()}
        raw, end = self.raw, len(self.raw)
        for _ in range(MOST_STEPS):
            if self.at >= end:
                raise EOFError
            code = raw[self.at]
            self.at += 1
            if code == STOP:
                return self.stack.pop()
            step = steps.get(code)
            if step is None:
                raise _RefusedError(f"it holds the instruction {bytes([code])!r}, which plain data never needs")
            self.containers += code in CONTAINERS
            if self.containers > MOST_CONTAINERS:
                raise _RefusedError(f"it has more than {MOST_CONTAINERS:,} lists, tuples and dictionaries")
            step()
        raise _RefusedError(f"it has more than {MOST_STEPS:,} instructions")

    # Reading the instructions' arguments

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.raw):
            raise EOFError
        return self.raw[start : self.at]

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def text(self, count: int) -> str:
        start, self.at = self.at, self.at + count
        if self.at > len(self.raw):
            raise EOFError
        if count < 1024:
            return self.raw[start : self.at].decode("utf-8", "surrogatepass")
        # A view, since Python 3 writes the pixels of a protocol 2 file as one text of 200 MB.
        return str(memoryview(self.raw)[start : self.at], "utf-8", "surrogatepass")

    def line(self) -> str:
        end = self.raw.find(b"\n", self.at)
        if end < 0:
            raise EOFError
        start, self.at = self.at, end + 1
        return self.raw[start:end].decode("ascii")

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    # The instructions

    def proto(self) -> None:
        protocol = self.take(1)[0]
        if not 2 <= protocol <= 4:
            raise _RefusedError(f"it is a pickle of protocol {protocol}, where 2 to 4 were expected")

    def frame(self) -> None:
        self.take(8)

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def long(self) -> None:
        self.stack.append(int.from_bytes(self.take(self.take(1)[0]), "little", signed=True))

    def short_int(self) -> None:
        self.stack.append(self.take(1)[0])

    def short_bytes(self) -> None:
        self.stack.append(self.take(self.take(1)[0]))

    def push(self, item: Any) -> None:
        self.stack.append(item)

    def append(self) -> None:
        item = self.stack.pop()
        self.a(list).append(item)

    def appends(self) -> None:
        items = self.since_mark()
        self.a(list).extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])

    def set_items(self) -> None:
        self.update(self.since_mark())

    def update(self, flat: list[Any]) -> None:
        target = self.a(dict)
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            # Hashing a deeply nested tuple would overflow the interpreter's own stack.
            if type(key) not in KEYS:
                raise _RefusedError("a dictionary key is neither a string nor a number")
            target[key] = value

    def a(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"a {kind.__name__} was expected")
        return self.stack[-1]

    def tuple_since_mark(self) -> None:
        items = tuple(self.since_mark())
        self.stack.append(items)

    def tuple_of(self, count: int) -> None:
        items = self.stack[-count:]
        if len(items) < count:
            raise ValueError("too few values for a tuple")
        self.stack[-count:] = (tuple(items),)

    def put(self) -> None:
        self.memo[self.take(1)[0]] = self.stack[-1]

    def long_put(self) -> None:
        self.memo[self.number(UINT32)] = self.stack[-1]

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self) -> None:
        self.stack.append(self.memo[self.take(1)[0]])

    def long_get(self) -> None:
        self.stack.append(self.memo[self.number(UINT32)])

    def name(self, module: Any, attribute: Any) -> None:
        known = NAMES.get((str(module), str(attribute)))
        if known is None:
            raise _RefusedError(f"it asks for {module}.{attribute}, which could run foreign code")
        self.stack.append(known)

    def line_name(self) -> None:
        self.name(self.line(), self.line())

    def stack_name(self) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        self.name(module, attribute)

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        match function, arguments:
            # First, since Python 3 writes all bytes of a protocol 2 file this way.
            case _Name.ENCODE, (str() as text, "latin1"):
                self.encoded += len(text)
                if self.encoded > len(self.raw):  # a text that is encoded again and again
                    raise _RefusedError("it makes more bytes than it has")
                value: object = text.encode("latin1")
            case _Name.RECONSTRUCT, (_Name.NDARRAY, (0,), b"b"):
                value = np.empty(0, np.int8)
            case _Name.DTYPE, (bytes() | str() as code, *_):
                value = _number_type(code)
            case _:
                raise _RefusedError("it calls a function that plain data never needs")
        self.stack.append(value)

    def build(self) -> None:
        state = self.stack.pop()
        match self.stack[-1], state:
            case np.dtype(), (3, b"|" | b"<" | "|" | "<", None, None, None, -1, -1, 0):
                pass  # the type is little-endian already
            case np.ndarray() as array, (
                1,
                tuple() as shape,
                np.dtype() as kind,
                bool() as columns,
                bytes() as raw,
            ):
                if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 8:
                    raise ValueError("an array has an impossible shape")
                if prod(shape) * kind.itemsize != len(raw):
                    raise ValueError(f"an array of shape {shape} comes with {len(raw)} bytes")
                checked: Any = (1, shape, kind, columns, raw)  # numpy's stub asks for a type its code refuses
                array.__setstate__(checked)
            case _:
                raise _RefusedError("it sets up an object that is not an array of numbers")


def _number_type(code: bytes | str) -> np.dtype[Any]:
    text = str(code, "latin1") if type(code) is bytes else str(code)
    if text not in NUMBERS:
        raise _RefusedError(f"it holds an array of type '{text}', where only numbers were expected")
    return np.dtype("<" + text)


def _pushes(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(make(machine))


STOP = ord(".")
CONTAINERS = frozenset(b"(]}\x85\x86\x87")
STEPS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    ord("("): _Machine.mark,
    ord("N"): _pushes(lambda m: None),
    0x88: _pushes(lambda m: True),
    0x89: _pushes(lambda m: False),
    ord("K"): _Machine.short_int,
    ord("M"): _pushes(lambda m: m.number(UINT16)),
    ord("J"): _pushes(lambda m: m.number(INT32)),
    0x8A: _Machine.long,
    ord("G"): _pushes(lambda m: m.number(DOUBLE)),
    ord("U"): _Machine.short_bytes,
    ord("C"): _Machine.short_bytes,
    ord("T"): _pushes(lambda m: m.take(m.number(UINT32))),
    ord("B"): _pushes(lambda m: m.take(m.number(UINT32))),
    0x8E: _pushes(lambda m: m.take(m.number(UINT64))),
    0x8C: _pushes(lambda m: m.text(m.take(1)[0])),
    ord("X"): _pushes(lambda m: m.text(m.number(UINT32))),
    0x8D: _pushes(lambda m: m.text(m.number(UINT64))),
    ord("]"): _pushes(lambda m: []),
    ord(")"): _pushes(lambda m: ()),
    ord("}"): _pushes(lambda m: {}),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("t"): _Machine.tuple_since_mark,
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("q"): _Machine.put,
    ord("r"): _Machine.long_put,
    0x94: _Machine.memoize,
    ord("h"): _Machine.get,
    ord("j"): _Machine.long_get,
    ord("c"): _Machine.line_name,
    0x93: _Machine.stack_name,
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
}
