"""What is computed is what was computed before the redesign: see `driver`.

This compares with what the code printed before, on purpose, as no other test does: golden results guard a redesign.
Here are the quick cases; `python -m tests.golden.driver --check` has all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kenyon.methods import METHODS
from tests.golden.cases import CASES
from tests.golden.cases.methods import METHODS as TRIED
from tests.golden.driver import FILES, TOLERANCES, compare, machine, read
from tests.golden.values import Bits, Exact, Percent, Tolerance, Values, differences, record
from tests.golden.workbench import noise

GOLDEN = read(FILES["cpu"])
QUICK = sorted(name for name, entry in CASES.items() if entry.quick)
TOGETHER = 8  # cases a test, so that few tests wait for a process to begin


@pytest.mark.parametrize(
    "names", [QUICK[i : i + TOGETHER] for i in range(0, len(QUICK), TOGETHER)], ids=lambda n: n[0]
)
def test_numbers_are_those_recorded(names: list[str]) -> None:
    """The same bits with the PyTorch and CPU of the record, elsewhere nearly the same numbers."""
    unequal = [str(difference) for name in names for difference in compare(name, GOLDEN)]
    assert not unequal, "\n".join(unequal)


def test_every_case_is_recorded_and_every_method_has_one() -> None:
    assert set(GOLDEN["cases"]) == set(CASES)
    assert set(TRIED) <= set(METHODS)
    assert {"torch", "capability", "vendor", "commit", "python", "date", "cpu"} <= set(GOLDEN["origin"])
    assert set(machine()) <= set(GOLDEN["origin"])


def test_records_name_nothing_of_this_machine() -> None:
    for path in Path(__file__).parent.rglob("*.json"):
        text = path.read_text()
        assert not any(word in text for word in ("/home/", "/root/", "/tmp/", "/work/")), path


VALUES: Values = {
    "weights": torch.from_numpy(noise(40, 3)),
    "few": [1.0, -2.0, float("nan")],
    "accuracy": Percent([[90.0, 80.0], [70.0, float("nan")]]),
    "names": Exact(["a", "b"]),
    "predictions": Bits([1, 2, 3]),
}
LOOSE = Tolerance(relative=1e-3, points=2.0)


@pytest.mark.parametrize(
    ("item", "changed", "bits", "near"),
    [
        ("weights", VALUES["weights"] * (1 + 1e-6), False, True),
        ("weights", VALUES["weights"] * 1.01, False, False),
        ("weights", VALUES["weights"].flip(0), False, False),
        ("weights", VALUES["weights"].double(), False, True),
        ("few", [1.0, -2.0005, float("nan")], False, True),
        ("few", [1.0, -2.0, 0.0], False, False),
        ("few", [1.0, -2.0], False, False),
        ("accuracy", Percent([[90.0, 81.0], [70.0, float("nan")]]), False, True),
        ("accuracy", Percent([[90.0, 83.0], [70.0, float("nan")]]), False, False),
        ("names", Exact(["a", "c"]), False, False),
        ("predictions", Bits([1, 2, 4]), False, True),
    ],
)
def test_what_counts_as_a_difference(item: str, changed: object, bits: bool, near: bool) -> None:
    recorded = json.loads(json.dumps(record(VALUES)))
    for exact in (True, False):
        assert differences("case", recorded, VALUES, LOOSE, bits=exact) == []
    other = VALUES | {item: changed}
    assert [d.item for d in differences("case", recorded, other, LOOSE, bits=True)] == [item]
    assert [d.item for d in differences("case", recorded, other, LOOSE, bits=False)] == ([] if near else [item])
    without = {name: value for name, value in VALUES.items() if name != item}
    assert [d.item for d in differences("case", recorded, without, LOOSE, bits=True)] == [item]
    more = VALUES | {"new": [1.0]}
    assert differences("case", recorded, more, LOOSE, bits=True) == []


def test_data_are_the_same_everywhere() -> None:
    """By hand: splitmix64 of 1, as its 24 upper bits."""
    x = 1 * 0x9E3779B97F4A7C15 % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    x ^= x >> 31
    assert noise(1).item() == np.float32((x >> 40) / 2**23 - 1)
    assert TOLERANCES["cpu"].relative < 0.1
