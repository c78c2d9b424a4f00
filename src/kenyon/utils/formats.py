"""File formats: versions with their migrations, and checksums.

A file of an older version is migrated step by step to the current form; one of a newer version is refused. To change
what a file holds, add 1 to the `present` number of its kind and a step from the number before: a function from the
plain contents of a file to those of the next form.

Each kind of file has its checksum in another place:

- JSON has it as the entry `checksum`: SHA-256 of the contents, whatever their layout.
- Weights are named, with size and SHA-256 of the whole file, in the result next to them.
- Checkpoints and saved learners (safetensors) have a CRC-32 over every byte in their header.

A checksum detects damage and careless edits. It is no signature: it does not protect against intent.
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
    """The versions of one kind of file. `steps[n]` migrates from version n to n + 1."""

    kind: str
    present: int
    steps: Mapping[int, Step] = field(default_factory=dict)
    instead: str = "choose another folder with --out"  # of updating Kenyon, when the file is newer

    def __post_init__(self) -> None:
        assert set(self.steps) == set(range(1, self.present)), "one step from every form to the next"

    def read(self, body: Body, path: Path) -> Body:
        """Return the contents in the current form. Raises ValueError for a number that no version has had."""
        if not isinstance(body, dict):
            raise ValueError(f"it is no object in braces but a {type(body).__name__}")
        written = body["format"]
        try:
            number = int(str(written))  # a number in JSON, text in the header of tensors
        except ValueError:
            raise ValueError(f"there is no format {written!r}") from None
        self.refuse_newer(number, path)
        if number < 1:
            raise ValueError(f"there is no format {number}")
        for step in range(number, self.present):
            body = self.steps[step](body)
        return body

    def refuse_newer(self, number: Any, path: Path) -> None:
        """Raise ResultsError for a file of a newer version, before anything else of it is checked."""
        if type(number) is int and number > self.present:
            raise ResultsError(
                f"{path} is a {self.kind} of format {number}, made by a newer version of Kenyon; this one reads "
                f"formats up to {self.present}. Update Kenyon, or {self.instead}."
            )


ENTRY = "checksum"  # of a JSON object
ALGORITHM = "sha256:"
ZEROED = b'"checksum":"00000000"'  # the entry of tensors as it counts in the checksum itself
BLOCK = 2**24
# Of a seed: the final weights, or those after a number of tasks.
WEIGHTS = re.compile(r"weights-(\d+)(-after-\d+)?\.safetensors")
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


class ChangedError(ResultsError):
    """A file whose checksum is not that of its contents."""

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
    """Return True if a JSON value has a checksum of Kenyon's. Old files and those of others have none."""
    return isinstance(body, dict) and str(body.get(ENTRY)).startswith(ALGORITHM)


def check_json(body: Any, path: Path, *, needed: bool = False) -> None:
    """Raise ChangedError if the checksum of an object that was read is wrong, or missing though `needed`."""
    if not has_checksum(body):
        if needed:
            raise ChangedError(path, "its checksum is gone", accepting(path))
    elif body[ENTRY] != json_checksum(body):
        raise ChangedError(path, "its checksum is wrong", accepting(path))


def accepting(path: Path) -> str:
    """Return the remedy for a JSON file that has changed."""
    return (
        "Put back another copy of it. If the change is meant, "
        f"`kenyon verify --accept {shlex.quote(str(path))}` takes the file as it is."
    )


def crc_of_json(value: Any) -> int:
    """Return the CRC-32 of a value as `json.dumps` writes it: the checksum in the plan of a sweep."""
    return zlib.crc32(json.dumps(value).encode())


# ---------------------------------------------------------------------- whole files


@dataclass(frozen=True)
class FileSum:
    """Size and SHA-256 of a file, as `sha256sum` prints it."""

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
    """Write tensors and a header, with a `checksum` added, as safetensors: whole or not at all."""
    from safetensors.torch import save

    data = save(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        metadata={**head, ENTRY: "0" * 8},
    )
    begin = data.index(ZEROED) + len(ZEROED) - 9
    whole = memoryview(data)
    write_atomically(path, whole[:begin], f"{zlib.crc32(whole):08x}".encode(), whole[begin + 8 :])


def tensors_intact(path: Path, checksum: str) -> bool:
    """Compare the bytes of a file that `write_tensors` wrote with the checksum in its header.

    Raises what reading a damaged file may raise: OSError, ValueError, OverflowError, MemoryError.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(length).replace(f'"checksum":"{checksum}"'.encode(), ZEROED, 1)
        crc = zlib.crc32(head, zlib.crc32(length.to_bytes(8, "little")))
        while block := file.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}" == checksum


def read_header(path: Path) -> tuple[dict[str, str], int]:
    """Return the metadata of a safetensors file, and the size that the file should have, without reading tensors.

    Raises ValueError if it is not a safetensors file, and OSError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError("it is cut off, or no safetensors file")
        head = json.loads(file.read(length))
    try:
        metadata = head.pop("__metadata__", {})
        end = max((int(entry["data_offsets"][1]) for entry in head.values()), default=0)
        return {str(name): str(text) for name, text in metadata.items()}, 8 + length + end
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("its header makes no sense") from error
