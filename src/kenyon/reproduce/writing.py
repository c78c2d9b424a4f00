"""A figure on disk: OUT/figures/SCALE/NAME.json with its data, the picture beside it, and a table as Markdown."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kenyon.experiments.results import checksummed_text
from kenyon.files import write_atomically
from kenyon.report.plots import draw_views
from kenyon.reproduce.figure import COLUMNS, DECIDED, Claim, Comparison, Figure
from kenyon.reproduce.registry import Reproduction
from kenyon.reproduce.wanted import Found, Place
from kenyon.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Written:
    """A figure or table, and the files that it is in."""

    name: str
    figure: Figure
    data: Path
    table: Path
    pictures: list[Path]


def write(reproduction: Reproduction, figure: Figure, found: Found, place: Place) -> Written:
    folder = place.out / "figures" / place.scale.name
    data, table = (folder / f"{reproduction.name}{suffix}" for suffix in (".json", ".md"))
    body = {
        "format": FORMAT,
        "name": reproduction.name,
        "shows": reproduction.shows,
        "scale": place.scale.name,
        "title": figure.title,
        "views": list(figure.views),
        "columns": figure.columns,
        "numbers": {"columns": list(COLUMNS), "rows": [c.row() for c in figure.comparisons]},
        "claims": [claim.as_dict() for claim in figure.claims],
        "notes": list(figure.notes),
        "origin": _origin(found, place),
    }
    write_atomically(data, (checksummed_text(body) + "\n").encode())
    write_atomically(table, markdown(reproduction.name, figure).encode())
    picture = folder / f"{reproduction.name}.png"
    if figure.draw is None:
        pictures = draw_views(figure.views, picture, title=figure.title, columns=figure.columns)
    else:
        pictures = [figure.draw(picture.with_suffix(suffix)) for suffix in (".png", ".pdf")]
        pictures.append(picture.with_suffix(".svg"))  # which comes with each
    return Written(reproduction.name, figure, data, table, pictures)


def _origin(found: Found, place: Place) -> dict[str, Any]:
    """The runs that everything comes from, by benchmark and name, and what put them together."""
    runs = {
        benchmark: {
            name: {
                "result": (had.folder / "result.json").relative_to(place.out).as_posix(),
                "seeds": [run.seed for run in had.result.runs],
                "devices": sorted({fleet.device for fleet in had.result.fleets}),
                "seconds": round(had.result.seconds, 2),
            }
            for name, had in hads.items()
        }
        for benchmark, hads in found.items()
    }
    versions = {"kenyon": __version__, "torch": torch.__version__, "python": platform.python_version()}
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"runs": runs, "versions": versions, "made": made}


def markdown(name: str, figure: Figure) -> str:
    parts = [f"## {name}: {figure.title}", *figure.notes]
    if figure.comparisons:
        parts.append(numbers_markdown(figure.comparisons))
    if figure.claims:
        parts.append(claims_markdown(figure.claims))
    return "\n\n".join(parts) + "\n"


def numbers_markdown(comparisons: Sequence[Comparison]) -> str:
    lines = ["| | published | measured | difference | in standard errors |", "|---|---:|---:|---:|---:|"]
    for one in comparisons:
        _, published, mean, sem, _, difference, errors = one.row()
        measured = "-" if mean is None else f"{mean:.4g}" + ("" if sem is None else f" ± {sem:.2g}")
        beside = (
            "-" if value is None else f"{value:{form}}"
            for value, form in ((published, ".2f"), (difference, "+.2f"), (errors, "+.1f"))
        )
        was, *rest = beside
        lines.append(f"| {one.what} | {was} | {measured} | " + " | ".join(rest) + " |")
    return "\n".join(lines)


def claims_markdown(claims: Sequence[Claim]) -> str:
    lines = ["| the paper says | difference | evidence |", "|---|---:|---|"]
    lines += [f"| {claim.text} | {claim.found} | {claim.verdict} |" for claim in claims]
    lines += ["", DECIDED] if any(claim.verdict == "undecided" for claim in claims) else []
    return "\n".join(lines)
