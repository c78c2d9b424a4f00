"""SIGINT and SIGTERM from the first moment of the program to its last: the exit code, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kenyon.cli import main
from kenyon.cli.signals import interruptible
from tests.cli.conftest import Said

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="sees in /proc who answers signals")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SHORT = ["--version"]
SHOWN = ["list", "benchmarks"]
RUN = ["run", "digits", "-m", "finetune", "--seeds", "1", "--epochs", "1", "--tasks", "2", "--no-fwt", "--out"]
PATIENCE = 120.0


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kenyon", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=hearing,
    )


def hearing() -> None:
    """Take SIGINT as a program in the foreground does, wherever the tests run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def answers(process: subprocess.Popen[str]) -> bool:
    """Whether the program itself answers SIGTERM by now: before, the system does."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def sent(number: signal.Signals, delay: float, words: list[str]) -> tuple[int, str]:
    """How a command ends to which a signal is sent so many seconds after it began to answer."""
    process = start(*words)
    until = time.monotonic() + PATIENCE
    while not answers(process) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.0005)
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err


def check(number: signal.Signals, delay: float, words: list[str]) -> int:
    code, err = sent(number, delay, words)
    told = f"{number.name} after {1000 * delay:.0f} ms of kenyon {words[0]}: {code}\n{err}"
    assert code in (0, CODES[number]), told
    assert "Traceback" not in err and "Exception ignored" not in err and "Error" not in err, told
    return code


@pytest.mark.parametrize("number", CODES)
def test_from_the_first_moment(number: signal.Signals) -> None:
    for delay, words in ((0.0, SHORT), (0.05, SHOWN)):  # which a busy machine may finish before it sends a signal
        assert any(check(number, delay, words) == CODES[number] for _ in range(5))


@pytest.mark.parametrize("number", CODES)
def test_through_a_whole_command(number: signal.Signals) -> None:
    for delay in (0.02, 0.1, 0.15, 0.2, 0.25, 0.3):
        check(number, delay, SHORT)


def test_when_the_results_are_written(tmp_path: Path) -> None:
    """From the moment on at which the result is there, again and again: also when Python takes itself down."""
    number = signal.SIGINT
    process = start(*RUN, str(tmp_path))
    result, until = tmp_path / "digits/finetune/result.json", time.monotonic() + PATIENCE
    while not result.exists() and time.monotonic() < until:
        time.sleep(0.001)
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.002)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, CODES[number]) and "Traceback" not in err, (process.returncode, err)


def test_importing_kenyon_answers_no_signals() -> None:
    code = "import signal; a = signal.getsignal(2), signal.getsignal(15); import kenyon, kenyon.cli; "
    code += "print(a == (signal.getsignal(2), signal.getsignal(15)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_command_in_a_process_of_somebody_else_leaves_its_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in CODES]
    monkeypatch.setattr(sys, "argv", ["kenyon", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert [signal.getsignal(number) for number in CODES] == before


@pytest.mark.parametrize("number", CODES)
def test_what_can_be_interrupted_hears_one_signal(number: signal.Signals) -> None:
    before = [signal.getsignal(other) for other in CODES]
    codes = []
    with pytest.raises(KeyboardInterrupt), interruptible() as heard:
        codes.append(heard)
        signal.raise_signal(number)
    assert codes[0].code == CODES[number] and [signal.getsignal(other) for other in CODES] == before


def test_watching_a_sweep_ends_by_the_signal_s_code(
    kenyon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, where it goes on until all has come to an end."""
    from rich.console import Console

    from kenyon.cli import consoles

    (tmp_path / "e.toml").write_text('benchmark = "digits"\nmethod = "finetune"\nseeds = 1\n[settings]\nepochs = 1\n')
    said: Said = kenyon("sweep", tmp_path / "e.toml", "--out", tmp_path / "r", "--tasks", 2, "--no-fwt")
    assert said.code == 0
    monkeypatch.setattr(consoles, "stdout", lambda: Console(force_terminal=True))
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("kenyon.sweep.status.Status.over", property(lambda status: False))
    said = kenyon("sweep", "--status", "--out", tmp_path / "r")
    assert said.code == 143
