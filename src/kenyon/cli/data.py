"""`kenyon data`: which datasets are there, and fetching them."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from kenyon.data import DATASETS, data_folders, download, download_folder, locate
from kenyon.errors import unknown


def get_command(name: str, data: Path | None, url: str | None) -> None:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    dataset, folder = DATASETS[name], download_folder(data)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        task = bar.add_task(dataset.archive, total=dataset.size)
        path = download(dataset, folder, url=url, progress=lambda done, total: bar.update(task, completed=done))
        bar.update(task, completed=dataset.size)
    console.print(f"{name} is complete: {path}", highlight=False, soft_wrap=True)


def list_command(data: Path | None, *, as_json: bool) -> None:
    folders = data_folders(data)
    found = {name: locate(dataset, folders) for name, dataset in DATASETS.items()}
    if as_json:
        body = {name: None if copy is None else str(copy.path) for name, copy in found.items()}
        print(json.dumps({"datasets": body, "folders": [str(folder) for folder in folders]}))
        return
    table = Table("dataset", "where", "download size")
    for name, copy in found.items():
        where = str(copy.path) if copy else f"not here: kenyon data get {name}"
        table.add_row(name, where, f"{DATASETS[name].size / 1e6:.0f} MB")
    table.add_row("digits", "comes with scikit-learn", "")
    console = Console()
    console.print(table)
    console.print("Looked in: " + ", ".join(map(str, folders)), highlight=False, soft_wrap=True)
