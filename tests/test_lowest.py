"""What `make test-lowest` installs is what pyproject.toml allows."""

from __future__ import annotations

import tomllib

import pytest

from tests.lowest import LEFT_OUT, PYPROJECT, TESTS, TOOLS, lowest, pinned

PROJECT = tomllib.loads(PYPROJECT.read_text())["project"]


def test_every_bound_is_tried_or_left_out_for_a_reason() -> None:
    lines = lowest(PROJECT)
    of_extras = [
        line for name, extra in PROJECT["optional-dependencies"].items() if name not in LEFT_OUT for line in extra
    ]
    names = {line.split(">=")[0] for line in PROJECT["dependencies"] + of_extras} - set(TOOLS)
    assert {line.replace(">=", "==").split("==")[0] for line in lines} == names
    assert [line for line in lines if "==" not in line] == [PROJECT["dependencies"][0]]  # PyTorch
    assert LEFT_OUT.keys() <= PROJECT["optional-dependencies"].keys()


def test_bounds_become_versions() -> None:
    assert pinned("numpy>=1.26") == "numpy==1.26"
    assert pinned("mkdocs-material>=9.5,<10") == "mkdocs-material==9.5"
    assert pinned("torch>=2.11,<2.14") == "torch>=2.11,<2.14"
    for unknown in ("numpy", "numpy<3", "mkdocstrings[python]>=1"):
        with pytest.raises(SystemExit, match="oldest version"):
            pinned(unknown)


def test_the_tests_are_there() -> None:
    assert [path for path in TESTS if not (PYPROJECT.parent / path).exists()] == []
