"""What `import kenyon` offers: every public name and part, of which nothing is imported before it is used."""

from __future__ import annotations

import sys
from subprocess import run

import pytest

import kenyon


def alone(code: str) -> str:
    """What a Python of its own prints, where nothing has been imported yet."""
    done = run([sys.executable, "-c", f"import sys, kenyon\n{code}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_names_are_listed_before_they_are_used() -> None:
    listed = alone("print(*dir(kenyon))").split()
    assert {*kenyon.__all__, *kenyon._PARTS, "__version__", "__doc__"} <= set(listed)
    assert listed == sorted(set(listed))


def test_parts_are_there_without_another_import() -> None:
    code = f"print(*(getattr(kenyon, name).__name__ for name in {kenyon._PARTS!r}))"
    assert alone(code).split() == [f"kenyon.{name}" for name in kenyon._PARTS]


def test_every_listed_name_is_there() -> None:
    for name in dir(kenyon):
        getattr(kenyon, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kenyon.nothing


def test_importing_and_listing_import_nothing_heavy() -> None:
    heavy = "print(*(name for name in ('torch', 'numpy', 'matplotlib') if name in sys.modules))"
    assert alone(f"dir(kenyon)\n{heavy}") == ""
