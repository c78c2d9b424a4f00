"""Little memory: one sentence instead of a traceback, from the program's first import on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from kenyon.cli import _short_of_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
RUN = ["run", "digits", "-m", "finetune", "--seeds", "1", "--epochs", "1", "--tasks", "2", "--no-fwt", "--out"]
COMMANDS = (["--version"], ["data", "list"], ["list", "methods"])


def limited(megabytes: int, words: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kenyon", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20,) * 2),
    )
    return done.returncode, done.stderr


def check(megabytes: int, words: list[str]) -> int:
    code, err = limited(megabytes, words)
    told = f"{megabytes} MB for kenyon {words[0]}: {code}\n{err}"
    assert code in (0, 1) and "Traceback" not in err, told
    assert code == 0 or err.strip(), told
    return code


@pytest.mark.parametrize(("megabytes", "words"), [(60, COMMANDS[1]), (60, COMMANDS[2]), (300, COMMANDS[2])])
def test_too_little_is_told(megabytes: int, words: list[str]) -> None:
    assert check(megabytes, words) == (1 if words[0] == "list" else 0)
    code, err = limited(megabytes, words)
    assert code == 0 or (err.startswith("Error: There is too little memory here (") and err.count("\n") == 1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 4.00 TiB for an array"), "Unable to allocate 4.00 TiB for an array"),
        (ImportError("IMPORTANT: READ THIS\n\nlibx.so: failed to map segment from shared object"), "libx.so: failed"),
        (OSError(12, "Cannot allocate memory", "a.so"), "[Errno 12] Cannot allocate memory: 'a.so'"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
        (ValueError("another one"), ""),
    ],
)
def test_what_counts_as_too_little(error: Exception, told: str) -> None:
    assert _short_of_memory(error).startswith(told) and bool(_short_of_memory(error)) == bool(told)
    beside = ValueError("beside it")
    beside.__cause__ = error
    assert bool(_short_of_memory(beside)) == bool(told)
