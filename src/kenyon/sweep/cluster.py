"""Fleets as tasks of a Ray cluster. Ray places them, and starts them again where a worker or a node has died."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from typing import Any

from kenyon.errors import ConfigError, optional_import
from kenyon.sweep.orders import FAILED, Order, Outcome
from kenyon.sweep.working import work

RETRIES = 3
AHEAD = 2  # times as many tasks as there is room for are sent: Ray has a next one, and the queue can still change
ANSWER = 5.0  # seconds to wait for an address
FRAME, SETTINGS = 9, 4  # bytes of the head of a frame of HTTP/2, and the kind of frame that comes first


class Cluster:
    def __init__(self, address: str, device: str, workers: int | None = None) -> None:
        """`address`: host:port, ray://host:port, auto, or local for a Ray of this machine alone."""
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"Workers of a cluster train on auto, cpu or cuda, not on '{device}'.")
        self.ray = _ray()
        self._connect(address, workers)
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

    def _connect(self, address: str, workers: int | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
        if address == "local":
            self.ray.init(address="local", num_cpus=workers, **options)
            return
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
        del options["include_dashboard"]  # is for who starts one
        try:
            self.ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
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
        self.ray.shutdown()


def speaks_grpc(host: str, port: int) -> bool:
    """Whether the first words there are those of HTTP/2, as Ray's are. Ray itself would try for ten minutes. An
    OSError: nobody is there.
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


def _ray() -> Any:
    with optional_import("--ray", "ray", "ray"):
        import ray
        import ray.exceptions
    return ray
