"""`kenyon report`: a results folder as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kenyon.cli.options import Json, Results, path


def report(
    path: Results = Path("results"),
    out: Annotated[Path, typer.Option("--out", parser=path, help="The file to write.")] = Path("report.html"),
    apart: Annotated[
        bool, typer.Option("--apart", help="Label results of one method under different settings by what differs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make one HTML file of all results: tables, charts and the origin of every number. It opens offline.

    Analyses beside a result, METHOD/analysis/NAME.json, are shown with it.
    """
    from kenyon.cli.consoles import stderr, tell, tell_json
    from kenyon.experiments.store import unfinished
    from kenyon.report.page import write_report

    written = write_report(path, out, apart=apart)
    if note := unfinished(path):
        stderr().print(note, soft_wrap=True)
    if json:
        body = {"report": str(written.path), "bytes": written.size, "results": written.results}
        tell_json(body | {"benchmarks": written.benchmarks})
        return
    some = "1 result" if written.results == 1 else f"{written.results} results"
    of = "1 benchmark" if written.benchmarks == 1 else f"{written.benchmarks} benchmarks"
    tell(f"{written.path}: {some} of {of}, {written.size / 1e6:.1f} MB. Open it in a browser; it needs no network.")
