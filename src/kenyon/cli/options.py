"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Machine-readable: the last line of output is one JSON object.")]
DataDir = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--data", help="Folder with the datasets; otherwise KENYON_DATA, then the cache folder."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option("--out", help="Results folder.")]
Results = Annotated[Path, typer.Argument(help="A results folder, or a result.json in it.")]
Fleet = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--fleet", help="Most runs to train together; otherwise 128, or as many as the device has room for."
    ),
]
