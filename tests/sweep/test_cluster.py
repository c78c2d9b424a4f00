"""What answers at the address of a cluster, asked before Ray is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kenyon.sweep import cluster
from kenyon.sweep.cluster import speaks_grpc


@contextmanager
def answering(words: bytes | None) -> Iterator[int]:
    """A port where somebody listens, says this and stays; None says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            talk, _ = server.accept()
            with talk, suppress(ConnectionResetError):  # who has heard enough hangs up
                if words is not None:
                    talk.sendall(words)
                while talk.recv(100):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]), True),  # settings of an HTTP/2 server
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n", False),
        (b"short", False),
        (None, False),
    ],
)
def test_only_what_speaks_as_ray_does_is_asked_to_join(
    words: bytes | None, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER", 0.3)
    with answering(words) as port:
        assert speaks_grpc("127.0.0.1", port) is known


def test_nobody_there_is_an_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        speaks_grpc("127.0.0.1", port)
