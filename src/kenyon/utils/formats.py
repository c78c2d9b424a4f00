"""What was written by another version: an older form is brought up to the present one step by step, a newer refused.

Whoever changes what a file says adds 1 to the `present` number of its kind and one step here or beside it, from the
number before to the new one. A step takes the plain contents of a file and returns them as the next form has them.

Checksums of files: whether a file still says what Kenyon wrote.

Three kinds of files, three places for the checksum:

- JSON has it as the entry `checksum`: SHA-256 of the contents, whatever their layout.
- Weights are named by the result beside them, with size and SHA-256 of the whole file.
- States and saved learners (safetensors) have a CRC-32 over every byte in their header.

A checksum tells damage and careless edits. It is no signature: whoever means to deceive computes a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kenyon.errors import ResultsError
from kenyon.utils.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

Body = dict[str, Any]
Step = Callable[[Body], Body]


@dataclass(frozen=True)
class Formats:
    """The forms of one kind of file. `steps[n]` leads from form n to n + 1."""

    kind: str
    present: int
    steps: Mapping[int, Step] = field(default_factory=dict)
    instead: str = "choose another folder with --out"  # of updating, for whoever has a newer file

    def __post_init__(self) -> None:
        assert set(self.steps) == set(range(1, self.present)), "one step from every form to the next"

    def read(self, body: Body, path: Path) -> Body:
        """The contents in the present form. Raises ValueError for a number that none ever had."""
        if not isinstance(body, dict):
            raise ValueError(f"it is no object in braces but a {type(body).__name__}")
        said = body["format"]
        number = int(said) if isinstance(said, str) else said
        if type(number) is not int:
            raise ValueError(f"there is no format {said!r}")
        self.refuse_newer(number, path)
        if number < 1:
            raise ValueError(f"there is no format {number}")
        for step in range(number, self.present):
            body = self.steps[step](body)
        return body

    def refuse_newer(self, number: Any, path: Path) -> None:
        """Nothing else is asked of what a newer version has written."""
        if type(number) is int and number > self.present:
            raise ResultsError(
                f"{path} is a {self.kind} of format {number}, made by a newer version of Kenyon; this one reads "
                f"formats up to {self.present}. Update Kenyon, or {self.instead}."
            )


ENTRY = "checksum"  # of a JSON object
ALGORITHM = "sha256:"
UNKNOWN = b'"checksum":"00000000"'  # where the checksum of tensors goes, as it counts in the checksum itself
BLOCK = 2**24
WEIGHTS = re.compile(
    r"weights-(\d+)(-after-\d+)?\.safetensors"
)  # of a seed: the final ones, or those after some tasks
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


class ChangedError(ResultsError):
    """A file that is not what Kenyon wrote."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} has changed since Kenyon wrote it: {reason}. {remedy}")


# ---------------------------------------------------------------------- JSON


def json_checksum(body: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object: of all its entries but `checksum`.

    It is taken of a canonical text: keys sorted, no spaces, characters beyond ASCII escaped, numbers as Python writes
    them (floats by `repr`, which is exact). So neither layout nor the order of keys matters, and every value does.
    """
    contents = {name: value for name, value in body.items() if name != ENTRY}
    return ALGORITHM + hashlib.sha256(CANONICAL.encode(contents).encode()).hexdigest()


def with_checksum(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its checksum as the last entry."""
    as_read = json.loads(json.dumps(body))  # keys become strings, tuples lists
    return {**body, ENTRY: json_checksum(as_read)}


def has_checksum(body: Any) -> bool:
    """Whether a JSON file has a checksum of Kenyon's. Those of earlier versions, and of other programs, have none."""
    return isinstance(body, dict) and isinstance(body.get(ENTRY), str) and body[ENTRY].startswith(ALGORITHM)


def check_json(body: Any, path: Path, *, needed: bool = False) -> None:
    """Raise ChangedError where a file that was read has a checksum, and not that of its contents; or has none, though
    one is `needed`.
    """
    if not has_checksum(body):
        if needed:
            raise ChangedError(path, "its checksum is gone", accepting(path))
    elif body[ENTRY] != json_checksum(body):
        raise ChangedError(path, "its checksum is wrong", accepting(path))


def accepting(path: Path) -> str:
    """Say what to do about a JSON file that has changed."""
    return (
        "Put back another copy of it. If the change is meant, "
        f"`kenyon verify --accept {shlex.quote(str(path))}` takes the file as it is."
    )


def crc_of_json(value: Any) -> int:
    """Return the CRC-32 of a value as `json.dumps` writes it, which is what the plan of a sweep has."""
    return zlib.crc32(json.dumps(value).encode())


# ---------------------------------------------------------------------- whole files


@dataclass(frozen=True)
class FileSum:
    """Size and SHA-256 of a file: what `sha256sum` prints."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), digest)

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        return cls(len(data), hashlib.sha256(data).hexdigest())


# ---------------------------------------------------------------------- tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor], head: Mapping[str, str]) -> None:
    """Write tensors and a header, to which a `checksum` is added, as safetensors: whole or not at all."""
    from safetensors.torch import save

    data = save(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        metadata={**head, ENTRY: "0" * 8},
    )
    begin = data.index(UNKNOWN) + len(UNKNOWN) - 9
    whole = memoryview(data)
    write_atomically(path, (whole[:begin], f"{zlib.crc32(whole):08x}".encode(), whole[begin + 8 :]))


def tensors_intact(path: Path, checksum: str) -> bool:
    """Compare the bytes of a file that `write_tensors` wrote with the checksum in its header.

    Raises what reading a damaged file may raise: OSError, ValueError, OverflowError, MemoryError.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(length).replace(f'"checksum":"{checksum}"'.encode(), UNKNOWN, 1)
        found = zlib.crc32(head, zlib.crc32(length.to_bytes(8, "little")))
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return f"{found:08x}" == checksum


def read_header(path: Path) -> tuple[dict[str, str], int]:
    """Return the metadata of a safetensors file, and the size that the file should have, without reading tensors.

    Raises ValueError where it is none, and OSError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError("it is cut off, or no safetensors file")
        head = json.loads(file.read(length))
    if not isinstance(head, dict):
        raise ValueError("its header is no object")
    metadata = head.pop("__metadata__", {})
    try:
        end = max((int(entry["data_offsets"][1]) for entry in head.values()), default=0)
        return {str(name): str(text) for name, text in metadata.items()}, 8 + length + end
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("its header makes no sense") from error
