"""`kenyon data`: which datasets are there, and fetching them."""

from __future__ import annotations

from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.datasets import DATASETS, data_folders, download, download_folder, locate
from kenyon.errors import DataError, unknown


def get_command(name: str, data: Path | None, url: str | None) -> None:
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


def list_command(data: Path | None, *, as_json: bool) -> None:
    folders = data_folders(data)
    found = {name: locate(dataset, folders) for name, dataset in DATASETS.items()}
    if as_json:
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
