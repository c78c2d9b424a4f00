"""Changed bytes in a file, and what becomes of them: noticed, harmless, or believed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kenyon.errors import KenyonError


def changed_bytes(path: Path, read: Callable[[Path], Any], places: Iterable[int], seed: int = 0) -> Counter[str]:
    """Change one byte at each of the places in turn. "noticed": reading refuses the file with words; "harmless": it
    reads the same as ever; "believed": it reads otherwise.
    """
    content, as_ever, draws = path.read_bytes(), read(path), random.Random(seed)
    found: Counter[str] = Counter()
    for place in places:
        changed = bytearray(content)
        changed[place] ^= draws.randrange(1, 256) if draws.random() < 0.5 else 1 << draws.randrange(8)
        path.write_bytes(changed)
        try:
            found["harmless" if read(path) == as_ever else "believed"] += 1
        except KenyonError as refused:
            assert path.name in str(refused)
            found["noticed"] += 1
    path.write_bytes(content)
    return found
