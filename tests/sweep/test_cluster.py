"""What answers at the address of a cluster, asked before Ray is; and who may reach a Ray that Kenyon starts."""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from kenyon.errors import ConfigError
from kenyon.sweep import ray_cluster as cluster
from kenyon.sweep.ray_cluster import Cluster, private_ray, speaks_grpc
from tests.sockets import Port, listening, tree

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


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


def test_only_this_user_can_read_the_token_of_a_local_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "_check_version", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "somebody else's")
    tokens = []
    for _ in range(2):
        with private_ray() as folder:
            token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
            assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ
            assert token.stat().st_mode & 0o777 == 0o600
            assert token.parent == folder.parent and token.parent.stat().st_mode & 0o777 == 0o700
            tokens.append(token.read_text())
        assert os.environ["RAY_AUTH_MODE"] == "disabled" and os.environ["RAY_AUTH_TOKEN"] == "somebody else's"
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert len(set(tokens)) == 2 and all(len(token) == 64 for token in tokens)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("address", ["local", "auto", "127.0.0.1:6379"])
@pytest.mark.parametrize("version", ["2.40.0", "2.51.2", "1.13", "2.51.0rc1"])
def test_a_ray_that_cannot_authenticate_is_refused_before_it_is_imported(
    address: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it is an ImportError
    with pytest.raises(ConfigError, match=rf"Ray {version} cannot authenticate.*2\.52 or newer: pip install"):
        Cluster(address, "cpu")


def test_the_oldest_ray_is_the_one_in_the_extra() -> None:
    (bound,) = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["ray"]
    assert bound == f"ray>={'.'.join(map(str, cluster.OLDEST))}"


def test_a_ray_that_was_imported_before_is_refused_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.60.0")
    for name in ("ray", "ray.exceptions"):
        monkeypatch.setitem(
            sys.modules, name, ModuleType(name)
        )  # has read its settings, and has neither init nor shutdown
    for name in ("ray._private", "ray._raylet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"imported before.*loopback.*token"):
        Cluster("local", "cpu")


CLIENT = """
import ray

try:
    ray.init(address="{address}", log_to_driver=False, logging_level="error")
except (ConnectionError, RuntimeError, ray.exceptions.RayError):
    print("refused")
else:
    print(ray.get(ray.remote(num_cpus=0)(lambda: "ran").remote(), timeout=60))
"""
EXPERIMENT = """benchmark = "digits"
method = "finetune"
seeds = 2

[settings]
epochs = 100000
width = 2
batch = 64
"""


def ports_once(sweep: subprocess.Popen[bytes], workers: int) -> set[Port]:
    """Everything it has listened on until so many of its workers train, and a second longer."""
    seen: set[Port] = set()
    trains: float | None = None
    while trains is None or time.monotonic() < trains + 1:
        assert sweep.poll() is None, "it ended"
        now = listening(tree(sweep.pid))
        seen |= now
        if trains is None and sum("ray::task" in port.program for port in now) == workers:
            trains = time.monotonic()
        time.sleep(0.05)
    return seen


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None or sys.platform != "linux", reason="needs Ray, and /proc to look at it")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_local_ray_listens_on_loopback_only_and_asks_for_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment := tmp_path / "experiment.toml").write_text(EXPERIMENT)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        words = [sys.executable, "-m", "kenyon", "sweep", str(experiment), "--out", str(tmp_path / "out"), "--no-fwt"]
        words += ["--tasks", "1", "--device", "cpu", "--ray", "local", "--workers", "2"]
        sweep = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ports = ports_once(sweep, workers=2)
            assert {port for port in ports if not port.loopback} == set()
            (head,) = (port for port in ports if "gcs_server" in port.program)
            (token,) = Path(short).glob("kenyon-ray-*/token")
            assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
            (tmp_path / "wrong").write_text("0" * 64)
            asking = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
            for set_up, end in (
                ({"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}, "refused"),
                (asking | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")}, "refused"),
                (asking | {"RAY_AUTH_TOKEN_PATH": str(token)}, "ran"),
            ):
                client = [sys.executable, "-c", CLIENT.format(address=f"127.0.0.1:{head.number}")]
                few = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "1"}
                said = subprocess.run(
                    client, env=os.environ | few | set_up, capture_output=True, text=True, check=True
                )
                assert said.stdout.split() == [end]
            assert unauthorized(ports)
        finally:
            sweep.send_signal(signal.SIGINT)
            sweep.send_signal(signal.SIGINT)
            sweep.wait()
        assert not [*Path(short).glob("kenyon-ray-*")]


def unauthorized(ports: set[Port]) -> bool:
    """Whether Ray's agent for environments, the one part that speaks HTTP, turns away who has no token."""
    for port in ports:
        connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=5)
        with suppress(http.client.HTTPException, OSError):
            connection.request("POST", "/get_or_create_runtime_env", b"")
            if connection.getresponse().status == http.client.UNAUTHORIZED:
                return True
        connection.close()
    return False
