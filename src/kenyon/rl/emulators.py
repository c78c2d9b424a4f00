"""ale-py's vector environment of the eight games, made in this process or shared out among several.

Making an emulator takes 0.1 to 0.3 s, and Python makes one after another whatever its threads do. Many copies are
therefore made by processes, a share each, and stepped there; what they show and give lies in memory that all see. A
copy's play follows from its seed and actions alone, so that nothing depends on how the copies are shared out.

The copies may be divided into groups that take turns. Every process has its share of every group: while the network
looks at one group, all cores step another.
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

SKIP = 4  # frames of an action
LIMIT = 108_000  # frames of an episode: half an hour at 60 frames a second
IDLE = 30  # frames at most before the first action

GREY: dict[str, Any] = {}  # ale-py's own choice: 84 x 84, 4 frames
COLOUR = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}  # the screen as it is
SHARE = 8  # copies that are worth a process

RESET, STEP, CLOSE, DONE = b"r", b"s", b"c", b"d"


def emulators(
    game: str, rom: str, copies: int, sticky: float = 0.0, picture: Mapping[str, Any] = GREY, parts: int = 0
) -> Any:
    """Scores are as they are, and the next episode begins in the step that ends one. `parts`: how many processes, 0
    for as many as there are cores to use and copies to share out.
    """
    check_rom(game, rom)
    parts = parts or usual_parts(copies)
    if parts < 2 or picture is not GREY or os.name != "posix":
        return vector(rom, copies, sticky, min(copies, cores()), picture)
    return shared(rom, copies, sticky, parts)[0]


def usual_parts(copies: int) -> int:
    """Among how many processes copies are shared out; below 2, none is worth it."""
    return min(cores(), copies // SHARE) if os.name == "posix" else 0


def check_rom(game: str, rom: str) -> None:
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


def vector(rom: str, copies: int, sticky: float, threads: int, picture: Mapping[str, Any] = GREY) -> Any:
    """In this process."""
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    return AtariVectorEnv(
        rom,
        copies,
        num_threads=threads,
        frameskip=SKIP,
        maxpool=True,
        noop_max=IDLE + 1,  # of which it takes less
        use_fire_reset=True,
        max_num_frames_per_episode=LIMIT,
        repeat_action_probability=sticky,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
        **picture,
    )


# What every copy is told, and what it shows and gives.
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


def board(copies: int, file: int) -> npt.NDArray[np.void]:
    """The memory of a file that all see, as records (N,)."""
    size = copies * COPY.itemsize
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return np.frombuffer(mmap.mmap(file, size), COPY)


def shared(rom: str, copies: int, sticky: float, parts: int, turns: int = 1) -> list[Shared]:
    """Copies in several processes, as groups that take turns, one behind another. They are closed together."""
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # memory, where there is a disk of it
    groups = list(pairwise(copies * turn // turns for turn in range(turns + 1)))
    processes: list[subprocess.Popen[bytes]] = []
    links: list[list[Connection]] = [[] for _ in groups]
    with tempfile.TemporaryFile(dir=fast) as file:
        whole = board(copies, file.fileno())
        for part in range(parts):
            pipes = [Pipe() for _ in groups]
            shares = [[b + (e - b) * part // parts, b + (e - b) * (part + 1) // parts] for b, e in groups]
            theirs = [there.fileno() for _, there in pipes]
            order = {"rom": rom, "copies": copies, "sticky": sticky, "file": file.fileno()}
            order |= {"groups": list(zip(theirs, shares, strict=True))}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, json.dumps(order)],  # without the rest of the package
                    pass_fds=(file.fileno(), *theirs),
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                )
            )
            for (here, there), mine in zip(pipes, links, strict=True):
                there.close()
                mine.append(here)
        return [Shared(processes, mine, whole[slice(*group)]) for mine, group in zip(links, groups, strict=True)]


class Shared:
    """A group of copies in several processes; looks like ale-py's vector environment."""

    def __init__(
        self, processes: list[subprocess.Popen[bytes]], links: list[Connection], board: npt.NDArray[np.void]
    ) -> None:
        from gymnasium.spaces import Discrete

        self.processes, self.links, self.board = processes, links, board
        actions = [int(self._hear(number)) for number in range(len(links))]
        self.single_action_space = Discrete(actions[0])

    def reset(self, *, seed: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        self.board["seeds"] = seed
        self._all(RESET)
        return self.board["observations"].copy(), {"lives": self.board["lives"].copy()}

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        self.board["actions"] = actions
        self._all(STEP)
        given = ("observations", "rewards", "terminated", "truncated")
        return *(self.board[name].copy() for name in given), {"lives": self.board["lives"].copy()}

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
        for process in getattr(self, "processes", []):  # of games that nobody closed
            process.kill()
            process.wait()

    def _all(self, order: bytes) -> None:
        for number, link in enumerate(self.links):
            try:
                link.send_bytes(order)
            except OSError:
                self._ended(number)
        for number in range(len(self.links)):
            self._hear(number)

    def _hear(self, number: int) -> bytes:
        try:
            return self.links[number].recv_bytes()
        except (EOFError, OSError):
            self._ended(number)
            raise

    def _ended(self, number: int) -> None:
        code = self.processes[number].wait() if self.processes else 0
        self.close()
        how = f"by signal {-code}, perhaps for want of memory" if code < 0 else f"with code {code}"
        raise ConfigError(f"A process of emulators ended {how}. Run again: finished games are kept.")


def main(order: Mapping[str, Any]) -> None:
    """One process: makes its share of the copies, then does what it is told."""
    import signal

    for stop in (signal.SIGINT, signal.SIGTERM):  # a terminal or scheduler tells all; who asked for the games decides
        signal.signal(stop, signal.SIG_IGN)
    whole = board(order["copies"], order["file"])
    groups: dict[Connection, tuple[Any, npt.NDArray[np.void]]] = {}
    for file, share in order["groups"]:
        mine = whole[slice(*share)]
        groups[Connection(file)] = vector(order["rom"], len(mine), order["sticky"], 1), mine
    for link, (games, _) in groups.items():
        link.send_bytes(str(games.single_action_space.n).encode())
    while True:
        ready = wait(groups)
        for link, (games, mine) in groups.items():
            if link not in ready:
                continue
            try:
                told = link.recv_bytes()
            except (EOFError, OSError):
                return  # nobody is there any more
            if told == CLOSE:
                return
            _obey(told, games, mine)
            link.send_bytes(DONE)


def _obey(told: bytes, games: Any, mine: npt.NDArray[np.void]) -> None:
    if told == RESET:
        observations, info = games.reset(seed=mine["seeds"].copy())
    else:
        observations, rewards, terminated, truncated, info = games.step(mine["actions"].copy())
        mine["rewards"], mine["terminated"], mine["truncated"] = rewards, terminated, truncated
    mine["observations"], mine["lives"] = observations, info["lives"]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
