"""Golden results: what every part of Kenyon computed before it was rebuilt, to be computed again afterwards.

    python -m tests.golden.driver --check                    # all cases against cpu.json; lists what differs
    python -m tests.golden.driver --check --only digits      # those whose name has a word in it
    python -m tests.golden.driver --record tests/golden/cpu.json
    python -m tests.golden.driver --record tests/golden/gpu.json --device cuda

Elsewhere no test compares with what the code printed yesterday; this one does, on purpose: golden results guard a
redesign, in which nothing that is computed may change. Record anew only where a change of numbers is meant, and say
in the commit which and why.

Bits are compared where PyTorch and the CPU are those of the record, rounded values within a tolerance elsewhere, and
always on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

import kenyon
from tests.golden.cases import CASES
from tests.golden.values import Difference, Record, Tolerance, Values, differences, record
from tests.golden.workbench import Bench

HERE = Path(__file__).parent
FILES = {"cpu": HERE / "cpu.json", "cuda": HERE / "gpu.json"}
# On the CPU of cpu.json restricted to SSE, six cases of 219 differ by more than 0.002 of an item's norm, none by more
# than 0.02. A GPU computes in bfloat16 and sums in another order.
TOLERANCES = {"cpu": Tolerance(relative=0.03, points=5.0), "cuda": Tolerance(relative=0.1, points=12.0)}
FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_bf16",
    "asimd",
    "sve",
)
SHOWN = 5  # items a case that are printed
T = TypeVar("T")


def machine() -> dict[str, Any]:
    """What the bits of a CPU's results depend on."""
    known: dict[str, str] = {}
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines():
            name, _, value = line.partition(":")
            known[name.strip()] = value.strip()
    flags = set((known.get("flags") or known.get("Features", "")).split())
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        "vendor": known.get("vendor_id", platform.processor()),
        "family": f"{known.get('cpu family', '?')}/{known.get('model', '?')}",
        "flags": [flag for flag in FLAGS if flag in flags],
    }


def same_machine(origin: dict[str, Any]) -> bool:
    """Whether bits have to be those of the record."""
    return all(origin.get(name) == value for name, value in machine().items())


def compute(name: str, device: str = "cpu") -> Values:
    """A case, in an empty folder, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[name].run(Bench(Path(folder), device))


def compare(
    name: str,
    golden: dict[str, Any],
    device: str = "cpu",
    bits: bool | None = None,
    tolerance: Tolerance | None = None,
) -> list[Difference]:
    """What differs from the record. `bits`: whether bits are compared; otherwise as the machine says."""
    if bits is None:
        bits = device == "cpu" and same_machine(golden["origin"])
    found = compute(name, device)
    return differences(name, golden["cases"][name], found, tolerance or TOLERANCES[device], bits=bits)


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_text())
    return body


def write(path: Path, device: str, found: dict[str, Record]) -> None:
    """One line a case."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout.strip()
    origin = {
        "kenyon": kenyon.__version__,
        "commit": commit,
        **machine(),
        "cpu": next((line.partition(":")[2].strip() for line in cpu_lines() if line.startswith("model name")), "?"),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }
    if device == "cuda":
        origin["gpu"] = torch.cuda.get_device_name()
    cases = ",\n".join(f"{json.dumps(name)}: {compact(found[name])}" for name in sorted(found))
    path.write_text(f'{{"origin": {json.dumps(origin)},\n"cases": {{\n{cases}\n}}}}\n')


def compact(body: Record) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def chosen(only: str | None, device: str) -> list[str]:
    words = [] if only is None else only.split(",")
    names = [name for name, entry in CASES.items() if device == "cpu" or not entry.cpu_only]
    return [name for name in names if not words or any(word in name for word in words)]


def prepare() -> None:
    """This process, for cases: one thread, pictures to files, and no warnings in between."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.setdefault("MPLBACKEND", "Agg")


def computed(name: str, device: str) -> tuple[Record, float]:
    begun = time.perf_counter()
    return record(compute(name, device)), time.perf_counter() - begun


def compared(name: str, asked: tuple[Any, ...]) -> tuple[list[str], float]:
    """Of an error too, so that all cases are tried."""
    begun = time.perf_counter()
    try:
        unequal = [str(difference) for difference in compare(name, *asked)]
    except Exception as error:
        unequal = [f"{name}: {type(error).__name__}: {error}"]
    return unequal, time.perf_counter() - begun


def over(work: Callable[[str, Any], T], names: list[str], asked: Any, jobs: int) -> Iterator[tuple[str, T]]:
    """In so many processes."""
    if jobs == 1:
        yield from ((name, work(name, asked)) for name in names)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=prepare) as pool:
        yield from zip(names, pool.map(work, names, [asked] * len(names)), strict=True)


def check(
    names: list[str],
    golden: dict[str, Any],
    device: str,
    *,
    bits: bool | None,
    tolerance: Tolerance,
    jobs: int,
    times: bool,
) -> int:
    """Print the cases that differ; the exit status."""
    wrong, recorded = 0, [name for name in names if name in golden["cases"]]
    for name, (unequal, seconds) in over(compared, recorded, (golden, device, bits, tolerance), jobs):
        wrong += bool(unequal)
        if times:
            print(f"{seconds:6.2f} s  {name}", flush=True)
        for difference in unequal[:SHOWN]:
            print(f"DIFFERS {difference}", flush=True)
        if len(unequal) > SHOWN:
            print(f"  ... and {len(unequal) - SHOWN} more items", flush=True)
    gone = sorted(set(golden["cases"]) - set(CASES))
    for name in gone:
        print(f"recorded, and no case any more: {name}")
    for name in sorted(set(names) - set(recorded)):
        print(f"not recorded: {name}")
    exact = bits or (bits is None and device == "cpu" and same_machine(golden["origin"]))
    print(f"{len(recorded)} cases compared by their {'bits' if exact else 'values'}, {wrong} differ.")
    return 1 if wrong or gone else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.driver", description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the record, and say what differs")
    what.add_argument("--record", metavar="FILE", type=Path, help="write a record")
    what.add_argument(
        "--list", action="store_true", help="the names of all cases; those of the test suite with a star"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--golden", type=Path, help="the record to compare with; otherwise that of the device")
    parser.add_argument("--only", help="words, with commas: cases with one of them in their name")
    parser.add_argument("--values", action="store_true", help="compare rounded values where bits could be")
    parser.add_argument("--bits", action="store_true", help="compare bits, also on another machine")
    parser.add_argument("--relative", type=float, help="what values may differ by, as a share of an item's norm")
    parser.add_argument("--points", type=float, help="what accuracies may differ by, in per cent")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--times", action="store_true", help="how long each case takes")
    asked = parser.parse_args()
    prepare()
    names = chosen(asked.only, asked.device)
    if asked.list:
        print("\n".join(f"{'*' if CASES[name].quick else ' '} {name}" for name in names))
        return 0
    if asked.record:
        found = {}
        for name, (made, seconds) in over(computed, names, asked.device, asked.jobs):
            found[name] = made
            if asked.times:
                print(f"{seconds:6.2f} s  {name}", flush=True)
        write(asked.record, asked.device, found)
        return 0
    file = asked.golden or FILES[asked.device]
    if not file.exists():
        parser.error(
            f"There is no {file.name} yet: make one with --record on the commit that is to be compared with."
        )
    usual = TOLERANCES[asked.device]
    tolerance = Tolerance(
        usual.relative if asked.relative is None else asked.relative,
        usual.points if asked.points is None else asked.points,
    )
    return check(
        names,
        read(file),
        asked.device,
        bits=True if asked.bits else False if asked.values else None,
        tolerance=tolerance,
        jobs=asked.jobs,
        times=asked.times,
    )


if __name__ == "__main__":
    sys.exit(main())
