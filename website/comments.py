"""For the API reference: the fields of a class, each with the comment behind it or above it.

The code documents fields so, and not by strings below them. They become a list below the class's own words; names and
types are in its signature.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

COMMENT = re.compile(r"(?<=\S)  # (?!noqa|type:)(.+)$")


class FieldComments(griffe.Extension):
    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        fields = {name: comment(one) for name, one in cls.members.items() if isinstance(one, griffe.Attribute)}
        said = [f"- `{name}`: {text}" for name, text in fields.items() if text and not name.startswith("_")]
        if said:
            words = cls.docstring.value if cls.docstring else ""
            cls.docstring = griffe.Docstring("\n\n".join([words, "\n".join(said)]), parent=cls, lineno=cls.lineno)


def comment(field: griffe.Attribute) -> str:
    """Behind the field, or in the lines above it."""
    if field.docstring or field.lineno is None or field.endlineno is None or "property" in field.labels:
        return ""
    lines, at = field.lines_collection[field.filepath], field.lineno - 1
    if behind := COMMENT.search(lines[field.endlineno - 1]):
        return behind[1]
    said: list[str] = []
    while at and lines[at - 1].lstrip().startswith("# "):
        at -= 1
        said.insert(0, lines[at].strip().removeprefix("# "))
    return " ".join(said)
