"""The cases by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.golden.values import Values
from tests.golden.workbench import Bench

Case = Callable[[Bench], Values]


@dataclass(frozen=True)
class Entry:
    run: Case
    quick: bool  # part of the test suite, not only of `python -m tests.golden.driver --check`
    cpu_only: bool = False


CASES: dict[str, Entry] = {}


def add(name: str, run: Case, *, quick: bool = False, cpu_only: bool = False) -> None:
    assert name not in CASES, name
    CASES[name] = Entry(run, quick, cpu_only)
