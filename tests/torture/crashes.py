"""What a command did to the disk, call by call, and what a power failure after any of them may leave.

`faults.c` writes the record; `Disk` replays it. A power failure keeps what was synced. Of the rest this takes the
worst that file systems do: data that were not synced are gone (DATA) or zeros (ZEROS), and names that were made,
moved or removed since their folder was synced are as they were before (NAMES).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct("=IiqiII")  # as in faults.c
OPS = {
    "o": "open to write",
    "r": "open",
    "w": "write",
    "s": "fsync",
    "n": "rename",
    "l": "link",
    "m": "mkdir",
    "u": "unlink",
    "d": "rmdir",
    "t": "truncate",
    "c": "close",
}
DATA, ZEROS, NAMES = "data lost", "zeros", "names lost"
Tree = dict[str, bytes | None]  # files by path with their bytes; None: a folder


@dataclass(frozen=True)
class Call:
    op: str  # of OPS
    fd: int
    offset: int
    error: int  # 0: it was done
    path: str
    data: bytes  # of a write; else the other path


def read_record(path: Path) -> list[Call]:
    """The numbered calls, in their order. Those that close what was only read are there too, as "q"."""
    content, at, calls = path.read_bytes(), 0, []
    while at < len(content):
        op, fd, offset, error, first, second = HEAD.unpack_from(content, at)
        at += HEAD.size
        name, data = content[at : at + first], content[at + first : at + first + second]
        at += first + second
        calls.append(Call(chr(op), fd, offset, error, os.fsdecode(name), data))
    return calls


def tree_of(folder: Path) -> Tree:
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


def write_tree(tree: Tree, times: dict[str, int]) -> None:
    """`times`: of the last changes of some files, in nanoseconds. Some things are known by them."""
    for name, content in sorted(tree.items()):
        path = Path(name)
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if name in times:
                os.utime(path, ns=(times[name], times[name]))


@dataclass(eq=False)
class File:
    data: bytearray
    synced: bytes | None  # None: never
    dirty: bool = False  # written to since it was synced
    writers: int = 0  # handles that are open for writing


@dataclass
class Disk:
    """Files and folders below `root`, which begin as they are there, synced."""

    root: str
    names: dict[str, File | None] = field(default_factory=dict)  # None: a folder
    lasting: dict[str, File | None] = field(default_factory=dict)  # as of the last sync of the folder they are in
    handles: dict[int, str | File] = field(default_factory=dict)  # of folders: their path
    unsynced: list[str] = field(default_factory=list)  # what was renamed or linked to its name before it was synced

    @classmethod
    def of(cls, root: Path, tree: Tree) -> Disk:
        names: dict[str, File | None] = {
            name: None if data is None else File(bytearray(data), bytes(data)) for name, data in tree.items()
        }
        names[str(root)] = None
        return cls(str(root), names, dict(names))

    def do(self, call: Call) -> None:
        if call.error:
            return
        match call.op:
            case "o" | "r":
                self._open(call)
            case "w":
                file = self._file(call.fd)
                at = len(file.data) if call.offset < 0 else call.offset
                file.data.extend(bytes(max(0, at - len(file.data))))
                file.data[at : at + len(call.data)] = call.data
                file.dirty = True
            case "t":
                file = self._file(call.fd)
                file.data[:] = file.data[: call.offset].ljust(call.offset, b"\0")
                file.dirty = True
            case "s":
                self._sync(call.fd)
            case "n":
                target = os.fsdecode(call.data)
                moved = self.names.pop(call.path)
                assert moved is not None, "a folder was renamed, which this does not follow"
                self._arrives(moved, target)
            case "l":
                linked = self.names[call.path]
                assert linked is not None
                self._arrives(linked, os.fsdecode(call.data))
            case "m":
                self.names[call.path] = None
            case "u" | "d":
                del self.names[call.path]
            case "c" | "q":
                handle = self.handles.pop(call.fd)
                if call.op == "c" and isinstance(handle, File):
                    handle.writers -= 1

    def _open(self, call: Call) -> None:
        if call.path in self.names:
            node = self.names[call.path]
        else:
            node = self.names[call.path] = File(bytearray(), None)
        self.handles[call.fd] = call.path if node is None else node
        if call.op == "o" and node is not None:
            node.writers += 1
            if call.offset & os.O_TRUNC:
                node.dirty = node.dirty or bool(node.data)
                node.data.clear()

    def _file(self, fd: int) -> File:
        handle = self.handles[fd]
        assert isinstance(handle, File)
        return handle

    def _sync(self, fd: int) -> None:
        handle = self.handles[fd]
        if isinstance(handle, File):
            handle.synced, handle.dirty = bytes(handle.data), False
            return
        for name in [name for name in {*self.names, *self.lasting} if os.path.dirname(name) == handle]:  # noqa: PTH120
            if name in self.names:
                self.lasting[name] = self.names[name]
            else:
                del self.lasting[name]

    def _arrives(self, file: File, target: str) -> None:
        if file.dirty or file.synced is None:
            self.unsynced.append(target)
        self.names[target] = file

    def now(self) -> Tree:
        """As every process sees it: what a kill leaves."""
        return {name: None if f is None else bytes(f.data) for name, f in self.names.items() if name != self.root}

    def whole(self) -> Iterator[tuple[str, bytes]]:
        """The files that nobody is writing."""
        for name, file in self.names.items():
            if file is not None and not file.writers:
                yield name, bytes(file.data)

    def after_power_failure(self, how: str) -> Tree:
        names = {name: f for name, f in self.lasting.items() if self._reached(name)} if how == NAMES else self.names
        return {
            name: None if f is None else self._left(f, zeros=how == ZEROS)
            for name, f in names.items()
            if name != self.root
        }

    def _reached(self, name: str) -> bool:
        """Whether all folders above it are there as well."""
        while name != self.root:
            if name not in self.lasting:
                return False
            name = os.path.dirname(name)  # noqa: PTH120
        return True

    @staticmethod
    def _left(file: File, *, zeros: bool) -> bytes:
        if not file.dirty and file.synced is not None:
            return file.synced
        kept = file.synced or b""
        return kept[: len(file.data)].ljust(len(file.data), b"\0") if zeros else kept

    def not_lasting(self) -> list[str]:
        """What a power failure now may take: files and folders that were not synced, or whose names were not."""
        lost = [name for name, f in self.names.items() if f is not None and (f.dirty or f.synced is None)]
        lost += [
            name for name, f in self.names.items() if self.lasting.get(name, 0) is not f or not self._reached(name)
        ]
        return sorted({*lost} - {self.root})
