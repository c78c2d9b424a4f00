"""Commands talk to this machine only: nothing listens beyond the loopback interface, and only `data get` asks others.

Each command runs with every address that Python binds, connects or looks up written down, in its children too; and
Linux is asked what the processes listen on, which covers what is not Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kenyon.datasets.archives import DATASETS
from tests.sockets import Port, listening, tree

# Python imports `sitecustomize` at its start, in every child that inherits the path. Addresses of other machines are
# written down and refused.
WATCH = """
import ipaddress, json, os, socket, sys

LOG, HERE = os.environ["KENYON_TEST_ADDRESSES"], ("localhost", "", None)

def watch(event, args):
    if event in ("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"):
        if args[0].family == socket.AF_UNIX or args[1] is None:
            return
        host = args[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = event != "socket.bind" and host in HERE
    with open(LOG, "a") as file:
        file.write(json.dumps([event, host, here]) + "\\n")
    if not here:
        raise OSError(f"a test refuses {event} {host}")

sys.addaudithook(watch)
"""
COMMANDS = """
import sys
from kenyon.cli import main

def kenyon(*words):
    sys.argv = ["kenyon", *words]
    try:
        main()
    except SystemExit as leaving:
        print("exit code", words[0], leaving.code or 0)

if __name__ == "__main__":
    few = ["--epochs", "1", "--tasks", "2", "--device", "cpu"]
    kenyon("list", "benchmarks")
    kenyon("run", "digits", "-m", "ewc,caf-ewc", "--seeds", "1", "--out", "out", *few)
    kenyon("search", "digits", "-m", "ewc", "--set", "lambda_sp=1,10", "--out", "searched", *few)
    kenyon("sweep", "sweep.toml", "--workers", "2", "--tasks", "2", "--device", "cpu", "--out", "swept")
    kenyon("sweep", "--status", "--out", "swept")
    kenyon("show", "out")
    kenyon("analyse", "out", "--what", "change")
    kenyon("report", "out", "--out", "report.html")
    kenyon("run", "rl-mini", "-m", "ewc", "--seeds", "1", "--set", "steps=64", "--set", "copies=2", "--out", "games")
    kenyon("data", "list")
"""


class Addresses:
    """What processes did with addresses, while a program ran in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.ports = folder, folder / "addresses", set[Port]()
        (folder / "sitecustomize.py").write_text(WATCH)
        self.log.touch()

    def run(self, *words: str) -> str:
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env |= {"PYTHONPATH": os.pathsep.join(paths), "KENYON_TEST_ADDRESSES": str(self.log), "WANDB_MODE": "offline"}
        words = (sys.executable, *words)
        program = subprocess.Popen(words, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(program.pid, over))
        looking.start()
        said, _ = program.communicate()
        over.set()
        looking.join()
        return said.decode()

    def _look(self, process: int, over: threading.Event) -> None:
        while sys.platform == "linux" and not over.wait(0.2):
            self.ports |= listening(tree(process))

    @property
    def events(self) -> list[tuple[str, str, bool]]:
        return [(event, host, here) for event, host, here in map(json.loads, self.log.read_text().splitlines())]


@pytest.fixture
def addresses(tmp_path: Path) -> Addresses:
    return Addresses(tmp_path)


def test_no_command_listens_to_others_or_asks_them(addresses: Addresses, tmp_path: Path) -> None:
    settings = "[settings]\nepochs = 1\nwidth = 2\n"
    (tmp_path / "sweep.toml").write_text(f'benchmark = "digits"\nmethod = ["ewc", "finetune"]\nseeds = 1\n{settings}')
    (tmp_path / "commands.py").write_text(COMMANDS)
    said = addresses.run("commands.py")
    codes = [line.split()[2:] for line in said.splitlines() if line.startswith("exit code")]
    assert len(codes) == COMMANDS.count("    kenyon(") and all(code == "0" for _, code in codes), said
    assert [event for event in addresses.events if not event[2]] == []
    assert {port for port in addresses.ports if not port.loopback} == set()


def test_fetching_a_dataset_asks_its_server_and_nobody_else(addresses: Addresses, tmp_path: Path) -> None:
    said = addresses.run("-m", "kenyon", "data", "get", "cifar-100", "--data", str(tmp_path / "data"))
    server = urlsplit(DATASETS["cifar-100"].archives[0].url).hostname
    assert {host for _, host, _ in addresses.events} == {server}, said
    assert addresses.ports == set()


@pytest.mark.parametrize("log", ["tensorboard", "wandb"])
def test_logs_are_files(log: str, addresses: Addresses) -> None:
    pytest.importorskip(log)
    few = ["-m", "ewc", "--seeds", "1", "--epochs", "1", "--tasks", "2", "--no-fwt", "--device", "cpu"]
    addresses.run("-m", "kenyon", "run", "digits", *few, "--log", log, "--out", "out")
    assert [event for event in addresses.events if not event[2]] == []
    assert {port for port in addresses.ports if not port.loopback} == set()


def test_the_watch_notices(addresses: Addresses, tmp_path: Path) -> None:
    """Otherwise the tests above say nothing: also in a child that another child has spawned."""
    program = """
import multiprocessing, socket, time
def strange():
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)):
        time.sleep(1)
    child = multiprocessing.get_context("spawn").Process(target=strange)
    child.start()
    child.join()
"""
    (tmp_path / "program.py").write_text(program)
    addresses.run("program.py")
    assert [(event, host, here) for event, host, here in addresses.events if event == "socket.bind"] == [
        ("socket.bind", "127.0.0.1", True),
        ("socket.bind", "0.0.0.0", False),
    ]
    assert sys.platform != "linux" or [port.loopback for port in addresses.ports] == [True]
