"""`kenyon list`: the benchmarks and the methods."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kenyon.cli.consoles import stdout
from kenyon.errors import unknown
from kenyon.experiments.benchmarks import BENCHMARKS, Benchmark
from kenyon.methods import LEARNERS, METHODS
from kenyon.rl.arenas import ARENAS, Arena

SEVERAL = f"parameters_of_{LEARNERS}_learners"
COLUMNS = {  # what a terminal has room for; --json tells more
    "benchmarks": ("name", "tasks", "classes", "parameters", SEVERAL, "about"),
    "methods": ("name", "learners", "about", "settings"),
}

HEADS = {SEVERAL: f"of {LEARNERS}\nlearners"}


def list_command(what: str, *, as_json: bool) -> None:
    lists = {"benchmarks": _benchmarks, "methods": _methods}
    if what not in lists:
        raise unknown("list", what, lists)
    rows = lists[what]()
    if as_json:
        print(json.dumps({what: rows}))
        return
    shown = COLUMNS[what]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, leading=1)
    for key in shown:
        numbers = all(isinstance(row[key], int) for row in rows)
        table.add_column(HEADS.get(key, key), justify="right" if numbers else "left", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in shown))
    stdout().print(table)


def _benchmarks() -> list[dict[str, Any]]:
    return [*map(_benchmark, BENCHMARKS.values()), *(_arena(arena) for arena in ARENAS.values() if arena.available)]


def _arena(a: Arena) -> dict[str, Any]:
    suite, ppo = a.suite, a.ppo
    return {
        "name": a.name,
        "about": suite.about,
        "tasks": len(suite.games),
        "classes": sum(suite.actions.values()),
        "input": "x".join(map(str, suite.shape)),
        "network": f"of width {a.width}",
        "parameters": a.parameters(a.width, 1),
        SEVERAL: a.parameters(a.width_for(LEARNERS), LEARNERS),
        "training": f"PPO, {ppo.steps:,} steps a game, {ppo.copies} copies",
        "needs": "nothing",
    }


def _benchmark(b: Benchmark) -> dict[str, Any]:
    counts, training = b.source.class_counts, b.training
    several = b.width_for(LEARNERS)
    return {
        "name": b.name,
        "about": b.source.summary,
        "tasks": len(counts),
        "classes": sum(counts),
        "input": "x".join(map(str, b.source.shape)),
        "network": b.backbone.__name__,
        "parameters": b.parameters(b.width, 1),
        SEVERAL: b.parameters(several, LEARNERS),
        "training": f"Adam {training.rate:g}, batch {training.batch}, {training.epochs} epochs a task",
        "needs": ", ".join(b.source.needs) or "nothing",
    }


def _methods() -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "about": spec.summary,
            "learners": spec.learners,
            "keeps_samples": spec.keeps_samples,
            "settings": ", ".join(spec.hyperparameters),
        }
        for spec in METHODS.values()
    ]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
