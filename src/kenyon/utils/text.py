"""Text formatting: counts with their noun, and untrusted names made safe to print."""

from __future__ import annotations

import re

# Control characters, some of which a terminal executes; marks that change the direction of text; line separators.
CONTROLS = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL, _CONTROL_OR_LINE = re.compile(f"[{CONTROLS}]"), re.compile(f"[{CONTROLS}\n]")
REPLACEMENT = "\ufffd"  # stands for each of them


def counted(number: int, thing: str) -> str:
    """Return the number with its noun: 1 run, 2 runs."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def printable(text: str, *, lines: bool = False) -> str:
    """Replace every control character by a sign, keeping the length. `lines`: keep line feeds."""
    return (_CONTROL if lines else _CONTROL_OR_LINE).sub(REPLACEMENT, text)
