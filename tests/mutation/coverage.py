"""Which tests execute which lines of the mutated files, and how long each takes: measured once a test file."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.targets import ROOT
from tests.mutation.trial import Workspace, run

SPENT = 25.0  # seconds of tests, as measured while tracing, that one mutant may cost
LIMIT = 900.0  # seconds for a test file


@dataclass
class Coverage:
    seconds: dict[str, float] = field(default_factory=dict)  # by test
    # file -> line -> tests
    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    failing: list[str] = field(default_factory=list)  # without any mutant: they are left out

    def add(self, tests: dict[str, float], lines: dict[str, dict[str, list[int]]], failed: list[str]) -> None:
        self.failing += failed
        for test, seconds in tests.items():
            if test not in failed:
                self.seconds[test] = seconds
        for test, files in lines.items():
            for file, numbers in files.items():
                for number in numbers if test not in failed else ():
                    self.lines[file][number].add(test)

    def tests_for(self, mutant: Mutant, own: tuple[str, ...]) -> list[str]:
        """Those that execute the statement. Of values that are only looked at when the module is imported: those that
        execute anything of the class or, at last, of the file, and the file's own tests.
        """
        there = self.lines.get(mutant.file, {})
        found: set[str] = set().union(*(there.get(n, ()) for n in range(mutant.lines[0], mutant.lines[1] + 1)))
        if not found:
            for start, stop in _around(mutant):
                found = set().union(*(there.get(n, ()) for n in range(start, stop + 1)))
                if found:
                    break
            else:
                found = {test for tests in there.values() for test in tests}
            if not mutant.function or "." not in mutant.function:
                found |= {test for test in self.seconds if test.startswith(own)}
        return self._affordable(found, own)

    def _affordable(self, tests: set[str], own: tuple[str, ...]) -> list[str]:
        """The file's own tests and then the quickest, as many as one mutant may cost; file by file."""
        ordered = sorted(tests, key=lambda test: (not test.startswith(own), self.seconds[test]))
        chosen: list[str] = []
        left = SPENT
        for test in ordered:
            if self.seconds[test] <= left:
                left -= self.seconds[test]
                chosen.append(test)
        cost: dict[str, float] = defaultdict(float)
        for test in chosen:
            cost[test.split("::")[0]] += self.seconds[test]
        places = {test: number for number, test in enumerate(self.seconds)}
        return sorted(
            chosen, key=lambda t: (not t.startswith(own), cost[t.split("::")[0]], t.split("::")[0], places[t])
        )


def _around(mutant: Mutant) -> list[tuple[int, int]]:
    """The functions and classes around a mutant, the innermost first."""
    found = []
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno is not None:
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if start <= mutant.line <= node.end_lineno:
                found.append((start, node.end_lineno))
    return sorted(found, key=lambda place: place[1] - place[0])


def measure(workspace: Workspace, folder: Path, tests: list[str], sources: list[str]) -> Coverage:
    """Run every test file with its lines traced; what is known of unchanged files is taken from `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    together = b"".join((ROOT / file).read_bytes() for file in sources)
    found = Coverage()
    for number, test in enumerate(tests, start=1):
        words = together + (ROOT / test).read_bytes()
        path = folder / f"{hashlib.sha256(words).hexdigest()[:16]}-{Path(test).stem}.json"
        if not path.exists():
            outcome = run(workspace, [test], None, LIMIT, traced=sources)
            print(f"  [{number}/{len(tests)}] {test}: {outcome.status}, {outcome.seconds:.1f} s", flush=True)
            if outcome.status != "passed":
                print(outcome.output[-1500:], flush=True)
            body = {"tests": outcome.tests, "lines": outcome.lines, "failed": outcome.failed}
            path.write_text(json.dumps(body))
        body = json.loads(path.read_text())
        found.add(body["tests"], body["lines"], body["failed"])
    return found
