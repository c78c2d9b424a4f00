"""`kenyon data`: which datasets are there, and fetching them."""

from __future__ import annotations

from typing import Annotated

import typer

from kenyon.cli.options import DataDir, Json


def get(
    name: Annotated[str, typer.Argument(help="See `kenyon data list`.")],
    data: DataDir = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Another server for the same file."),
    ] = None,
) -> None:
    """Download a public dataset: resumes where it stopped, and checks what arrived."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from kenyon.cli.consoles import stderr
    from kenyon.datasets import DATASETS, download, download_folder
    from kenyon.errors import DataError, unknown

    if name not in DATASETS:
        if name == "digits":
            raise DataError(f"{name} comes with scikit-learn: there is nothing to get. `kenyon run {name}` has it.")
        raise unknown("dataset", name, DATASETS)
    archives, folder = DATASETS[name].archives, download_folder(data)
    console = stderr()
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        for archive in archives:
            task = bar.add_task(archive.file, total=archive.size)

            def show(done: int, total: int, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=total or None)

            # Another server of several archives is named by the folder that has them.
            address = url if url is None or len(archives) == 1 else f"{url.rstrip('/')}/{archive.file}"
            path = download(archive, folder, url=address, progress=show)
            bar.update(task, completed=path.stat().st_size, total=path.stat().st_size)
    where = path if len(archives) == 1 else folder
    console.print(f"{name} is complete: {where}", soft_wrap=True)


def list_data(data: DataDir = None, json: Json = False) -> None:
    """Say which datasets are there, and where."""
    from rich.table import Table

    from kenyon.cli.consoles import stdout, tell_json
    from kenyon.datasets import DATASETS, data_folders, locate

    folders = data_folders(data)
    found = {name: locate(dataset, folders) for name, dataset in DATASETS.items()}
    if json:
        body = {name: None if copy is None else str(copy.path) for name, copy in found.items()}
        tell_json({"datasets": body, "folders": [str(folder) for folder in folders]})
        return
    table = Table("dataset", "where", "download size")
    for name, copy in found.items():
        where = str(copy.path) if copy else f"not here: kenyon data get {name}"
        size = DATASETS[name].size
        table.add_row(name, where, "" if size is None else f"{size / 1e6:.0f} MB")
    table.add_row("digits", "comes with scikit-learn", "")
    console = stdout()
    console.print(table)
    console.print("Looked in: " + ", ".join(map(str, folders)), soft_wrap=True)
