"""Figures on disk: OUT/figures/SCALE/NAME.json, pictures and a Markdown table; and a page of all claims."""

from __future__ import annotations

import datetime
import json
import math
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kenyon.errors import ResultsError
from kenyon.experiments.results import checksummed_text
from kenyon.paper.reproduce.figure import (
    COLUMNS,
    DECIDED,
    REPRODUCTIONS,
    Claim,
    Comparison,
    Figure,
    Place,
    Reproduction,
    Results,
)
from kenyon.report.plots import draw_views
from kenyon.utils.files import write_atomically
from kenyon.utils.formats import check_json
from kenyon.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Written:
    """A figure or table, and its files."""

    name: str
    figure: Figure
    data: Path
    table: Path
    pictures: list[Path]


def write(reproduction: Reproduction, figure: Figure, results: Results, place: Place) -> Written:
    """Save the data of a figure, its table and its pictures."""
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
        "origin": _origin(results, place),
    }
    write_atomically(data, (checksummed_text(body) + "\n").encode())
    write_atomically(table, markdown(reproduction.name, figure).encode())
    picture = folder / f"{reproduction.name}.png"
    if figure.draw is None:
        pictures = draw_views(figure.views, picture, title=figure.title, columns=figure.columns)
    else:
        pictures = [figure.draw(picture.with_suffix(suffix)) for suffix in (".png", ".pdf")]
        pictures.append(picture.with_suffix(".svg"))  # written with each of them
    return Written(reproduction.name, figure, data, table, pictures)


def _origin(results: Results, place: Place) -> dict[str, Any]:
    """The runs that a figure is made from, by benchmark and name, with versions and time."""
    runs = {
        benchmark: {
            name: {
                "result": (one.folder / "result.json").relative_to(place.out).as_posix(),
                "seeds": [run.seed for run in one.result.runs],
                "devices": sorted({fleet.device for fleet in one.result.fleets}),
                "seconds": round(one.result.seconds, 2),
            }
            for name, one in variants.items()
        }
        for benchmark, variants in results.items()
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
        first, *rest = (
            "-" if value is None else f"{value:{form}}"
            for value, form in ((published, ".2f"), (difference, "+.2f"), (errors, "+.1f"))
        )
        lines.append(f"| {one.what} | {first} | {measured} | " + " | ".join(rest) + " |")
    return "\n".join(lines)


def claims_markdown(claims: Sequence[Claim]) -> str:
    lines = ["| the paper says | difference | evidence |", "|---|---:|---|"]
    lines += [f"| {claim.text} | {claim.found} | {claim.verdict} |" for claim in claims]
    lines += ["", DECIDED] if any(claim.verdict == "undecided" for claim in claims) else []
    return "\n".join(lines)


MARKS = {"for": "holds", "against": "does not hold", "undecided": "undecided"}


def claims_page(folder: Path, pictures: str = "") -> str:
    """Return all claims of the figures in a folder as Markdown; `pictures`: their folder, relative to the page."""
    figures = _figures(folder)
    claims = [claim for figure in figures for claim in figure["claims"]]
    count = Counter(claim["verdict"] for claim in claims)
    head = (
        f"{len(claims)} claims of {len(figures)} figures and tables: {count['for']} hold, {count['against']} do not, "
        f"{count['undecided']} are undecided. {DECIDED}"
    )
    return "\n\n".join([head, _index(figures), *(_figure(figure, pictures) for figure in figures)])


def _figures(folder: Path) -> list[dict[str, Any]]:
    found = []
    for name in REPRODUCTIONS:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                body = json.loads(path.read_text())
                check_json(body, path)
            except (OSError, ValueError) as error:
                raise ResultsError(f"{path} cannot be read ({error}). `kenyon reproduce {name}` makes it.") from error
            found.append(body)
    if not found:
        raise ResultsError(f"There are no figures in {folder}. `kenyon reproduce` makes them.")
    return found


def _index(figures: Sequence[dict[str, Any]]) -> str:
    """Counts of verdicts by figure, with links to their parts of the page."""
    lines = ["| | " + " | ".join(MARKS.values()) + " |", "|---" + "|---:" * len(MARKS) + "|"]
    for figure in figures:
        if figure["claims"]:
            count = Counter(claim["verdict"] for claim in figure["claims"])
            cells = " | ".join(str(count[verdict] or "") for verdict in MARKS)
            lines.append(f"| [{_heading(figure)}](#{_anchor(_heading(figure))}) | {cells} |")
    return "\n".join(lines)


def _heading(figure: dict[str, Any]) -> str:
    return f"{figure['name']}: {figure['title']}"


def _anchor(heading: str) -> str:
    """Return the anchor that both GitHub and Python-Markdown make, if no two spaces or dashes meet."""
    return re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-")


def _figure(figure: dict[str, Any], pictures: str) -> str:
    name = figure["name"]
    shows = figure["shows"][0].upper() + figure["shows"][1:]
    parts = [f"### {_heading(figure)}", f"{shows}. {' '.join(figure['notes'])}".strip()]
    if pictures:
        picture = f"{pictures}/{name}.png"
        parts.append(f"[![{figure['title']}]({picture})]({picture})")  # a click shows it in full size
    published = [row for row in figure["numbers"]["rows"] if row[1] is not None]
    if published:
        lines = ["| | published | measured | difference | in standard errors |", "|---|---:|---:|---:|---:|"]
        for what, was, mean, sem, _, difference, errors in published:
            spread = "" if sem is None else f" ± {sem:.2f}"
            in_errors = "-" if errors is None else f"{errors:+.1f}"
            lines.append(f"| {what} | {was:.2f} | {mean:.2f}{spread} | {difference:+.2f} | {in_errors} |")
        parts.append("\n".join(lines))
    if figure["claims"]:
        parts.append(_claims(figure["claims"]))
    return "\n\n".join(parts)


def _claims(claims: Sequence[dict[str, Any]]) -> str:
    """A row per claim, a column per benchmark (the text before the claim's first colon)."""
    table: dict[str, dict[str, str]] = {}
    for claim in claims:
        where, colon, text = claim["claim"].partition(": ")
        if not colon:
            where, text = "", where
        mark = MARKS[claim["verdict"]]
        shown = mark if claim["verdict"] == "undecided" else f"**{mark}**"
        table.setdefault(text, {})[where] = f"{shown} {_difference(claim)}"
    places = list(dict.fromkeys(where for row in table.values() for where in row))
    lines = ["| the paper says | " + " | ".join(place or "difference" for place in places) + " |"]
    lines.append("|---" * (1 + len(places)) + "|")
    lines += [
        f"| {text} | " + " | ".join(row.get(place, "") for place in places) + " |" for text, row in table.items()
    ]
    return "\n".join(lines)


def _difference(claim: dict[str, Any]) -> str:
    """The difference, rounded to two digits of its standard error."""
    difference, sem = claim["difference"], claim["sem"]
    if not sem:
        return f"{difference:+.3g}" + ("" if sem == 0 else f", n {len(claim['runs'])}")
    digits = max(0, 1 - math.floor(math.log10(sem)))
    return f"{difference:+.{digits}f} ± {sem:.{digits}f}, n {len(claim['runs'])}"
