"""Inputs that nobody meant: mutations of good ones, and what may happen with them.

A target takes one input. It may return or raise a KenyonError, the error whose message a user can act on. Anything
else, or taking longer than PATIENCE, is a failure that names the target and the input.
"""

from __future__ import annotations

import json
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from kenyon.errors import KenyonError

PATIENCE = 20.0  # seconds
NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    False,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "nan",
    "é\u0000\ud800",
    "../..",
    "ewc",
    "digits",
    [],
    [[]],
    [None],
    [1, "a"],
    [[1.0, 2.0]],
    {},
    {"a": 1},
    {"format": 1},
    "x" * 5000,
)


@dataclass(frozen=True)
class Target:
    name: str
    seeds: tuple[bytes, ...]  # good inputs
    feed: Callable[[bytes], None]
    mutate: Callable[[random.Random, bytes], bytes]
    share: float = 1.0  # of the inputs: less for what takes long


class Failure(AssertionError):
    pass


def fuzz(target: Target, count: int, seed: int) -> int:
    """Feed so many inputs. Returns how many were taken without an error; the others were refused with words."""
    taken = 0
    draws = random.Random(f"{target.name} {seed}")
    for number in range(count):
        content = target.mutate(draws, draws.choice(target.seeds))
        try:
            taken += accepted(target.feed, content)
        except Failure as failure:
            raise Failure(f"{target.name}, seed {seed}, input {number}: {failure}\n{content[:3000]!r}") from failure
    return taken


def accepted(feed: Callable[[Any], None], content: Any) -> bool:
    """Whether an input is taken. False: it was refused as it should be."""
    with patience():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                feed(content)
        except KenyonError as refused:
            if not str(refused).strip():
                raise Failure("refused without a word") from refused
            return False
        except Failure:
            raise
        except Exception as error:
            raise Failure(f"{type(error).__name__}: {error}") from error
    return True


@contextmanager
def patience() -> Iterator[None]:
    def tired(number: int, frame: Any) -> None:
        raise Failure(f"it takes longer than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, tired)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def bytes_flipped(draws: random.Random, content: bytes) -> bytes:
    """A few changes: bits, bytes, numbers, pieces cut out, repeated, inserted; or the end cut off."""
    changed = bytearray(content)
    for _ in range(draws.choice((1, 1, 1, 2, 3, 8))):
        at = draws.randrange(len(changed) + 1)
        # Headers come first in all of these formats, and decide most.
        at = min(at, draws.choice((16, 200, len(changed), len(changed))))
        match draws.randrange(8):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << draws.randrange(8)
            case 2 if at < len(changed):
                changed[at] = draws.randrange(256)
            case 3:
                number = draws.choice(NUMBERS) & (2**64 - 1)
                size = draws.choice((1, 2, 4, 8))
                changed[at : at + size] = (number % 256**size).to_bytes(size, draws.choice(("little", "big")))
            case 4:
                del changed[at : at + draws.choice((1, 2, 9, 100))]
            case 5:
                changed[at:at] = changed[at : at + draws.choice((1, 4, 30))]
            case 6:
                changed[at:at] = draws.randbytes(draws.choice((1, 3, 20)))
            case _:
                del changed[at:]
    return bytes(changed)


def json_changed(draws: random.Random, content: bytes) -> bytes:
    """Values somewhere in a document replaced by others, dropped or doubled; sometimes its bytes."""
    if draws.random() < 0.1:
        return bytes_flipped(draws, content)
    body = json.loads(content)
    for _ in range(draws.choice((1, 1, 2, 4))):
        places = [*_places(body)]
        if not places:
            break
        holder, key = draws.choice(places)
        match draws.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[f"{key}x"] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case _:
                holder[key] = deepcopy(draws.choice(ODD))
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
