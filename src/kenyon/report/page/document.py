"""The page: one file with its style, script and values inside, which makes no requests.

A content policy with the hashes of the script and the style lets the browser run these and nothing else, whatever a
result file contains.

Methods have the same color and mark everywhere on the page. There are nine colors, each for a light and a dark page.
Between any two of them the distance in Oklab is at least 0.08 for people with red-, green- or blue-blindness, and
their contrast with the page is at least 3 : 1 (tests measure both). Further methods repeat colors with another mark;
names are next to the marks if there is room.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from kenyon.errors import ResultsError
from kenyon.experiments.results import ResultBase
from kenyon.methods.registry import hue_of, place
from kenyon.report.formats import published_sentence
from kenyon.report.page.entries import Group, Section, sections_of
from kenyon.report.page.games import Suite, suite_part
from kenyon.report.page.html import Figures, Ids, Markup, breakable, joined, tag
from kenyon.report.page.summary import (
    Origin,
    best_entry,
    origin_part,
    overview_table,
    pm,
    runs_table,
    standing,
    summary_tables,
)
from kenyon.report.tables import HELD_OUT, REFERENCE
from kenyon.utils.text import counted
from kenyon.utils.views import View, ViewError, checked, frames
from kenyon.version import __version__

# name: (on a light page, on a dark page)
PALETTE = {
    "red": ("#b6350c", "#ff7549"),
    "blue": ("#17497b", "#3584ce"),
    "gold": ("#b88414", "#eac472"),
    "green": ("#4a875f", "#46b67e"),
    "pink": ("#d851a5", "#f596bb"),
    "purple": ("#8e3eb7", "#c48ff6"),
    "sky": ("#2b94d1", "#72d9fc"),
    "brown": ("#582a00", "#ac6643"),
    "grey": ("#5e646b", "#81878f"),
}
PAPER = ("#fffdf9", "#15171b")
MARKS = ("circle", "square", "triangle", "diamond", "plus", "cross")


def styles(methods: Mapping[str, str]) -> dict[str, list[str]]:
    """Return label -> [color, mark] for labels with their methods: a color per method, a mark per label of a method.

    Methods with a color of their own take it first; the others get the rest, in the order of their families.
    If all labels are of one method, they differ in color.
    """
    if len(set(methods.values())) == 1:
        usual, n = hue_of(next(iter(methods.values()))), len(PALETTE)
        colors = sorted(PALETTE, key=lambda color: color != usual)  # its own first
        return {label: [colors[i % n], MARKS[i // n % len(MARKS)]] for i, label in enumerate(methods)}
    names = sorted(set(methods.values()), key=place)
    taken = {m: hue for m in names if (hue := hue_of(m)) is not None}
    uses = dict.fromkeys(PALETTE, 0)
    for color in taken.values():
        uses[color] += 1
    rounds = dict.fromkeys(taken, 0)
    for method in names:
        if method not in taken:
            color = min(PALETTE, key=lambda c: uses[c])
            taken[method], rounds[method] = color, uses[color]
            uses[color] += 1
    found: dict[str, list[str]] = {}
    points = dict.fromkeys(names, 0)
    for label, method in methods.items():
        found[label] = [taken[method], MARKS[(rounds[method] + points[method]) % len(MARKS)]]
        points[method] += 1
    return found


def css_variables() -> str:
    """Return the palette as CSS custom properties, each for both schemes."""
    pairs = {**PALETTE, "paper": PAPER}
    return "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in pairs.items())


LARGEST = 5_000_000  # bytes of a page
SCRIPTS = ("draw", "explore", "lines", "scatter", "bars", "heatmap", "tables", "page")


def whole_page(groups: Sequence[Group], name: str, suites: Sequence[Suite] = ()) -> str:
    """Make the page. If it is too large, leave out all but the first frames of heat maps, and then images."""
    sections = {g.benchmark: sections_of(g) for g in groups}
    for lean, left_out in enumerate(("", "the matrices of single runs", "the matrices of single runs, and images")):
        kept = {b: [_lean(s, lean) for s in some] for b, some in sections.items()}
        page = _page(groups, suites, name, kept, left_out)
        if len(page.encode()) < LARGEST:
            return page
    raise ResultsError(
        f"The page would have {len(page.encode()) / 1e6:.1f} MB; {LARGEST / 1e6:.0f} MB is the most. "
        "Make a report of a folder with fewer results."
    )


def _lean(section: Section, step: int) -> Section:
    views = [v for v in section.views if step < 2 or v["kind"] != "images"]
    return Section(section.title, [_first_frame(v) if step else v for v in views], section.note, section.small)


def _first_frame(view: View) -> View:
    return {**view, "data": view["data"][:1]} if view["kind"] == "heatmap" and frames(view) else view


def _page(
    groups: Sequence[Group], suites: Sequence[Suite], name: str, sections: dict[str, list[Section]], left_out: str
) -> str:
    ids = Ids()
    for taken in ("top", "overview", "values", "tip", "said"):
        ids.new(taken)
    places = {g.benchmark: ids.new("benchmark", g.benchmark) for g in groups}
    origins = {g.benchmark: {e.label: ids.new("origin", g.benchmark, e.label) for e in g.entries} for g in groups}
    figures = Figures(ids)
    games = {s.title: ids.new("games", s.title) for s in suites}
    played = {s.title: {e.label: ids.new("origin", s.title, e.label) for e in s.entries} for s in suites}
    overview = _overview(groups, figures, places, origins)
    parts = [_benchmark(g, sections[g.benchmark], figures, places[g.benchmark], origins[g.benchmark]) for g in groups]
    parts += [suite_part(s, figures, games[s.title], played[s.title]) for s in suites]
    notes = tag("p", f"To keep the page below {LARGEST // 10**6} MB, it leaves out {left_out}.", class_="note")
    labels = {e.label: e.result.method for g in groups for e in g.shown}
    labels |= {e.label: e.result.method for s in suites for e in s.entries}
    values = {"styles": styles(labels), "views": figures.views, "names": list(figures.names)}
    style, script = _asset("page.css", palette=True), "".join(_asset(f"{part}.js") for part in SCRIPTS)
    early = _asset("theme.js")
    script = f'"use strict";(() => {{\n{script}}})();\n'
    title = f"{name}: Kenyon report"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, early, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{style}</style><script>{early}</script>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#overview" if groups else "#top", class_="skip"),
        _header(groups, suites, name, [*places.items(), *games.items()]),
        tag("main", overview if groups else None, notes if left_out else None, parts, id="top"),
        tag("footer", tag("p", f"Made by Kenyon {__version__}. This file is complete: it needs no network.")),
        Markup(f'<script type="application/json" id="values">{_json(values)}</script>'),
        Markup(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{Markup(str(tag('html', head, body, lang='en')))}\n"


def _header(groups: Sequence[Group], suites: Sequence[Suite], name: str, places: Sequence[tuple[str, str]]) -> Markup:
    results: list[ResultBase] = [e.result for g in groups for e in g.shown]
    results += [e.result for s in suites for e in s.entries]
    others = sum(len(e.result.runs) for g in groups for e in g.entries if e not in g.shown)
    runs = [run for r in results for run in r.runs]
    lost = sum(not run.complete for run in runs)
    dates = sorted(f.finished[:10] for r in results for f in r.fleets)
    when = f", finished {dates[0]}" + (f" to {dates[-1]}" if dates[0] != dates[-1] else "") if dates else ""
    facts = [counted(len(results), "result"), counted(len(runs), "run") + (f" ({lost} diverged)" if lost else "")]
    facts += [f"{others} more of {REFERENCE} to measure forward transfer by"] if others else []
    kinds = [counted(len(groups), "benchmark")] if groups else []
    kinds += [f"{counted(len(suites), 'suite')} of games"] if suites else []
    places = [*([("Overview", "overview")] if groups else []), *places]
    links = [tag("li", tag("a", title, href=f"#{place}")) for title, place in places]
    return tag(
        "header",
        tag("p", "Kenyon report", class_="kicker"),
        tag("h1", name),
        tag("p", f"{', '.join([*kinds, *facts])}{when}.", class_="lede"),
        tag("nav", tag("ul", links), aria_label="Benchmarks"),
        tag("button", "Dark", type="button", class_="theme", hidden=True),
    )


def _overview(
    groups: Sequence[Group], figures: Figures, places: dict[str, str], origins: dict[str, dict[str, str]]
) -> Markup:
    made = [checked(standing(g)) for g in _by_height(groups)]
    views = [figures.figure(view, "overview") for view in made]
    known = any(one["reference"] is not None for view in made for one in view["data"])
    note = (
        "Average accuracy of all tasks after the last one, in per cent. Large marks: mean with one standard error. "
        f"Small marks: runs.{' Upright lines: published.' if known else ''}"
    )
    if any(len(g.drawn) < sum(e.aac is not None for e in g.main) for g in groups):
        note += " Of many points of a grid the best are drawn."
    shown = {g.benchmark: {e.label: e.result for e in g.shown} for g in groups}
    return tag(
        "section",
        tag("h2", "Overview", id="overview-title"),
        tag("p", note, class_="note") if views else None,
        tag("p", published_sentence(shown), class_="note") if known else None,
        tag("div", views, class_="views"),
        overview_table(groups, places, origins),
        id="overview",
        aria_labelledby="overview-title",
        tabindex=-1,
    )


def _by_height(groups: Sequence[Group]) -> list[Group]:
    """Sort charts by height, so that neighbors have the same."""
    return sorted((g for g in groups if g.drawn), key=lambda g: len(g.drawn))


def _benchmark(
    group: Group, sections: Sequence[Section], figures: Figures, place: str, origins: dict[str, str]
) -> Markup:
    best, tasks = best_entry(group), sorted({e.result.config["tasks"] for e in group.entries})
    seeds = {run.seed for e in group.entries for run in e.result.runs}
    facts = f"{' or '.join(map(str, tasks))} {'task' if tasks == [1] else 'tasks'}, {counted(len(seeds), 'seed')}."
    winner = None
    if best is not None and len(group.main) > 1:
        aac = tag("a", f"{pm(best.aac)} %", href=f"#{origins[best.label]}")
        on = " on held-out training data" if group.held_out else ""
        winner = joined(
            f" Best average accuracy{on}: ", tag("strong", tag("bdi", breakable(best.label))), " with ", aac, "."
        )
    titles = [*(s.title for s in sections), "Origin"]
    places = [figures.ids.new(place, title) for title in titles]
    return tag(
        "section",
        tag("h2", group.benchmark, id=f"{place}-title"),
        tag("p", facts, winner, class_="lede"),
        tag("p", HELD_OUT, class_="note") if group.held_out else None,
        _within(group, [*zip(titles, places, strict=True)]),
        summary_tables(group, origins),
        [figures.section(_checked(s), p) for s, p in zip(sections, places, strict=False)],
        _origins(group, origins, places[-1]),
        id=place,
        class_="benchmark",
        aria_labelledby=f"{place}-title",
    )


def _within(group: Group, places: Sequence[tuple[str, str]]) -> Markup:
    links = [tag("li", tag("a", title, href=f"#{place}")) for title, place in places]
    return tag("nav", tag("ul", links), aria_label=f"Parts of {group.benchmark}", class_="within")


def _origins(group: Group, places: dict[str, str], place: str) -> Markup:
    hidden = len(group.shown) < len(group.entries)
    alone = f" {REFERENCE} learns every task from a random start: forward transfer is measured against it." * hidden
    some = [Origin(e.label, e.file, e.result, runs_table(e.result), places[e.label]) for e in group.entries]
    return origin_part(f"The file, settings, runs and machines behind every number.{alone}", some, place)


def _checked(section: Section) -> Section:
    try:
        views = [checked(view) for view in section.views]
    except ViewError as error:
        raise ViewError(f"The section '{section.title}' has a view that is not valid: {error}.") from error
    return Section(section.title, views, section.note, section.small)


def _asset(name: str, *, palette: bool = False) -> str:
    text = files("kenyon.report.page").joinpath(name).read_text(encoding="utf-8")
    return f":root{{{css_variables()}}}\n{text}" if palette else text


def _policy(style: str, *scripts: str) -> str:
    """A content policy: no requests, and only these scripts and this style, by their hashes."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = (
        "default-src 'none'",
        f"script-src {' '.join(map(digest, scripts))}",
        f"style-src {digest(style)}",
        "img-src data:",
    )
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _json(values: object) -> str:
    """JSON that cannot close its script element."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
