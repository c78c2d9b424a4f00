"""What processes listen on, as Linux tells it, for tests of who can reach them."""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LISTENS = "0A"  # a state of TCP, in /proc/net/tcp


@dataclass(frozen=True)
class Port:
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    number: int
    process: int
    program: str  # its command line

    @property
    def loopback(self) -> bool:
        mapped = getattr(self.address, "ipv4_mapped", None)
        return (mapped or self.address).is_loopback


def tree(root: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(folder.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def listening(processes: list[int]) -> set[Port]:
    """Ports of TCP on which any of these listens, and those of UDP that any has."""
    owners: dict[str, int] = {}
    for process in processes:
        with suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    kind, _, inode = str(link.readlink()).rstrip("]").partition(":[")
                    if kind == "socket":
                        owners[inode] = process
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                process, bound = owners.get(fields[9]), fields[1]
                if process is not None and (fields[3] == LISTENS or table.startswith("udp")):
                    address, _, number = bound.partition(":")
                    found.add(Port(_address(address), int(number, 16), process, _program(process)))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits in the machine's own order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))


def _program(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()
    return ""
