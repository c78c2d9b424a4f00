"""Tensors in a file with a seal: a checksum over every byte tells whether any has changed since.

The form is safetensors, and loading it executes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save as to_bytes
from torch import Tensor

from kenyon.files import write_atomically

UNKNOWN = b'"checksum":"00000000"'  # where the checksum goes, as it counts in the checksum itself
BLOCK = 2**24


def write_sealed(path: Path, tensors: Mapping[str, Tensor], head: Mapping[str, str]) -> None:
    """With what the file says of itself, to which a `checksum` is added; it is there whole or not at all."""
    data = to_bytes(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        metadata={**head, "checksum": "0" * 8},
    )
    begin = data.index(UNKNOWN) + len(UNKNOWN) - 9
    whole = memoryview(data)
    write_atomically(path, (whole[:begin], f"{zlib.crc32(whole):08x}".encode(), whole[begin + 8 :]))


def unbroken(path: Path, checksum: str) -> bool:
    """Raises what reading a damaged file may raise: OSError, ValueError, OverflowError, MemoryError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(length).replace(f'"checksum":"{checksum}"'.encode(), UNKNOWN, 1)
        found = zlib.crc32(head, zlib.crc32(length.to_bytes(8, "little")))
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return f"{found:08x}" == checksum
