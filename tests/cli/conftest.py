"""The program as a user calls it: in-process, through the same `main` that the program runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kenyon.cli import main


@dataclass
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def kenyon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["kenyon", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        told = capsys.readouterr()
        return Said(code, told.out, told.err)

    return call
