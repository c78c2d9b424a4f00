"""Whatever a file or a command line says, Kenyon takes it or refuses it with words: no traceback, no hang."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kenyon.methods import METHODS
from tests.torture.fuzzing import accepted, fuzz
from tests.torture.targets import nothing_happens, read_settings, targets, type_command

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the timers of Unix")
NAMES = (
    "pickles", "zips", "tars", "images", "tables", "states", "heads", "weights", "results", "caches", "analyses",
    "benches", "configurations",
)  # fmt: skip
SHORT, LONG, LEAST = 80, 4500, 200  # inputs a target of share 1, and of any in make test
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}

# ---------------------------------------------------------------------- files


def fuzzed(name: str, count: int, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, int]:
    (target,) = (target for target in targets(folder, patch) if target.name == name)
    inputs = max(LEAST, round(count * target.share))
    return {"inputs": inputs, "taken": fuzz(target, inputs, seed)}


@pytest.mark.parametrize("name", NAMES)
def test_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzed(name, SHORT, 0, tmp_path, monkeypatch)


@pytest.mark.torture
@pytest.mark.parametrize("name", NAMES)
def test_files_for_long(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, Any]) -> None:
    began, seed = time.monotonic(), time.time_ns() % 2**32
    told = fuzzed(name, LONG, seed, tmp_path, monkeypatch)
    note(record, name, told["inputs"], began, taken=told["taken"], seed=seed)


def note(record: dict[str, Any], name: str, inputs: int, began: float, **more: int) -> None:
    done = record.setdefault("fuzzing", {"what": "inputs that were taken or refused with words", "inputs": 0})
    done["inputs"] += inputs
    done[name] = {"inputs": inputs, **more, "seconds": round(time.monotonic() - began)}


# ---------------------------------------------------------------------- what is typed


SETTINGS = (
    "epochs", "batch", "rate", "patience", "drop", "validation", "optimiser", "momentum", "schedule", "drop_epoch",
    "carry", "penalties_from", "learners", "width", "diversity", "gate", "precision", "lambda_sp", "lambda_af",
    "gamma", "fisher", "accumulate", "afs", "af1", "nonsense",
)  # fmt: skip
TEXT = st.text(alphabet="abzAZ059 =,.;:-_+/\\'\"[]{}()%$&#*~\n\t\x00\x1b\x7fé٣漢\ud800", max_size=12)
VALUES = st.one_of(
    TEXT,
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["true", "no", "adam", "sgd", "step", "low", "high", "bfloat16", "1,2", "1,", ",", "1,1", "1e400", "٣", "1_0"]
    ),
)
PAIRS = st.one_of(
    st.builds("{}={}".format, st.sampled_from(SETTINGS), VALUES),
    st.builds("{}={},{}".format, st.sampled_from(SETTINGS), VALUES, VALUES),
    TEXT,
)
WORDS = st.one_of(
    st.sampled_from(
        [
            "run", "search", "list", "show", "analyse", "reproduce", "report", "verify", "--accept", "data", "get",
            "bench", "-m",
            "--method", "--seeds", "--config", "--tasks", "--epochs", "--device", "--data", "--out", "--set",
            "--learners", "--fleet", "--fwt", "--no-fwt", "--json", "--markdown", "--what", "--benchmark", "--scale",
            "--list", "--protocol", "--folds", "--share", "--optuna", "--trials", "--together", "--deterministic",
            "--version", "--keep-every-task", "--apart", "--quick", "--url", "--no-train", "-h", "--", "digits",
            "r-cifar-100", "cpu", "cuda", "ewc,mas", "0", "-1", "1,2", "5", "all", "fig2c", "smoke", "held-out",
            "short", "x.py", "0.5", "nan", "c.toml", "results",
        ]
    ),
    st.sampled_from(sorted(METHODS)),
    VALUES,
    PAIRS,
)  # fmt: skip
COMMANDS = st.one_of(
    st.lists(WORDS, max_size=8),
    st.builds(
        lambda command, words: [command, *words],
        st.sampled_from(["run", "search", "list", "show", "analyse", "reproduce", "report", "verify", "data"]),
        st.lists(WORDS, max_size=6),
    ),
)


def try_settings(count: int, *, anew: bool = False) -> int:
    """How many were tried; `anew`: others every time."""
    tried = [0]

    @settings(max_examples=count, derandomize=not anew, **QUIET)
    @given(pairs=st.lists(PAIRS, min_size=1, max_size=3), method=st.sampled_from(sorted(METHODS)))
    @example(pairs=["learners=100000000000"], method="caf-ewc")
    def check(pairs: list[str], method: str) -> None:
        tried[0] += 1
        accepted(lambda some: read_settings(some, (method,)), pairs)

    check()
    return tried[0]


def try_commands(count: int, *, anew: bool = False) -> int:
    """How many were tried; `anew`: others every time."""
    tried = [0]

    @settings(max_examples=count, derandomize=not anew, **QUIET)
    @given(words=COMMANDS)
    @example(words=["run", "--seeds", "99999999999"])
    def check(words: list[str]) -> None:
        tried[0] += 1
        accepted(type_command, words)

    check()
    return tried[0]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_happens(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("typed")
def test_settings() -> None:
    try_settings(200)


@pytest.mark.usefixtures("typed")
def test_commands() -> None:
    try_commands(60)


@pytest.mark.torture
@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("what", ["settings", "commands"])
def test_what_is_typed_for_long(what: str, record: dict[str, Any]) -> None:
    began, count = time.monotonic(), {"settings": 2_000, "commands": 1_000}[what]
    tried = (try_settings if what == "settings" else try_commands)(count, anew=True)
    note(record, what, tried, began)
