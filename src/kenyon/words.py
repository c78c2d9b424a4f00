"""Words for numbers, in messages, tables and pictures."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
