"""What a point of a grid is called: in tables, and as a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def point_name(point: Mapping[str, Any]) -> str:
    """`lambda_sp=1000,lambda_af=1e-08`: a point's own values, as `--set` takes them. Empty without a grid."""
    return ",".join(f"{name}={value_text(value)}" for name, value in point.items())


def point_label(method: str, point: Mapping[str, Any]) -> str:
    """`caf-ewc[lambda_sp=1000,lambda_af=1e-08]`, or the method's name alone without a grid."""
    return f"{method}[{point_name(point)}]" if point else method


def value_text(value: Any) -> str:
    """A value so that reading it gives the same one: 1000 and 1000.0 are one value and have one text."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))
