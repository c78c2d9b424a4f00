"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def path(text: str | Path) -> Path:
    """The type of all options that are paths. (Python takes an empty one for the present folder.)"""
    if not str(text):
        raise typer.BadParameter("It is empty. Give a path; the present folder is '.'.")
    return Path(text)


Json = Annotated[bool, typer.Option("--json", help="Machine-readable: the last line of output is one JSON object.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data", parser=path, help="Folder with the datasets; otherwise KENYON_DATA, then the cache folder."
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option("--out", parser=path, help="Results folder.")]
Results = Annotated[Path, typer.Argument(parser=path, help="A results folder, or a result.json in it.")]
Fleet = Annotated[
    int | None,
    typer.Option(
        "--fleet", help="Most runs to train together; otherwise 128, or as many as the device has room for."
    ),
]
Tasks = Annotated[int | None, typer.Option("--tasks", help="Only the first so many tasks of each run.")]
Fwt = Annotated[
    bool,
    typer.Option(
        "--fwt/--no-fwt",
        help="Also learn every task from a random start, once per benchmark: forward transfer needs it.",
    ),
]
KeepEveryTask = Annotated[
    bool, typer.Option("--keep-every-task", help="Keep the weights after every task, not only the final ones.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="PyTorch's deterministic algorithms: a GPU's numbers repeat bit for bit, and training is slower. Those "
        "of a CPU always do.",
    ),
]
