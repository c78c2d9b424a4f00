"""Fleets as tasks of a Ray cluster. Ray places them, and starts them again where a worker or a node has died.

A Ray that Kenyon starts itself (`local`) listens on the loopback interface only and asks every client for a token
that only this user can read. A cluster that somebody else has started is joined with what the user has set up for it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kenyon.errors import ConfigError, optional_import
from kenyon.sweep.jobs import FAILED, Order, Outcome
from kenyon.sweep.worker import work

OLDEST = (2, 52)  # the first Ray with tokens; older ones let everybody run code who reaches their ports
LOOPBACK = "127.0.0.1"
RETRIES = 3
AHEAD = 2  # times as many tasks as there is room for are sent: Ray has a next one, and the queue can still change
ANSWER = 5.0  # seconds to wait for an address
QUIET = {"log_to_driver": False, "logging_level": "error"}
FRAME, SETTINGS = 9, 4  # bytes of the head of a frame of HTTP/2, and the kind of frame that comes first


class Cluster:
    def __init__(self, address: str, device: str, workers: int | None = None) -> None:
        """`address`: host:port, ray://host:port, auto, or local for a Ray of this machine alone."""
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"Workers of a cluster train on auto, cpu or cuda, not on '{device}'.")
        with contextlib.ExitStack() as starting:
            if address == "local":
                folder = starting.enter_context(private_ray())
                self.ray = _ray()
                _check_private()
                starting.callback(self.ray.shutdown)
                local = {"num_cpus": workers, "include_dashboard": False, "_temp_dir": str(folder)}
                self.ray.init(address="local", **local, **QUIET)
            else:
                self.ray = _ray()
                self._join(address, workers)
                starting.callback(self.ray.shutdown)
            self._closing = starting.pop_all()
        resources = self.ray.cluster_resources()
        self.device = ("cuda" if resources.get("GPU") else "cpu") if device == "auto" else device
        self.kind = "GPU" if self.device == "cuda" else "CPU"
        if not resources.get(self.kind):
            self.close()
            raise ConfigError(
                f"The Ray cluster at {address} has no {self.kind}. Leave out --device, or name another."
            )
        needs = {"num_gpus": 1} if self.kind == "GPU" else {"num_cpus": 1}
        self.remote = self.ray.remote(max_retries=RETRIES, **needs)(task)
        self.running: dict[Any, Order] = {}

    def _join(self, address: str, workers: int | None) -> None:
        if workers is not None:
            raise ConfigError("--workers is the cluster's own with --ray ADDRESS. Leave it out, or use --ray local.")
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if address != "auto" and not (colon and host and port.isdecimal()):
            raise ConfigError(
                f"'{address}' is no address of a Ray cluster. Use host:port, ray://host:port, auto or local."
            )
        if address != "auto":
            try:
                known = speaks_grpc(host, int(port))
            except (OSError, OverflowError) as error:
                raise _no_answer(address, error) from None
            if not known:
                raise ConfigError(
                    f"What answers at {address} is no Ray cluster. Its port is 6379 unless it was started with "
                    "another one, and 10001 for ray://; `ray status` on the head says which."
                )
        try:
            self.ray.init(address=address, **QUIET)
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            if address == "auto":
                raise _no_answer(address, error) from None
            raise ConfigError(
                f"Something answers at {address}, but Ray cannot join it ({error}). Both must have one version of "
                "Ray; where the cluster asks for a token, it must be set here too, as for `ray status`; a machine "
                "that is not part of the cluster needs ray://host:port."
            ) from None

    @property
    def slots(self) -> int:
        """As many as the cluster has now; it may grow."""
        return max(1, int(self.ray.cluster_resources().get(self.kind, 1)))

    @property
    def busy(self) -> int:
        return len(self.running)

    @property
    def free(self) -> bool:
        return self.busy < AHEAD * self.slots

    def start(self, order: Order) -> None:
        self.running[self.remote.remote(replace(order, device=self.device))] = order

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        if not self.running:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [(self.running.pop(one), self._outcome(one)) for one in ready]

    def _outcome(self, one: Any) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(one)
            return outcome
        except self.ray.exceptions.RayError as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Outcome(FAILED, f"Ray gave it up after {RETRIES + 1} attempts: {first}")

    def stop(self) -> None:
        """As an interrupt in every worker, which saves its last complete epoch."""
        for one in self.running:
            self.ray.cancel(one)
        self.ray.wait(list(self.running), num_returns=len(self.running), timeout=30.0)
        self.running = {}

    def close(self) -> None:
        self._closing.close()


def speaks_grpc(host: str, port: int) -> bool:
    """True if a server there answers in HTTP/2, as Ray does. Ray itself would try for ten minutes. Raises OSError if
    nothing answers.
    """
    with socket.create_connection((host, port), ANSWER) as talk:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return True  # which only Ray can ask
        talk.settimeout(ANSWER)
        try:
            talk.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
            frame = b""
            while len(frame) < FRAME and (more := talk.recv(FRAME - len(frame))):
                frame += more
        except OSError:
            return False
    return len(frame) == FRAME and frame[3] == SETTINGS


def _no_answer(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"No Ray cluster answers at {address} ({error}). Start one with `ray start --head`, or use --ray local."
    )


def task(order: Order) -> Outcome:
    """Ray stops a task by an interrupt, which a process started in the background would not hear."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return work(order)


@contextlib.contextmanager
def private_ray() -> Iterator[Path]:
    """While this lasts, a Ray that is imported and started here can be reached by this user's processes alone.

    Ray reads these variables when it is imported, and its workers inherit them. Gives a folder for Ray's files that
    only this user can reach: its own default, /tmp/ray, can be written by everybody.
    """
    _check_version()
    parent = os.environ.get("RAY_TMPDIR") or ("/tmp" if os.name == "posix" else None)  # names of sockets are short
    with tempfile.TemporaryDirectory(prefix="kenyon-ray-", dir=parent, ignore_cleanup_errors=True) as folder:
        token = Path(folder) / "token"
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        wanted = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: a node's address is that of loopback
            "RAY_USAGE_STATS_ENABLED": "0",  # statistics that Ray would send to its makers
        }
        with _environment(wanted, without=("RAY_AUTH_TOKEN",)):  # which would come before the file
            yield Path(folder) / "ray"  # to which Ray gives rights for everybody


@contextlib.contextmanager
def _environment(wanted: dict[str, str], without: tuple[str, ...]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (*wanted, *without)}
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_private() -> None:
    """Raise ConfigError unless Ray has read what `private_ray` sets. Ray has no public name for it."""
    try:
        from ray._private.services import get_node_ip_address
        from ray._raylet import AuthenticationMode, get_authentication_mode

        private = get_authentication_mode() == AuthenticationMode.TOKEN and get_node_ip_address() == LOOPBACK
    except (ImportError, AttributeError):
        private = False
    if not private:
        raise ConfigError(
            "Ray was imported before --ray local could ask it to listen on the loopback interface only and to "
            "require a token. Use `kenyon sweep --ray local`, or make the Cluster before `import ray`."
        )


def _check_version() -> None:
    """Before Ray is imported, and so before it can do anything."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return  # `_ray` says what is missing
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"Ray {version} cannot authenticate who gives it work: whoever reaches its ports runs code as you. "
            f"Kenyon needs Ray {oldest} or newer: pip install 'kenyon[ray]'."
        )


def _ray() -> Any:
    _check_version()
    with optional_import("--ray", "ray", "ray"):
        import ray
        import ray.exceptions
    return ray
