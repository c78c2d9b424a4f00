"""Docstrings of the API reference as Markdown, with the fields of a class and their comments.

Comments after or above a field document it. They become a list below the class's docstring; names and types are in
its signature. Variants on lines of their own in a docstring, `published: ...`, become a list too.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

VARIANT = re.compile(r"^(\w+): +(\S.*(?:\n {5,}\S.*)*)", re.MULTILINE)
COMMENT = re.compile(r"(?<=\S)  # (?!noqa|type:)(.+)$")


class Comments(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and len(VARIANT.findall(obj.docstring.value)) > 1:
            obj.docstring.value = VARIANT.sub(_listed, obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        fields = {name: comment(one) for name, one in cls.members.items() if isinstance(one, griffe.Attribute)}
        said = [f"- `{name}`: {text}" for name, text in fields.items() if text and not name.startswith("_")]
        if said:
            words = cls.docstring.value if cls.docstring else ""
            cls.docstring = griffe.Docstring("\n\n".join([words, "\n".join(said)]), parent=cls, lineno=cls.lineno)


def _listed(variant: re.Match[str]) -> str:
    return f"\n- **{variant[1]}**: {' '.join(variant[2].split())}\n"


def comment(field: griffe.Attribute) -> str:
    """Return the comment after the field, or in the lines above it."""
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
