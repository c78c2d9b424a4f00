"""`kenyon report`: a results folder as one page."""

from __future__ import annotations

from pathlib import Path

from kenyon.cli.consoles import stderr, tell, tell_json
from kenyon.experiments.store import unfinished
from kenyon.report.page import write_report


def report_command(path: Path, out: Path, *, apart: bool, as_json: bool) -> None:
    written = write_report(path, out, apart=apart)
    if told := unfinished(path):
        stderr().print(told, soft_wrap=True)
    if as_json:
        body = {"report": str(written.path), "bytes": written.size, "results": written.results}
        tell_json(body | {"benchmarks": written.benchmarks})
        return
    some = "1 result" if written.results == 1 else f"{written.results} results"
    of = "1 benchmark" if written.benchmarks == 1 else f"{written.benchmarks} benchmarks"
    tell(f"{written.path}: {some} of {of}, {written.size / 1e6:.1f} MB. Open it in a browser; it needs no network.")
