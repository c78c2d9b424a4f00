"""The setting of MKL before the first product."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kenyon.utils.mkl import request_equal_bits


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", None, "AUTO"),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "COMPATIBLE", "COMPATIBLE"),
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", None, None),
        ("processor\t: 0\nCPU part\t: 0xd0c\n", None, None),  # no MKL there
        (None, None, None),
    ],
)
def test_equal_bits_are_asked_for_where_they_are_not_given(
    text: str | None, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    if before is not None:
        monkeypatch.setenv("MKL_CBWR", before)
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    request_equal_bits(tmp_path / "cpuinfo")
    assert os.environ.get("MKL_CBWR") == after
