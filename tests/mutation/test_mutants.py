"""The mutator, by hand: what it changes, what it leaves alone, and that a trial tells a fault from a sound source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import read_accepted
from tests.mutation.mutants import Mutant, find_mutants, sample
from tests.mutation.targets import ROOT, TARGETS, source_files, suite_files

SOURCE = '''"""A module."""
from typing import Literal

Form = Literal["one", "two"]
LIMIT = 0.5

def mean(x: list[float], *, form: Form = "one") -> float:
    """Not a number: 3."""
    if not x:
        raise ValueError(f"no numbers, {1 + 1}")
    assert len(x) > 0
    total = 0.0
    for value in x[1:]:
        total += min(value, LIMIT)
    return total / (len(x) - 1)

def on_gpu() -> int:
    return 3 + 4
'''


def mutants(folder: Path, source: str = SOURCE, gpu_only: frozenset[str] = frozenset()) -> list[Mutant]:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "made.py").write_text(source)
    return find_mutants(folder, "src/made.py", gpu_only)


def test_what_is_changed(tmp_path: Path) -> None:
    found = {(m.line, m.before, m.text) for m in mutants(tmp_path)}
    assert {
        (5, "0.5", "(1.0)"),
        (7, '"one"', "'two'"),
        (9, "not x", "(x)"),
        (9, "not x", "True"),
        (10, 'raise ValueError(f"no numbers, {1 + 1}")', "pass"),
        (13, "x[1:]", "(x[:])"),
        (14, "min(value, LIMIT)", "(max(value, LIMIT))"),
        (14, "min(value, LIMIT)", "(value)"),
        (14, "total += min(value, LIMIT)", "pass"),
        (14, "total += min(value, LIMIT)", "total -= min(value, LIMIT)"),
        (15, "total / (len(x) - 1)", "(total * (len(x) - 1))"),
        (15, "1", "(2)"),
        (15, "return total / (len(x) - 1)", "return None"),
        (18, "3 + 4", "(3 - 4)"),
    } <= found


def test_what_is_left_alone(tmp_path: Path) -> None:
    """Documentation, types, messages, assertions, and what only runs on a GPU."""
    found = mutants(tmp_path, gpu_only=frozenset({"on_gpu"}))
    assert not {m.line for m in found} & {1, 2, 4, 8, 11, 18}
    assert {m.text for m in found if m.line == 10} == {"pass"}
    branch = "def f(x):\n    if x.is_cuda:\n        return x + 1\n    return x\n"
    assert {m.line for m in mutants(tmp_path, branch)} == {4}


def test_every_mutant_is_another_program(tmp_path: Path) -> None:
    found = mutants(tmp_path)
    texts = [m.apply(SOURCE.encode()) for m in found]
    assert len(set(texts)) == len(texts) and SOURCE.encode() not in texts
    for text in texts:
        compile(text, "made.py", "exec")
    same = "def f(x):\n    return 2 * 3\n"  # folded by the compiler: 3 * 2 is the same program
    assert all("3 * 2" not in m.text for m in mutants(tmp_path, same))


def test_a_sample_depends_on_seed_and_text_alone(tmp_path: Path) -> None:
    found = mutants(tmp_path)
    chosen = sample(found, 8, 1)
    assert sample(found[::-1], 8, 1) == chosen and sample(found, 8, 2) != chosen
    assert set(sample(found, 4, 1)) <= set(chosen) and len(chosen) == 8
    assert max([m.line for m in chosen].count(line) for line in {m.line for m in chosen}) <= 2
    moved = mutants(tmp_path, SOURCE.replace('"""A module."""', '"""A module."""\n\n\n'))
    assert [m.key for m in sample(moved, 8, 1)] == [m.key for m in chosen]


def test_targets_are_there() -> None:
    assert len(source_files()) == len(set(source_files())) and len(suite_files()) > len(TARGETS)


def test_every_survivor_that_may_stay_has_a_reason_and_a_place() -> None:
    for key, entry in read_accepted().items():
        assert (ROOT / entry["file"]).exists() and len(entry["reason"]) > 20, key
        assert entry["kind"] in ("equivalent", "rounding", "work", "gpu"), key


TRIAL = """
import sys
from pathlib import Path
from tests.mutation.trial import Workspace, run, warm_up
warm_up()
workspace = Workspace(Path(sys.argv[1]))
test, file = sys.argv[2:4]
source = (workspace.folder / file).read_bytes()
traced = run(workspace, [test], None, 60, traced=[file])
print(traced.status, len(traced.tests), sum(len(lines.get(file, ())) > 0 for lines in traced.lines.values()))
for fault in (b"return float(np.mean(matrix[0]))", b"while True: pass", b"import nothing_that_there_is"):
    workspace.put(file, source.replace(b"return float(np.mean(matrix[-1]))", fault))
    outcome = run(workspace, [test], None, 4)
    print(outcome.status, outcome.by.rpartition("::")[2])
workspace.restore(file)
print(run(workspace, [test], {next(iter(traced.tests))}, 60).ran)
"""


@pytest.mark.torture
def test_a_trial_tells_a_fault_from_a_sound_source(tmp_path: Path) -> None:
    test, file = "tests/test_metrics.py", "src/kenyon/metrics.py"
    command = [sys.executable, "-c", TRIAL, str(tmp_path), test, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    passed, wrong, endless, absent, one = done.stdout.split("\n")[:5]
    status, tests, saw = passed.split()
    assert status == "passed" and 0 < int(saw) <= int(tests)
    assert wrong.startswith("failed test_") and endless.split()[0] == "timeout" and absent.split()[0] == "failed"
    assert one == "1"


def test_accepted_is_in_order() -> None:
    text = (Path(__file__).with_name("accepted.json")).read_text(encoding="utf-8")
    entries = json.loads(text)
    assert [e["file"] for e in entries] == sorted(e["file"] for e in entries)
