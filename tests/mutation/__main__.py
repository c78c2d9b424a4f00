"""Draw a sample of mutants, run the tests on each, and record how many were noticed."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation import coverage
from tests.mutation.mutants import Mutant, find_mutants, sample
from tests.mutation.targets import ROOT, TARGETS, Target, source_files, suite_files
from tests.mutation.trial import Outcome, Workspace, run, warm_up

ACCEPTED = Path(__file__).with_name("accepted.json")
KEPT = ROOT / "build" / "mutants"  # results of every mutant, so that the command goes on where it was stopped
LEAST = 3  # mutants of every file
CONTROLS = 10  # trials without a mutant, which have to pass


def draw(count: int, seed: int, only: list[str]) -> dict[str, list[Mutant]]:
    """The sample, by module: of every file in proportion to its lines that can be changed."""
    found = {
        (name, file): find_mutants(ROOT, file, target.gpu_only)
        for name, target in TARGETS.items()
        for file in target.files
    }
    lines = {place: len({mutant.line for mutant in mutants}) for place, mutants in found.items()}
    whole = sum(lines.values())
    chosen: dict[str, list[Mutant]] = {name: [] for name in TARGETS if not only or name in only}
    for (name, file), mutants in found.items():
        if name in chosen:
            chosen[name] += sample(mutants, max(LEAST, round(count * lines[name, file] / whole)), seed)
    return chosen


def fingerprint(*files: str) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update((ROOT / file).read_bytes())
    return digest.hexdigest()[:16]


def attempt(
    workspace: Workspace, mutant: Mutant, tests: list[str], rest: list[str], covered: coverage.Coverage
) -> Outcome:
    """The outcome of the tests on one mutant and, where these pass, of the rest of those written for its file: some
    look at what was computed when they were collected.
    """
    workspace.put(mutant.file, mutant.apply((ROOT / mutant.file).read_bytes()))
    try:
        first = run_chosen(workspace, tests, covered)
        second = run_chosen(workspace, rest, covered) if first.status in ("passed", "untested") else first
        return first if second.status == "untested" else second
    finally:
        workspace.restore(mutant.file)


def run_chosen(workspace: Workspace, tests: list[str], covered: coverage.Coverage) -> Outcome:
    if not tests:
        return Outcome("untested")
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    limit = 20 + 3 * sum(covered.seconds[test] for test in tests)
    return run(workspace, files, set(tests), limit)


def survives(entry: dict[str, Any]) -> bool:
    return entry["status"] in ("passed", "untested")


def read_accepted() -> dict[str, dict[str, str]]:
    """Survivors that may stay, by key: where they stand, why, and of which kind they are.

    equivalent: no input tells it from the original; rounding: only ties or the last digits could; work: it does more
    or less work for the same numbers; gpu: it only runs where there is a GPU.
    """
    entries = json.loads(ACCEPTED.read_text(encoding="utf-8")) if ACCEPTED.exists() else []
    return {entry["key"]: entry for entry in entries}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=450, help="mutants, about so many")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--only", action="append", default=[], metavar="MODULE", choices=list(TARGETS))
    parser.add_argument("--list", action="store_true", help="show the sample and stop")
    parser.add_argument("--record", metavar="SECTION", help="write the counts to benchmarks/soundness.json")
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    asked = parser.parse_args()
    drawn = draw(asked.count, asked.seed, asked.only)
    total = sum(map(len, drawn.values()))
    if asked.list:
        for name, mutants in drawn.items():
            print(f"{name}: {len(mutants)}", *mutants, sep="\n  ")
        return 0
    warm_up()
    KEPT.mkdir(parents=True, exist_ok=True)
    results = KEPT / "results.jsonl"
    if asked.fresh:
        results.unlink(missing_ok=True)
    lines = results.read_text().splitlines() if results.exists() else []
    known = {(entry["file"], entry["key"]): entry for entry in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="kenyon-mutants-") as temporary:
        workspace = Workspace(Path(temporary))
        print("Which tests execute which lines:", flush=True)
        covered = coverage.measure(workspace, KEPT / "lines", suite_files(), source_files())
        print(f"{len(covered.seconds)} tests; without any mutant {len(covered.failing)} fail and are left out.")
        controls = control(workspace, drawn, covered)
        entries: list[dict[str, Any]] = []
        began, number = time.monotonic(), 0
        for name, mutants in drawn.items():
            for mutant in mutants:
                number += 1
                entry = tried(workspace, name, TARGETS[name], mutant, covered, known)
                entries.append(entry)
                if "new" in entry:
                    del entry["new"]
                    with results.open("a") as file:
                        file.write(json.dumps(entry) + "\n")
                    survived = sum(map(survives, entries))
                    minutes = (time.monotonic() - began) / 60
                    print(
                        f"[{number}/{total}, {survived} survive, {minutes:.0f} min] {entry['status']:8} "
                        f"{entry['seconds']:5.1f} s  {mutant}",
                        flush=True,
                    )
    return report(entries, controls, asked)


def tried(
    workspace: Workspace,
    name: str,
    target: Target,
    mutant: Mutant,
    covered: coverage.Coverage,
    known: dict[tuple[str, str], dict[str, Any]],
) -> dict[str, Any]:
    """What became of a mutant, now or when this was run before. What was killed stays so as long as its file is the
    same; a survivor is tried again when tests have changed.
    """
    tests = covered.tests_for(mutant, target.tests)
    rest = [test for test in covered.seconds if test.startswith(target.tests) and test not in set(tests)]
    seen = fingerprint(*sorted({test.split("::")[0] for test in [*tests, *rest]}))
    before = known.get((mutant.file, mutant.key))
    if before and before["source"] == fingerprint(mutant.file) and (not survives(before) or before["seen"] == seen):
        return before
    outcome = attempt(workspace, mutant, tests, rest, covered)
    return {
        "key": mutant.key,
        "source": fingerprint(mutant.file),
        "seen": seen,
        "module": name,
        "file": mutant.file,
        "line": mutant.line,
        "function": mutant.function,
        "operator": mutant.operator,
        "before": mutant.before,
        "after": mutant.text,
        "status": outcome.status,
        "by": outcome.by,
        "tests": len(tests) + len(rest),
        "seconds": round(outcome.seconds, 1),
        "new": True,
    }


def control(workspace: Workspace, drawn: dict[str, list[Mutant]], covered: coverage.Coverage) -> int:
    """Trials of unchanged sources, spread over the sample. One that fails would make all kills doubtful."""
    everything = [(name, mutant) for name, mutants in drawn.items() for mutant in mutants]
    some = everything[:: max(1, len(everything) // CONTROLS)][:CONTROLS]
    for name, mutant in some:
        tests = covered.tests_for(mutant, TARGETS[name].tests)
        if tests and (outcome := run_chosen(workspace, tests, covered)).status != "passed":
            print(outcome.output)
            raise SystemExit(f"{outcome.by or outcome.status} fails without any mutant: no kill can be trusted.")
    print(f"{len(some)} trials without a mutant passed.", flush=True)
    return len(some)


def report(entries: list[dict[str, Any]], controls: int, asked: argparse.Namespace) -> int:
    accepted = read_accepted()
    survivors = [entry for entry in entries if survives(entry)]
    by_module: dict[str, dict[str, int]] = {}
    for entry in entries:
        row = by_module.setdefault(entry["module"], {"mutants": 0, "killed": 0})
        row["mutants"] += 1
        row["killed"] += entry not in survivors
    for name, row in by_module.items():
        print(f"{name:12} {row['killed']:4} of {row['mutants']:4} killed")
    listed = []
    for entry in survivors:
        why = accepted.get(entry["key"], {}).get("reason", "")
        where = f"{entry['file']}:{entry['line']}"
        change = f"{entry['before']}  ->  {entry['after']}"
        kind = accepted.get(entry["key"], {}).get("kind", "open")
        listed.append({"where": where, "operator": entry["operator"], "change": change, "kind": kind, "reason": why})
        print(f"survives: {entry['key']} {where} [{entry['operator']}] {change}\n    {why or 'NO REASON IS GIVEN'}")
    killed = len(entries) - len(survivors)
    how = Counter(entry["status"] for entry in entries)
    kinds = Counter(accepted.get(entry["key"], {}).get("kind", "open") for entry in survivors)
    print(f"{killed} of {len(entries)} mutants killed ({100 * killed / len(entries):.1f} %): {dict(how)}")
    if asked.record:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        from soundness import record

        record(
            asked.record,
            f"Mutants: small faults put into the source, one at a time (sample {asked.seed})",
            mutants=len(entries),
            killed=killed,
            survived=len(survivors),
            equivalent=kinds["equivalent"],
            survivors_by_kind=dict(kinds),
            killed_percent=round(100 * killed / len(entries), 1),
            controls_that_passed=controls,
            killed_by={
                "a test": how["failed"],
                "not importable": how["broken"],
                "time": how["timeout"],
                "crash": how["crashed"],
            },
            modules=by_module,
            survivors=listed,
            left_out="Triton and CUDA kernels, and branches that only run on a GPU: tested on a GPU machine",
        )
    return 0 if all(entry["reason"] for entry in listed) else 1


if __name__ == "__main__":
    sys.exit(main())
