"""Record the counts of Kenyon's checks, and show them as the table of docs/nothing-lost.md.

    python benchmarks/soundness.py     # writes the table into the page

Every check that counts cases (the zoo of backbones, faults injected, mutants, threads, versions) adds a section to
benchmarks/soundness.json through `record`, with the commit, date, versions and device that it ran on.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from kenyon.version import __version__

RECORD = Path(__file__).with_name("soundness.json")
BEGIN, END = "<!-- soundness -->", "<!-- /soundness -->"
PAGE = RECORD.parents[1] / "docs" / "nothing-lost.md"


def record(section: str, what: str, path: Path = RECORD, **counts: Any) -> None:
    """Replace a section. `what` says in one line what was tried; `counts` are numbers, and lists of exceptions."""
    body = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"format": 1, "sections": {}}
    body["sections"][section] = {"what": what, **origin(), **counts}
    body["sections"] = dict(sorted(body["sections"].items()))
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def origin() -> dict[str, str]:
    """Commit, date, versions and device of this process."""
    here = RECORD.parent
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=here
    )
    commit = os.environ.get("KENYON_COMMIT") or git.stdout.strip()  # a copy of the tree may have no history
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return {
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kenyon": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
    }


def table(path: Path = RECORD) -> str:
    """Return the sections as a Markdown table: what was tried, the counts, when and where."""
    lines = ["| what was tried | counts | when, where |", "|---|---|---|"]
    for section in json.loads(path.read_text(encoding="utf-8"))["sections"].values():
        counts = {
            k: v for k, v in section.items() if isinstance(v, int) and not isinstance(v, bool) and k != "seconds"
        }
        told = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.items())
        where = section["device"].partition(",")[0]
        lines.append(f"| {section['what']} | {told} | {section['date']}, {where}, commit {section['commit']} |")
    return "\n".join(lines)


def written(text: str, path: Path = RECORD) -> str:
    """Return the page with the present table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(path)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
