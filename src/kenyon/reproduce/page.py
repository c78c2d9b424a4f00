"""What the paper claims, and what was found: one Markdown page from the data of figures."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kenyon.checksums import check_json
from kenyon.errors import ResultsError
from kenyon.reproduce.figure import DECIDED
from kenyon.reproduce.registry import REPRODUCTIONS

MARKS = {"for": "holds", "against": "does not hold", "undecided": "undecided"}


def claims_page(folder: Path, pictures: str = "") -> str:
    """All claims of the figures in a folder, figure by figure; `pictures`: where these lie, seen from the page."""
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
    """How many claims of every figure hold, each a link to its part of the page."""
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
    """As GitHub and Python-Markdown both make it, where no two spaces or dashes meet."""
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
            apart = "-" if errors is None else f"{errors:+.1f}"
            lines.append(f"| {what} | {was:.2f} | {mean:.2f}{spread} | {difference:+.2f} | {apart} |")
        parts.append("\n".join(lines))
    if figure["claims"]:
        parts.append(_claims(figure["claims"]))
    return "\n\n".join(parts)


def _claims(claims: Sequence[dict[str, Any]]) -> str:
    """One row a claim, one column a benchmark (or whatever stands before the claim's first colon)."""
    table: dict[str, dict[str, str]] = {}
    for claim in claims:
        where, colon, text = claim["claim"].partition(": ")
        if not colon:
            where, text = "", where
        mark = MARKS[claim["verdict"]]
        told = mark if claim["verdict"] == "undecided" else f"**{mark}**"
        table.setdefault(text, {})[where] = f"{told} {_found(claim)}"
    places = list(dict.fromkeys(where for row in table.values() for where in row))
    lines = ["| the paper says | " + " | ".join(place or "difference" for place in places) + " |"]
    lines.append("|---" * (1 + len(places)) + "|")
    lines += [
        f"| {text} | " + " | ".join(row.get(place, "") for place in places) + " |" for text, row in table.items()
    ]
    return "\n".join(lines)


def _found(claim: dict[str, Any]) -> str:
    """The difference, as exact as its standard error (two digits)."""
    difference, sem = claim["difference"], claim["sem"]
    if not sem:
        return f"{difference:+.3g}" + ("" if sem == 0 else f", n {len(claim['runs'])}")
    digits = max(0, 1 - math.floor(math.log10(sem)))
    return f"{difference:+.{digits}f} ± {sem:.{digits}f}, n {len(claim['runs'])}"
