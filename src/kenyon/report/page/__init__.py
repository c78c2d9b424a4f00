"""Results as one HTML file that opens offline: tables, charts, and the origin of every number.

`kenyon.utils.views` describes charts, `entries` how to add a section, `sections` where to save an analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kenyon.report.page import sections  # noqa: F401  (registers them)
from kenyon.report.page.document import whole_page
from kenyon.report.page.entries import SECTIONS, Entry, Group, Section, collect, section
from kenyon.report.page.games import collect_games
from kenyon.utils.files import as_path, write_atomically

__all__ = ["SECTIONS", "Entry", "Group", "Section", "Written", "section", "write_report"]


@dataclass(frozen=True)
class Written:
    """A report that was written."""

    path: Path
    size: int  # bytes
    results: int
    benchmarks: int


def write_report(results: Path | str, out: Path | str = "report.html", *, apart: bool = False) -> Written:
    """Write the page of all results at or below a path.

    Results of one method under different settings are refused, since one table would compare what cannot be compared;
    with `apart` they are labelled by what differs.
    """
    from kenyon.experiments.compare import has_images

    source, target = as_path("results", results), as_path("out", out)
    if target.is_dir():
        target = target / "report.html"
    suites = collect_games(source)
    groups = collect(source, apart=apart) if not suites or has_images(source) else []
    folder = source if source.is_dir() else source.parent
    page = whole_page(groups, folder.resolve().name or "results", suites).encode()
    write_atomically(target, page)
    count = sum(len(g.shown) for g in groups) + sum(len(s.entries) for s in suites)
    return Written(target, len(page), count, len(groups) + len(suites))
