"""HTML from Python values, escaped.

Text becomes HTML in one place, `tag`: a plain string is escaped, what `tag` returned is not escaped again. So a
name from a result file can never become markup, whatever it contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = {"img", "meta", "link", "col", "br", "wbr"}
OPTIONAL_END = {"td", "th", "tr", "tbody", "thead", "dt", "dd", "option"}  # HTML lets them out, and tables are long

FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element. Attributes: `class_` for class, `data_value` for data-value; None and False are left out."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in VOID:
        return Markup(opened)
    end = "" if name in OPTIONAL_END else f"</{name}>"
    return Markup(f"{opened}{''.join(map(_child, children))}{end}")


def joined(*children: Child) -> Markup:
    return Markup("".join(map(_child, children)))


def breakable(label: str) -> Markup:
    """A label that goes on in the next line between its values rather than within one."""
    parts = re.split(r"(?<=,)(?=\S)|(?<=, )|(?=\[)", label)
    if len(parts) == 1 or any(len(part) > 30 or " " in part.rstrip(" ") for part in parts):
        return joined(label)
    first, *others = (
        joined(tag("span", part.rstrip(" "), class_="whole"), " " * part.endswith(" ")) for part in parts
    )
    return joined(first, *(joined(tag("wbr"), other) for other in others))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return escape(_printable(str(child)))
    return "".join(map(_child, child))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(_printable(str(value)))}"'


def _printable(text: str) -> str:
    """Control characters and lone surrogates, which HTML does not allow, as the sign for an unknown character."""
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


class Ids:
    """Names for places on the page: readable, safe and given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def new(self, *words: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:60] or "place"
        name, number = base, 2
        while name in self._given:
            name, number = f"{base}-{number}", number + 1
        self._given.add(name)
        return name
