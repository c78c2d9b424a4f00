"""Synthetic results for the tests of the report, and a parser of its page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from kenyon.experiments.results import FleetOrigin, Result, Run


def made(
    method: str = "ewc",
    benchmark: str = "digits",
    *,
    seeds: int = 3,
    tasks: int = 4,
    learners: int = 1,
    joint: bool = False,
    point: dict[str, Any] | None = None,
    names: str = "task",
    **changed: Any,
) -> Result:
    """Make a result: accuracies of 90 for a task just learned, less afterwards, 50 before."""
    draw = np.random.default_rng(len(method) + 7 * seeds)
    runs = []
    for seed in range(seeds):
        matrix = np.tril(np.full((tasks, tasks), 85.0)) + np.triu(np.full((tasks, tasks), 50.0), 1)
        matrix = np.round(matrix + np.eye(tasks) * 5 + draw.normal(0, 2, matrix.shape), 2)
        own = np.round(draw.normal(80, 5, (tasks, learners)), 2)
        several = learners > 1
        runs.append(
            Run(
                seed,
                (matrix[-1:] if joint else matrix).tolist(),
                own.tolist(),
                [0.2] * tasks if several else [float("nan")] * tasks,
                [0.3] * tasks if several else [float("nan")] * tasks,
                [f"{names} {i}" for i in range(tasks)],
            )
        )
    config = {
        "benchmark": benchmark,
        "method": method,
        "tasks": tasks,
        "training": {"epochs": 5, "batch": 16},
        "architecture": {"learners": learners, "width": 8},
        "hyper": {"lambda_sp": 1000, **(point or {})},
    }
    for name, value in changed.items():
        part = next((p for p in ("training", "architecture", "hyper") if name in config[p]), None)
        (config[part] if part else config)[name] = value
    versions = {"kenyon": "0.1.0", "torch": "2.11"}
    fleet = FleetOrigin(list(range(seeds)), 12.5, "cpu", "float32", versions, "2026-01-02T03:04:05+00:00")
    alone = {seed: [88.0] * tasks for seed in range(seeds)}
    return Result(config, 4506, runs, [fleet], alone, point=point or {})


def saved(folder: Path, *results: Result, place: str = "") -> Path:
    """Save results as `kenyon run` does; names that cannot be file names are numbered."""
    for number, r in enumerate(results):
        usual = r.method.replace("-", "").isalnum() and len(r.method) < 20
        method = r.method if usual else f"method-{number}"
        path = folder / place / r.benchmark.replace("/", "_")[:50] / method
        for name, value in r.point.items():
            path = path / f"{name}={value}"
        r.save(path / "result.json")
    return folder


class Page(HTMLParser):
    """A parsed page: its elements, ids and references, and tables as lists of rows of texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[dict[str, Any]] = []
        self.text, self._cell, self._raw = "", None, None
        self.raw: list[tuple[dict[str, str | None], str]] = []  # script and style elements
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, attributes))
        if tag in ("script", "style"):
            self._raw = (attributes, "")
        if tag == "table":
            self.tables.append({"class": attributes.get("class"), "rows": [], "caption": ""})
        elif tag == "tr":
            self.tables[-1]["rows"].append([])
        elif tag in ("td", "th"):
            self._cell = {"tag": tag, "text": "", "links": [], **attributes}
            self.tables[-1]["rows"][-1].append(self._cell)
        elif tag == "a" and self._cell is not None:
            self._cell["links"].append(attributes.get("href"))
        elif tag == "caption":
            self._cell = self.tables[-1]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("table", "caption"):
            self._cell = None
        if tag in ("script", "style") and self._raw is not None:
            self.raw.append(self._raw)
            self._raw = None

    def handle_data(self, data: str) -> None:
        if self._raw is not None:
            self._raw = (self._raw[0], self._raw[1] + data)
            return
        self.text += data
        if self._cell is not None:
            key = "caption" if "rows" in self._cell else "text"
            self._cell[key] += data

    @property
    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.elements if a.get("id")]  # type: ignore[misc]

    @property
    def values(self) -> dict[str, Any]:
        (text,) = [body for a, body in self.raw if a.get("id") == "values"]
        body: dict[str, Any] = json.loads(text)
        return body

    def attributes(self, name: str) -> list[str]:
        return [a[name] or "" for _, a in self.elements if name in a]
