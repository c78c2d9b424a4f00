"""What the paper claims, and what was found: one Markdown page from the data of figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError
from kenyon.reproduce.figure import SURE
from kenyon.reproduce.registry import REPRODUCTIONS

MARKS = {"for": "holds", "against": "does not hold", "undecided": "undecided"}


def claims_page(folder: Path, pictures: str = "") -> str:
    """All claims of the figures in a folder, figure by figure; `pictures`: where these lie, seen from the page."""
    figures = _figures(folder)
    claims = [claim for figure in figures for claim in figure["claims"]]
    count = Counter(claim["verdict"] for claim in claims)
    told = ", ".join(f"{MARKS[verdict]} {count[verdict]}" for verdict in MARKS)
    head = (
        f"{len(claims)} claims of {len(figures)} figures and tables: {told}. A claim is a difference between two "
        "results, run by run with equal seeds; it is decided where Student's t says so at the "
        f"{SURE:.0%} level: three runs have to be 4.3 standard errors from 0, five 2.8."
    )
    return "\n\n".join([head, *(_figure(figure, pictures) for figure in figures)])


def _figures(folder: Path) -> list[dict[str, Any]]:
    found = []
    for name in REPRODUCTIONS:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                found.append(json.loads(path.read_text()))
            except (OSError, ValueError) as error:
                raise ResultsError(f"{path} cannot be read ({error}). `kenyon reproduce {name}` makes it.") from error
    if not found:
        raise ResultsError(f"There are no figures in {folder}. `kenyon reproduce` makes them.")
    return found


def _figure(figure: dict[str, Any], pictures: str) -> str:
    name = figure["name"]
    shows = figure["shows"][0].upper() + figure["shows"][1:]
    parts = [f"### {name}: {figure['title']}", f"{shows}. {' '.join(figure['notes'])}".strip()]
    if pictures:
        parts.append(f"![{figure['title']}]({pictures}/{name}.png)")
    published = [row for row in figure["numbers"]["rows"] if row[1] is not None]
    if published:
        lines = ["| | published | measured | difference | in standard errors |", "|---|---:|---:|---:|---:|"]
        for what, was, mean, sem, _, difference, errors in published:
            spread = "" if sem is None else f" ± {sem:.2f}"
            apart = "-" if errors is None else f"{errors:+.1f}"
            lines.append(f"| {what} | {was:.2f} | {mean:.2f}{spread} | {difference:+.2f} | {apart} |")
        parts.append("\n".join(lines))
    if figure["claims"]:
        parts.append("\n".join(f"- {_claim(claim)}" for claim in figure["claims"]))
    return "\n\n".join(parts)


def _claim(claim: dict[str, Any]) -> str:
    spread = f" ± {claim['sem']:.2g}" if claim["sem"] else ""
    found = f"{claim['difference']:+.3g}{spread}" + ("" if claim["sem"] == 0 else f", n {len(claim['runs'])}")
    return f"**{MARKS[claim['verdict']]}**: {claim['claim']} ({found})"
