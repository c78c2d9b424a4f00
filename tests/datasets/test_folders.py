from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kenyon.datasets.archives import DATASETS, data_folders, download_folder, find, locate
from kenyon.errors import DataError


@pytest.fixture(autouse=True)
def a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    for variable in ("KENYON_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)


def test_an_explicit_folder_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KENYON_DATA", "/elsewhere")
    assert data_folders(tmp_path) == [tmp_path]
    assert download_folder(tmp_path / "new") == tmp_path / "new"


def test_an_explicit_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist.*--data"):
        data_folders(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"):
        data_folders(tmp_path / "file")


def test_a_folder_that_cannot_be_looked_into_hides_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a name that no file system has."""
    (tmp_path / "omniglot-py").mkdir()
    for name in ("images_background", "images_evaluation"):
        (tmp_path / "omniglot-py" / f"{name}.zip").touch()
    monkeypatch.setenv("KENYON_DATA", f"/{'a' * 300}{os.pathsep}{tmp_path}")
    copy = locate(DATASETS["omniglot"], data_folders())
    assert copy is not None and copy.path == tmp_path / "omniglot-py"
    with pytest.raises(DataError, match="cifar-10 was not found"):
        find(DATASETS["cifar-10"], data_folders())
    with pytest.raises(DataError, match="does not exist, or this user may not look into it"):
        data_folders(Path("/" + "a" * 300))


def test_the_environment_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = data_folders(None)
    assert len(cache) == 1 and cache[0].name == "kenyon"
    assert download_folder(None) == cache[0]
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setenv("KENYON_DATA", f"{one}{os.pathsep}{os.pathsep}{two}")
    assert data_folders(None) == [one, two, *cache]
    assert download_folder(None) == one


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/kenyon"),
        ("linux", {"XDG_CACHE_HOME": "{tmp}/xdg"}, "xdg/kenyon"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/kenyon"),
        ("darwin", {}, "home/Library/Caches/kenyon"),
        ("win32", {"LOCALAPPDATA": "{tmp}/local"}, "local/kenyon"),
        ("win32", {}, "home/AppData/Local/kenyon"),
    ],
)
def test_each_platform_has_its_cache(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    assert download_folder(None) == tmp_path / expected


def test_listing_and_downloading_do_not_import_pytorch() -> None:
    code = "import sys, kenyon.datasets.download, kenyon.datasets.archives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
