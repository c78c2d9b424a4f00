"""Test the integrations against the real programs, and record what passed in benchmarks/soundness.json.

make test-programs     # in .venv-programs, which has them
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from soundness import record

ROOT = Path(__file__).parents[1]
PROGRAMS = ("lightning", "pytorch-lightning", "transformers", "accelerate", "datasets", "pyarrow")
TESTS = (
    "tests/integrations/test_lightning.py",
    "tests/integrations/test_huggingface.py",
    "tests/data/test_hugging_face.py",
)


class Count:
    passed = failed = skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed += 1
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1


def main() -> int:
    found = {}
    for name in PROGRAMS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            print(f"{name} is not installed here. Run make test-programs.", file=sys.stderr)
            return 1
    count = Count()
    code = int(pytest.main([*(str(ROOT / test) for test in TESTS), *sys.argv[1:]], plugins=[count]))
    if code == 0:
        record(
            "programs",
            "integrations against the real programs",
            programs=[f"{name} {number}" for name, number in found.items()],
            tests_passed=count.passed,
            skipped=count.skipped,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
