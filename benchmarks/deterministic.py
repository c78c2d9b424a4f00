"""Measure the cost and the effect of --deterministic: the same runs with and without it, each twice.

    python benchmarks/deterministic.py --data FOLDER --out benchmarks/deterministic-h200.json

Every run is a `kenyon run`, alternating with and without it, all in this process, so that both use the same compiled
kernels. Seconds are those of training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from kenyon.cli.app import app

TIMES = 2
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as --deterministic sets it; it is read once, so here for both


def trained(benchmark: str, method: str, args: argparse.Namespace, *options: str) -> dict[str, Any]:
    """The result of a command."""
    with tempfile.TemporaryDirectory() as out:
        command = ["run", benchmark, "--method", method, "--no-fwt", "--out", out]
        command += ["--seeds", str(args.seeds), "--tasks", str(args.tasks), *options]
        command += ["--data", str(args.data)] if args.data else []
        command += ["--epochs", str(args.epochs)] if args.epochs else []
        with redirect_stdout(sys.stderr):
            app(command, standalone_mode=False)
        found: dict[str, Any] = json.loads(next(Path(out).glob("**/result.json")).read_text())
        return found


def compare(benchmark: str, method: str, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"benchmark": benchmark, "method": method, "precision": precision}
    repeated = []
    for turn in range(TIMES):
        for name, options in (("usual", ()), ("deterministic", ("--deterministic",))):
            one = trained(benchmark, method, args, "--set", f"precision={precision}", *options)
            row.setdefault(name, {"seconds": [], "accuracy": []})
            row[name]["seconds"].append(sum(fleet["seconds"] for fleet in one["fleets"]))
            row[name]["accuracy"].append([run["accuracy"] for run in one["runs"]])
        print(f"{method} {precision}: turn {turn + 1} of {TIMES}", file=sys.stderr)
    for name in ("usual", "deterministic"):
        first, *others = row[name].pop("accuracy")
        row[name]["repeats"] = all(other == first for other in others)
        repeated.append(min(row[name]["seconds"]))
    row["cost"] = repeated[1] / repeated[0]  # the fastest of each
    row["device"], row["versions"] = one["fleets"][0]["device"], one["fleets"][0]["versions"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--benchmark", default="r-cifar-100")
    parser.add_argument("--methods", default="ewc,caf-ewc")
    parser.add_argument("--precisions", default="bfloat16,float32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="otherwise the benchmark's")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for precision in args.precisions.split(","):
        for method in args.methods.split(","):
            rows.append(compare(args.benchmark, method, precision, args))
            settings = {"seeds": args.seeds, "tasks": args.tasks, "epochs": args.epochs}
            args.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")
            row = rows[-1]
            print(
                f"{method} {precision}: {row['cost']:.2f} times as long; repeats {row['deterministic']['repeats']}, "
                f"without it {row['usual']['repeats']}"
            )


if __name__ == "__main__":
    main()
