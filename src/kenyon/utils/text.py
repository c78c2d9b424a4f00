"""Words for numbers, and names from files as text that is safe to show."""

from __future__ import annotations

import re

# Control characters, of which a terminal obeys some; marks that turn the direction of text; separators of lines.
CONTROLS = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL, _CONTROL_OR_LINE = re.compile(f"[{CONTROLS}]"), re.compile(f"[{CONTROLS}\n]")
REPLACEMENT = "\ufffd"  # stands for each of them


def counted(number: int, thing: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def printable(text: str, *, lines: bool = False) -> str:
    """Text with a sign for every control character, as long as before. `lines`: it may have several lines."""
    return (_CONTROL if lines else _CONTROL_OR_LINE).sub(REPLACEMENT, text)
