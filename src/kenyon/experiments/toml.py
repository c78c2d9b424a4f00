"""Writing TOML, which Python only reads: plain values, tables and lists of tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(body: Mapping[str, Any], comment: str = "") -> str:
    """A document of plain values (first, as TOML wants them), tables of such, and lists of tables, to any depth."""
    head = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*head, *_table(body, ())]).strip("\n") + "\n"


def _table(body: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in body.items():
        if not _is_table(value) and not _is_tables(value):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in body.items():
        inner = (*path, _key(name))
        if _is_table(value):
            yield from ("", f"[{'.'.join(inner)}]", *_table(value, inner))
        elif _is_tables(value):
            for one in value:
                yield from ("", f"[[{'.'.join(inner)}]]", *_table(one, inner))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_table, value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)  # nan, inf and -inf are TOML's own words
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _text(text: str) -> str:
    """JSON's escapes are TOML's, which also forbids the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
