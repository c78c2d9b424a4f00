"""`kenyon data` with datasets of several archives, and how decoding shows itself."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from kenyon.cli.progress import Decoding
from kenyon.datasets import DATASETS, Archive, Dataset
from tests.cli.conftest import Said


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    thread.join()
    served.server_close()


def test_all_archives_of_a_dataset_are_fetched_and_found(
    kenyon: Callable[..., Said], server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = server
    archives = []
    for name in ("one", "two"):
        content = b"PK" + name.encode() * 1000
        (folder / f"{name}.zip").write_bytes(content)
        checksum = f"md5:{hashlib.md5(content).hexdigest()}"
        archives.append(Archive(f"https://elsewhere.invalid/{name}.zip", None, checksum, name, ("a",)))
    monkeypatch.setitem(DATASETS, "pair", Dataset("pair", tuple(archives)))
    target = tmp_path / "data"
    said = kenyon("data", "get", "pair", "--data", target, "--url", f"{address}/")
    assert said.code == 0 and "pair is complete" in said.err
    assert sorted(path.name for path in target.iterdir()) == ["one.zip", "two.zip"]
    listed = json.loads(kenyon("data", "list", "--data", target, "--json").out)["datasets"]
    assert listed["pair"] == str(target) and listed["omniglot"] is None
    (target / "two.zip").unlink()
    assert json.loads(kenyon("data", "list", "--data", target, "--json").out)["datasets"]["pair"] is None


def test_every_dataset_is_listed(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("data", "list", "--data", tmp_path)
    for name in ("cifar-10", "cifar-100", "omniglot", "cub-200", "tiny-imagenet", "core50"):
        assert f"kenyon data get {name}" in said.out


@pytest.mark.parametrize("terminal", [True, False])
def test_decoding_shows_itself(terminal: bool) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=150)
    with Progress(console=console) as bars:
        decoding = Decoding(console, bars)
        for done in (0, 50, 100):
            decoding.progress("decoding birds", done, 100)
        decoding.notice("the cache [1] was set aside")
    assert "decoding birds" in written.getvalue() and "the cache [1] was set aside" in written.getvalue()
