"""Recorded values of a case: a digest of the bits, rounded numbers, and how two records compare.

A case computes `Values`, a dictionary of named items. What an item is decides how it is compared on another machine:

- a plain array or list of floats: the rounded numbers within `RELATIVE` of their norm;
- `Percent`: accuracies, in points; a sample on the edge may fall on the other side, so within `POINTS`;
- `Exact`: names, counts and whatever else does not depend on rounding: equal everywhere;
- `Bits`: only compared bit by bit, where that is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LISTED = 12  # numbers up to which all are recorded; of more the norm and a weighted sum

Values = dict[str, Any]
Record = dict[str, Any]  # {"digest": str, "items": {name: [short digest, numbers or text]}}


@dataclass(frozen=True)
class Percent:
    value: Any


@dataclass(frozen=True)
class Exact:
    value: Any


@dataclass(frozen=True)
class Bits:
    value: Any


@dataclass(frozen=True)
class Tolerance:
    """What may differ between two machines."""

    relative: float  # of the norm of an item
    points: float  # of an accuracy in per cent


@dataclass(frozen=True)
class Difference:
    case: str
    item: str
    recorded: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.case}: {self.item}: recorded {short(self.recorded)}, found {short(self.found)}"


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def array(value: Any) -> np.ndarray[Any, Any]:
    """As NumPy array; bfloat16, which NumPy does not have, as the float32 of equal value."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    found = np.asarray(np.nan if value is None else value)
    if found.dtype == object:
        found = found.astype(float)  # numbers with None among them
    return found


def digest(value: Any) -> str:
    """SHA-256 of the value's type, shape and bytes."""
    if isinstance(value, (Percent, Exact, Bits)):
        value = value.value
    if isinstance(value, bytes):
        content = value
    else:
        try:
            found = array(value)
        except (TypeError, ValueError):
            found = None
        if found is None or found.dtype.kind not in "biuf":
            content = json.dumps(value, sort_keys=True).encode()
        else:
            if found.dtype.kind == "f":
                found = np.where(np.isnan(found), np.array(np.nan, found.dtype), found)  # one NaN for all
            content = f"{found.dtype.str}{found.shape}".encode() + np.ascontiguousarray(found).tobytes()
    return hashlib.sha256(content).hexdigest()


def rounded(value: Any) -> Any:
    """What stands in the record: numbers with six digits, or the exact value."""
    if isinstance(value, Exact):
        return value.value
    if isinstance(value, Bits):
        return None
    found = array(value.value if isinstance(value, Percent) else value).astype(np.float64).reshape(-1)
    if found.size > LISTED:
        finite = np.nan_to_num(found, nan=0.0, posinf=1e30, neginf=-1e30)
        wave = np.cos(np.arange(found.size) * 0.7)  # sees the order, which a norm does not
        found = np.array([np.linalg.norm(finite), finite @ wave])
    return [None if not np.isfinite(number) else float(f"{number:.6g}") for number in found]


def record(values: Values) -> Record:
    items = {name: [digest(value)[:8], rounded(value)] for name, value in sorted(values.items())}
    whole = hashlib.sha256("".join(f"{name}={digest(value)};" for name, value in sorted(values.items())).encode())
    return {"digest": whole.hexdigest()[:32], "items": items}


def differences(case: str, recorded: Record, values: Values, tolerance: Tolerance, *, bits: bool) -> list[Difference]:
    """Items that differ from the record. Items that the record does not have are welcome."""
    found = record(values)
    if bits and found["digest"] == recorded["digest"]:
        return []
    unequal = []
    for name, (code, numbers) in recorded["items"].items():
        if name not in values:
            unequal.append(Difference(case, name, numbers, "nothing"))
            continue
        here, now = found["items"][name]
        same = code == here if bits else near(values[name], numbers, now, tolerance)
        if not same:
            unequal.append(Difference(case, name, numbers, now))
    return unequal


def near(value: Any, recorded: Any, found: Any, tolerance: Tolerance) -> bool:
    if isinstance(value, Bits):
        return True
    if isinstance(value, Exact):
        return bool(json.loads(json.dumps(recorded)) == json.loads(json.dumps(found)))
    if len(recorded) != len(found):
        return False
    a, b = (np.array(numbers, dtype=float) for numbers in (recorded, found))
    if (np.isnan(a) != np.isnan(b)).any():
        return False
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    listed = array(value.value if isinstance(value, Percent) else value).size <= LISTED
    if isinstance(value, Percent):
        # Of many accuracies the norm is recorded: as far as it moves when each moves by so many points.
        many = 1 if listed else np.sqrt(array(value.value).size)
        return bool((np.abs(a - b) <= tolerance.points * many).all())
    size = max(np.linalg.norm(a) if listed else a[0], 1e-12)
    return bool((np.abs(a - b) <= tolerance.relative * size).all())


def flat(body: Any, skip: frozenset[str], prefix: str = "") -> Values:
    """The numbers and texts of a JSON value by their place in it; lists of numbers stay together."""
    if isinstance(body, Mapping):
        inner = [flat(value, skip, f"{prefix}{name}/") for name, value in body.items() if name not in skip]
        return {name: value for one in inner for name, value in one.items()}
    name = prefix.rstrip("/")
    if isinstance(body, list):
        try:
            return {name: array(body).astype(float)}
        except (TypeError, ValueError):
            if any(isinstance(one, (dict, list)) for one in body):
                inner = [flat(value, skip, f"{prefix}{place}/") for place, value in enumerate(body)]
                return {name: value for one in inner for name, value in one.items()}
            return {name: Exact(body)}
    if isinstance(body, (str, bool)) or body is None:
        return {name: Exact(body)}
    return {name: array([body])}
