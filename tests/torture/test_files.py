"""Names and files from elsewhere, in numbers: what `make test` tries of them, and many more names."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from benchmarks import soundness
from kenyon.cli.consoles import PlainConsole
from tests.cli.test_terminal import HOSTILE, check
from tests.datasets import test_bombs, test_images


@pytest.mark.torture
def test_names_and_files(tmp_path: Path, record: dict[str, Any]) -> None:
    draws = random.Random(0)
    for _ in range(names := 20_000):
        pieces = [draws.choice(HOSTILE), "".join(chr(draws.randrange(0xD800)) for _ in range(draws.randrange(12)))]
        draws.shuffle(pieces)
        written = io.StringIO()
        console = PlainConsole(file=written, force_terminal=True, width=80)
        table = Table(pieces[0], title=pieces[1])
        table.add_row(Text(pieces[1], style="red"))
        console.print(table, "".join(pieces), style="bold", soft_wrap=True)
        check(written.getvalue())
    test_bombs.test_refused_before_memory_is_spent(tmp_path)
    for what in test_images.CONVERTED:
        test_images.test_converted(what)
    for number, what in enumerate(test_images.REFUSED):
        (tmp_path / f"{number}").mkdir()
        test_images.test_refused(what, tmp_path / f"{number}")
    counts = {
        "names": names,
        "bombs_refused": len(test_bombs.BOMBS),
        "odd_images_converted": len(test_images.CONVERTED),
        "odd_images_refused": len(test_images.REFUSED),
        "foreign_formats_refused": len(test_images.FOREIGN),
    }
    record["files"] = {"what": "names, bombs and odd images", **counts}
    if os.environ.get("KENYON_TORTURE"):
        soundness.record("files", "names in a terminal, files that unpack to too much, odd images", **counts)
