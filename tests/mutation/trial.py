"""Tests run in a process that is forked from one that has imported the libraries, but nothing of Kenyon."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.mutation.targets import ROOT

LIBRARIES = (
    *("torch", "torch.nn.functional", "numpy", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "PIL.Image"),
    *("safetensors.torch", "typer", "typer.testing", "rich.progress", "hypothesis", "hypothesis.strategies"),
)
PATIENCE = 8  # wall time for a second of the processor
ROOM = 8 << 30  # bytes that a trial may take beyond what the libraries have: no mutant may take the machine down


def warm_up() -> None:
    """Import what is the same for all mutants."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    kenyon = [name for name in sys.modules if name == "kenyon" or name.startswith("kenyon.")]
    if kenyon:
        raise SystemExit(f"{kenyon[0]} is imported before it is mutated.")


class Workspace:
    """A copy of the sources, in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.src = folder, folder / "src"
        shutil.rmtree(self.src, ignore_errors=True)
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        os.environ["PYTHONPATH"] = f"{self.src}{os.pathsep}{ROOT}"  # processes that tests start see the mutant too
        sys.path.insert(0, str(self.src))

    def put(self, file: str, source: bytes) -> None:
        (self.folder / file).write_bytes(source)

    def restore(self, file: str) -> None:
        shutil.copyfile(ROOT / file, self.folder / file)


@dataclass
class Outcome:
    """What became of a trial."""

    status: str  # passed, failed, broken (nothing could be imported or collected), timeout, crashed
    by: str = ""  # the first test that failed
    seconds: float = 0.0
    ran: int = 0
    tests: dict[str, float] = field(default_factory=dict)  # seconds
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # test -> file -> lines, where traced
    failed: list[str] = field(default_factory=list)
    output: str = ""


def run(
    workspace: Workspace, files: Sequence[str], chosen: set[str] | None, limit: float, traced: Sequence[str] = ()
) -> Outcome:
    """The tests of some files, or the chosen ones, in this order; up to the first that fails unless lines are traced.

    `limit`: seconds of the processor. One that waits is stopped after many times as long: the machine may be busy.
    """
    report, log = workspace.folder / "report.json", workspace.folder / "log.txt"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time() + limit), -1))
            _child(workspace, files, chosen, traced, report, log)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # `_child` itself has failed
    status, done = None, 0
    while status is None and time.monotonic() - began < PATIENCE * limit:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.01)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # and whatever its tests have left behind
    if status is None:
        os.waitpid(child, 0)
    elif status == -signal.SIGXCPU:
        status = None
    seconds = time.monotonic() - began
    shutil.rmtree(workspace.folder / "tmp", ignore_errors=True)
    output = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    if status is None:
        return Outcome("timeout", seconds=seconds, output=output)
    if not report.exists():
        return Outcome("crashed", seconds=seconds, output=output)
    told = json.loads(report.read_text())
    broken = told["exit"] in (2, 3, 4) and not told["failed"]
    what = "passed" if told["exit"] == 0 else "broken" if broken else "failed" if told["exit"] == 1 else "crashed"
    if told["exit"] == 2 and told["failed"]:
        what = "failed"
    failed = told["failed"]
    by = failed[0] if failed else told["collecting"]
    return Outcome(what, by, seconds, len(told["tests"]), told["tests"], told["lines"], failed, output)


def _child(
    workspace: Workspace,
    files: Sequence[str],
    chosen: set[str] | None,
    traced: Sequence[str],
    report: Path,
    log: Path,
) -> None:
    os.setsid()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(ROOT)
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    plugin = _Plugin(chosen, {str(workspace.folder / file): file for file in traced})
    arguments = [
        *files,
        *("-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(workspace.folder / "tmp")),
        *("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--hypothesis-profile=mutants", "--tb=short"),
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # Hypothesis is imported already
        *(() if traced else ("-x",)),
    ]
    code = pytest.main(arguments, plugins=[plugin])
    lines = {test: {file: sorted(some) for file, some in found.items()} for test, found in plugin.lines.items()}
    told = {
        "exit": int(code),
        "failed": plugin.failed,
        "collecting": plugin.collecting,
        "tests": plugin.seconds,
        "lines": lines,
    }
    report.write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


class _Plugin:
    def __init__(self, chosen: set[str] | None, traced: dict[str, str]) -> None:
        self.chosen, self.traced = chosen, traced
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.collecting = ""
        self.since = 0.0
        self.lines: dict[str, dict[str, set[int]]] = {}
        self.here: dict[str, set[int]] = {}
        self.known: dict[CodeType, str | None] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.chosen is not None:
            items[:] = [item for item in items if item.nodeid in self.chosen]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.collecting:
            self.collecting = str(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = time.process_time() - self.since + 0.1 * report.duration  # most of the wall time may be others'
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + spent
        self.since = time.process_time()
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.since = time.process_time()
        if not self.traced:
            return (yield)
        self.here = self.lines.setdefault(item.nodeid, {})
        sys.settrace(self._called)
        threading.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self.known:
            self.known[code] = self.traced.get(code.co_filename)
        file = self.known[code]
        if file is None:
            return None
        seen = self.here.setdefault(file, set())
        seen.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line
