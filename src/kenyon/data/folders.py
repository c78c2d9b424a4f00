"""Where datasets are looked for, and where downloads go. Imports nothing heavy: the command line shows it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kenyon.errors import DataError
from kenyon.files import is_folder, is_there

VARIABLE = "KENYON_DATA"


def data_folders(explicit: Path | None = None) -> list[Path]:
    """The folders to search, first one first: `--data` alone, or KENYON_DATA's and then the cache.

    Folders other than `--data` may not exist: they are named when nothing was found.
    """
    if explicit is None:
        return [*_from_environment(), _cache_folder()]
    folder = explicit.expanduser()
    if not is_there(folder):
        raise DataError(
            f"The data folder {folder} does not exist, or this user may not look into it. Check the path given to "
            "--data."
        )
    if not is_folder(folder):
        raise DataError(f"--data {folder} is a file. Give the folder that holds it instead.")
    return [folder]


def download_folder(explicit: Path | None = None) -> Path:
    """Where downloads go: `--data`, else the first folder of KENYON_DATA, else the cache. It may be new."""
    if explicit is not None:
        return explicit.expanduser()
    return [*_from_environment(), _cache_folder()][0]


def decoded_folder() -> Path:
    """Where images are kept that have been decoded once. It may be new."""
    return _cache_folder() / "decoded"


def _from_environment() -> list[Path]:
    listed = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [Path(entry).expanduser() for entry in listed if entry.strip()]


def _cache_folder() -> Path:
    try:
        home = Path.home()
    except RuntimeError:
        raise DataError(f"There is no home folder to keep data in. Use --data or set {VARIABLE}.") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "kenyon"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "kenyon"
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG standard asks for relative paths to be ignored.
    return (shared if shared.is_absolute() else home / ".cache") / "kenyon"
