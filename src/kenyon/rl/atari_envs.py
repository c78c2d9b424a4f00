"""Vector environments of Atari games: ale-py's own, in this process or divided among several.

Making an environment takes 0.1 to 0.3 s, and Python makes one at a time, whatever its threads do. Many copies are
therefore made and stepped by several processes, a share each; observations and rewards are in shared memory. A copy's
play is a function of its seed and actions alone, so that nothing depends on the number of processes.

The copies may be divided into groups that are stepped alternately. Every process has its share of every group: while
the network computes the actions of one group, all cores step another.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError, optional_import
from kenyon.utils.files import cores

SKIP = 4  # frames per action
LIMIT = 108_000  # frames per episode: half an hour at 60 frames per second
IDLE = 30  # most frames before the first action

GREY: dict[str, Any] = {}  # ale-py's default: 84 x 84, 4 frames
COLOUR = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}  # the unprocessed screen
SHARE = 8  # copies per process, at least

RESET, STEP, CLOSE, DONE = b"r", b"s", b"c", b"d"


def atari_envs(
    game: str, rom: str, copies: int, sticky: float = 0.0, picture: Mapping[str, Any] = GREY, parts: int = 0
) -> Any:
    """Return a vector environment with raw scores, in which the step that ends an episode begins the next one.

    `parts`: the number of processes; 0 chooses it by cores and copies.
    """
    check_rom(game, rom)
    parts = parts or default_parts(copies)
    if parts < 2 or picture is not GREY or os.name != "posix":
        return local_envs(rom, copies, sticky, min(copies, cores()), picture)
    return shared_envs(rom, copies, sticky, parts)[0]


def default_parts(copies: int) -> int:
    """Return the number of processes to divide copies among; below 2, this process does better alone."""
    return min(cores(), copies // SHARE) if os.name == "posix" else 0


def check_rom(game: str, rom: str) -> None:
    """Raise an error if ale-py is not installed or cannot read the ROM."""
    with optional_import(f"The Atari game {game}", "atari", "ale_py", "gymnasium"):
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv  # noqa: F401
    try:
        roms.get_rom_path(rom)
    except OSError as error:
        raise ConfigError(
            f"The ROM of {game} cannot be used: {error}. The wheel of ale-py carries it: unset ALE_ROMS_DIR, or "
            "install again with pip install --force-reinstall ale-py."
        ) from None


def local_envs(rom: str, copies: int, sticky: float, threads: int, picture: Mapping[str, Any] = GREY) -> Any:
    """Return a vector environment in this process."""
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    return AtariVectorEnv(
        rom,
        copies,
        num_threads=threads,
        frameskip=SKIP,
        maxpool=True,
        noop_max=IDLE + 1,  # exclusive
        use_fire_reset=True,
        max_num_frames_per_episode=LIMIT,
        repeat_action_probability=sticky,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
        **picture,
    )


# The record of a copy in shared memory: seed and action go in, all else comes out.
COPY = np.dtype(
    [
        ("seeds", np.int64),
        ("actions", np.int64),
        ("rewards", np.float64),
        ("lives", np.int64),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("observations", np.uint8, (4, 84, 84)),
    ],
    align=True,
)


def shared_records(copies: int, file: int) -> npt.NDArray[np.void]:
    """Map a file that all processes share into memory, as records (N,)."""
    size = copies * COPY.itemsize
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return np.frombuffer(mmap.mmap(file, size), COPY)


def shared_envs(rom: str, copies: int, sticky: float, parts: int, turns: int = 1) -> list[SharedEnvs]:
    """Return copies in several processes, as groups that are stepped alternately, in their order. Closing one group
    closes all.
    """
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # in memory, if the system offers it
    groups = list(pairwise(copies * turn // turns for turn in range(turns + 1)))
    processes: list[subprocess.Popen[bytes]] = []
    links: list[list[Connection]] = [[] for _ in groups]
    with tempfile.TemporaryFile(dir=directory) as file:
        records = shared_records(copies, file.fileno())
        for part in range(parts):
            pipes = [Pipe() for _ in groups]  # (parent's end, child's end)
            shares = [[b + (e - b) * part // parts, b + (e - b) * (part + 1) // parts] for b, e in groups]
            ends = [child.fileno() for _, child in pipes]
            task = {"rom": rom, "copies": copies, "sticky": sticky, "file": file.fileno()}
            task |= {"groups": list(zip(ends, shares, strict=True))}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, json.dumps(task)],  # without the rest of the package
                    pass_fds=(file.fileno(), *ends),
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                )
            )
            for (parent, child), of_group in zip(pipes, links, strict=True):
                child.close()
                of_group.append(parent)
        return [
            SharedEnvs(processes, of_group, records[slice(*group)])
            for of_group, group in zip(links, groups, strict=True)
        ]


class SharedEnvs:
    """A group of copies in several processes, with the interface of ale-py's vector environment."""

    def __init__(
        self, processes: list[subprocess.Popen[bytes]], links: list[Connection], records: npt.NDArray[np.void]
    ) -> None:
        from gymnasium.spaces import Discrete

        self.processes, self.links, self.records = processes, links, records
        actions = [int(self._receive(number)) for number in range(len(links))]
        self.single_action_space = Discrete(actions[0])

    def reset(self, *, seed: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        self.records["seeds"] = seed
        self._command(RESET)
        return self.records["observations"].copy(), {"lives": self.records["lives"].copy()}

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        self.records["actions"] = actions
        self._command(STEP)
        results = ("observations", "rewards", "terminated", "truncated")
        return *(self.records[name].copy() for name in results), {"lives": self.records["lives"].copy()}

    def close(self) -> None:
        for link in self.links:
            with suppress(OSError):
                link.send_bytes(CLOSE)
            link.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.links = []
        self.processes.clear()  # of all groups

    def __del__(self) -> None:
        for process in getattr(self, "processes", []):  # of games that have not been closed
            process.kill()
            process.wait()

    def _command(self, command: bytes) -> None:
        """Send a command to all processes, and wait until all have carried it out."""
        for number, link in enumerate(self.links):
            try:
                link.send_bytes(command)
            except OSError:
                self._ended(number)
        for number in range(len(self.links)):
            self._receive(number)

    def _receive(self, number: int) -> bytes:
        try:
            return self.links[number].recv_bytes()
        except (EOFError, OSError):
            self._ended(number)
            raise

    def _ended(self, number: int) -> None:
        code = self.processes[number].wait() if self.processes else 0
        self.close()
        how = f"by signal {-code}, possibly because memory is short" if code < 0 else f"with code {code}"
        raise ConfigError(f"A process of Atari environments ended {how}. Run again: finished games are kept.")


def main(task: Mapping[str, Any]) -> None:
    """Run one process: make its share of the copies, then carry out commands until the parent closes the pipes."""
    import signal

    for stop in (signal.SIGINT, signal.SIGTERM):  # terminals and schedulers signal all processes; the parent decides
        signal.signal(stop, signal.SIG_IGN)
    records = shared_records(task["copies"], task["file"])
    groups: dict[Connection, tuple[Any, npt.NDArray[np.void]]] = {}
    for file, share in task["groups"]:
        part = records[slice(*share)]
        groups[Connection(file)] = local_envs(task["rom"], len(part), task["sticky"], 1), part
    for link, (envs, _) in groups.items():
        link.send_bytes(str(envs.single_action_space.n).encode())
    while True:
        ready = wait(groups)
        for link, (envs, part) in groups.items():
            if link not in ready:
                continue
            try:
                command = link.recv_bytes()
            except (EOFError, OSError):
                return  # the parent has ended
            if command == CLOSE:
                return
            _carry_out(command, envs, part)
            link.send_bytes(DONE)


def _carry_out(command: bytes, envs: Any, part: npt.NDArray[np.void]) -> None:
    if command == RESET:
        observations, info = envs.reset(seed=part["seeds"].copy())
    else:
        observations, rewards, terminated, truncated, info = envs.step(part["actions"].copy())
        part["rewards"], part["terminated"], part["truncated"] = rewards, terminated, truncated
    part["observations"], part["lives"] = observations, info["lives"]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
