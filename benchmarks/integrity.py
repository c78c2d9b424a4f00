"""Change every byte of one file of each kind, in several ways, and count the outcomes.

    PYTHONPATH=. python benchmarks/integrity.py     # minutes; adds a section to benchmarks/soundness.json

"noticed": the file is refused with a message; "harmless": the same is read, as when one white space replaces another;
"believed": something else is read. The last has to be 0.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import torch
from soundness import record
from tests.changes import changed_bytes
from tests.report.test_integrity import one_of_every_kind, readers

WAYS = {"result": 8, "scores": 8, "weights": 2, "state": 1, "learner": 1}  # changes of every byte


def main() -> None:
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    each = []
    memory = Path("/dev/shm")  # a disk takes longer than all the rest
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        out = one_of_every_kind(Path(folder))
        for kind, (path, read) in readers(out).items():
            if kind in WAYS:
                found: Counter[str] = Counter()
                for seed in range(WAYS[kind]):
                    found += changed_bytes(path, read, range(path.stat().st_size), seed)
                total += found
                size = path.stat().st_size
                each.append(f"{kind}: {size:,} bytes, {found['noticed']:,} noticed, {found['harmless']:,} harmless")
                print(each[-1], f"{found['believed']} believed", flush=True)
    record(
        "integrity",
        "every byte of a result, scores, weights, a state and a learner changed",
        bytes_changed=total.total(),
        noticed=total["noticed"],
        harmless=total["harmless"],
        believed=total["believed"],
        files=each,
    )


if __name__ == "__main__":
    main()
