from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from kenyon.datasets.archives import Archive
from kenyon.datasets.download import download
from kenyon.errors import DataError

MAGIC = b"\x1f\x8b"  # what such an archive begins with
CONTENT = MAGIC + np.random.default_rng(0).bytes(599_998)


@dataclass
class Served:
    """The behavior of the loopback server, and its requests."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    shifted: bool = False  # answers a range with another one
    cut_after: int | None = None  # bytes sent before the connection breaks
    length: bool = True  # says how much it sends
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            if self.path != "/file.tar.gz":
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(state.content):
                self.send_error(416)
                return
            if start and state.shifted:
                start -= 1
            body = state.content[start:]
            self.send_response(206 if wanted and state.ranges else 200)
            if wanted and state.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            if state.length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut_after])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/file.tar.gz"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def dataset(served: Served) -> Archive:
    digest = hashlib.sha256(CONTENT).hexdigest()
    return Archive(served.url, len(CONTENT), f"sha256:{digest}", "made", ("member",))


def part(folder: Path) -> Path:
    return folder / "file.tar.gz.part"


def arrived(folder: Path) -> bool:
    return (folder / "file.tar.gz").read_bytes() == CONTENT and not part(folder).exists()


def test_a_fresh_download_and_a_second_one(tmp_path: Path, served: Served) -> None:
    seen: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "folder"
    path = download(dataset(served), folder, progress=lambda done, total: seen.append((done, total)))
    assert path == folder / "file.tar.gz" and arrived(folder)
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert download(dataset(served), folder) == path
    assert served.asked == [None]  # the second time there is no request


def test_a_partial_download_is_resumed(tmp_path: Path, served: Served) -> None:
    part(tmp_path).write_bytes(CONTENT[:1234])
    seen: list[int] = []
    download(dataset(served), tmp_path, progress=lambda done, total: seen.append(done))
    assert arrived(tmp_path) and served.asked == ["bytes=1234-"] and seen[0] == 1234


@pytest.mark.parametrize("how", ["ranges", "shifted"])
def test_a_server_that_answers_ranges_badly_starts_over(tmp_path: Path, served: Served, how: str) -> None:
    setattr(served, how, how == "shifted")
    part(tmp_path).write_bytes(CONTENT[:1234])
    download(dataset(served), tmp_path)
    assert arrived(tmp_path)


def test_a_part_that_is_too_long_or_full_but_wrong_starts_over(tmp_path: Path, served: Served) -> None:
    for wrong in (CONTENT + b"more", bytes(len(CONTENT))):
        part(tmp_path).write_bytes(wrong)
        (tmp_path / "file.tar.gz").unlink(missing_ok=True)
        download(dataset(served), tmp_path)
        assert arrived(tmp_path)
    assert served.asked == [None, None]


def test_a_full_part_needs_no_server(tmp_path: Path, served: Served) -> None:
    part(tmp_path).write_bytes(CONTENT)
    download(dataset(served), tmp_path)
    assert arrived(tmp_path) and served.asked == []


@pytest.mark.parametrize("known", [True, False])
def test_a_part_whose_beginning_is_damaged_starts_over(tmp_path: Path, served: Served, known: bool) -> None:
    """As a power failure leaves it. At once: who asked for the file need not ask again."""
    part(tmp_path).write_bytes(MAGIC + bytes(5000))
    download(dataset(served) if known else of_unknown_size(served), tmp_path)
    assert arrived(tmp_path) and served.asked == ["bytes=5002-", None]


def test_a_full_part_is_synced_before_it_is_the_archive(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed before that."""
    part(tmp_path).write_bytes(CONTENT)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    assert download(dataset(served), tmp_path).stat().st_ino in synced


def test_a_range_beyond_the_servers_file_asks_for_all_of_it(tmp_path: Path, served: Served) -> None:
    served.content = CONTENT[:1000]
    part(tmp_path).write_bytes(CONTENT[:1234])
    with pytest.raises(DataError, match="offers 1,000 bytes"):
        download(dataset(served), tmp_path)
    assert served.asked == ["bytes=1234-", None]
    assert part(tmp_path).read_bytes() == CONTENT[:1234]  # nothing of worth was lost


def test_a_damaged_archive_is_replaced(tmp_path: Path, served: Served) -> None:
    (tmp_path / "file.tar.gz").write_bytes(b"damaged")
    download(dataset(served), tmp_path)
    assert arrived(tmp_path)


def of_unknown_size(served: Served) -> Archive:
    return Archive(served.url, None, f"md5:{hashlib.md5(CONTENT).hexdigest()}", "made", ("member",))


def test_where_the_size_is_not_known_the_checksum_decides(tmp_path: Path, served: Served) -> None:
    seen: list[tuple[int, int]] = []
    archive = of_unknown_size(served)
    path = download(archive, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert arrived(tmp_path) and seen[-1] == (len(CONTENT), len(CONTENT))  # the server sends it
    assert download(archive, tmp_path) == path and served.asked == [None]
    path.rename(part(tmp_path))
    download(archive, tmp_path)
    assert arrived(tmp_path) and served.asked == [None]


def test_a_download_of_unknown_size_is_cut_resumed_and_checked(tmp_path: Path, served: Served) -> None:
    archive = of_unknown_size(served)
    served.cut_after = 300_000
    with pytest.raises(DataError, match="stopped after 300,000 of 600,000 bytes"):
        download(archive, tmp_path)
    served.cut_after = None
    download(archive, tmp_path)
    assert arrived(tmp_path) and served.asked == [None, "bytes=300000-"]
    (tmp_path / "file.tar.gz").unlink()
    part(tmp_path).write_bytes(bytes(len(CONTENT) + 5))  # longer than the server's: asked for all of it
    served.content = CONTENT[:-1]
    with pytest.raises(DataError, match="checksum is wrong"):
        download(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_tells_no_length_is_read_to_its_end(tmp_path: Path, served: Served) -> None:
    served.length = False
    download(of_unknown_size(served), tmp_path)
    assert arrived(tmp_path)


def test_a_wrong_checksum_removes_the_bad_file_only(tmp_path: Path, served: Served) -> None:
    served.content = MAGIC + bytes(len(CONTENT) - 2)
    (tmp_path / "other").write_text("kept")
    with pytest.raises(DataError, match=r"checksum is wrong.*removed"):
        download(dataset(served), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("known", [True, False])
def test_a_sign_in_page_costs_nothing_that_has_arrived(tmp_path: Path, served: Served, known: bool) -> None:
    served.content, served.ranges, served.length = b"<html>Welcome to our hotel</html>" * 40, False, False
    part(tmp_path).write_bytes(CONTENT[:1234])
    with pytest.raises(DataError, match=r"does not begin like file\.tar\.gz.*sign-in page"):
        download(dataset(served) if known else of_unknown_size(served), tmp_path)
    assert part(tmp_path).read_bytes() == CONTENT[:1234]
    part(tmp_path).unlink()
    with pytest.raises(DataError, match="sign-in page"):
        download(dataset(served), tmp_path)
    assert list(tmp_path.iterdir()) == []  # not an empty file either


def test_a_cut_that_nobody_told_of_keeps_what_came(tmp_path: Path, served: Served) -> None:
    served.length, served.cut_after = False, 300_000
    with pytest.raises(DataError, match=r"stopped after 300,000 bytes.*not the whole file.*again resumes"):
        download(of_unknown_size(served), tmp_path)
    served.cut_after = None
    download(of_unknown_size(served), tmp_path)
    assert arrived(tmp_path) and served.asked == [None, "bytes=300000-"]


@pytest.mark.skipif(os.name != "posix", reason="needs locks of files")
def test_of_two_downloads_of_one_file_one_gives_way(tmp_path: Path, served: Served) -> None:
    said: list[str] = []

    def meanwhile(done: int, total: int) -> None:
        if done and not said:
            with pytest.raises(DataError) as caught:
                download(dataset(served), tmp_path)
            said.append(str(caught.value))

    download(dataset(served), tmp_path, progress=meanwhile)
    assert arrived(tmp_path) and "Another process is downloading file.tar.gz" in said[0]
    assert served.asked == [None]


def test_a_missing_file_is_named(tmp_path: Path, served: Served) -> None:
    url = served.url.replace("file", "nothing")
    with pytest.raises(DataError, match=r"nothing\.tar\.gz cannot be downloaded: .*404.*again resumes"):
        download(dataset(served), tmp_path, url=url)


def test_no_server_is_an_error_with_its_reason(tmp_path: Path, served: Served) -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:1/.*refused.*again resumes"):
        download(dataset(served), tmp_path, url="http://127.0.0.1:1/file.tar.gz")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "nonsense", "http://", "http://a b/"])
def test_odd_addresses_are_refused(tmp_path: Path, served: Served, url: str) -> None:
    with pytest.raises(DataError, match=url):
        download(dataset(served), tmp_path, url=url)


def test_a_cut_connection_keeps_what_came_and_resumes(tmp_path: Path, served: Served) -> None:
    served.cut_after = 300_000
    with pytest.raises(DataError, match=r"stopped after 300,000 of 600,000 bytes.*again resumes"):
        download(dataset(served), tmp_path)
    assert part(tmp_path).read_bytes() == CONTENT[:300_000]
    served.cut_after = None
    download(dataset(served), tmp_path)
    assert arrived(tmp_path) and served.asked == [None, "bytes=300000-"]


def test_an_interrupt_keeps_what_came(tmp_path: Path, served: Served) -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(dataset(served), tmp_path, progress=interrupt)
    kept = part(tmp_path).read_bytes()
    assert kept and CONTENT.startswith(kept)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, served: Served) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be kept in .*file"):
        download(dataset(served), tmp_path / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path, served: Served) -> None:
    part(tmp_path).symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"No space left.*Make room"):
        download(dataset(served), tmp_path)
