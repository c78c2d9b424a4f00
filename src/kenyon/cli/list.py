"""`kenyon list`: the benchmarks, the methods and the settings that `--set` may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kenyon.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from kenyon.benchmarks.registry import Benchmark
    from kenyon.rl.suites import SuiteBenchmark

SEVERAL = "parameters_of_5_learners"
COLUMNS = {  # that a terminal has room for; --json has more
    "benchmarks": ("name", "tasks", "classes", "parameters", SEVERAL, "about"),
    "methods": ("name", "learners", "about", "settings"),
    "settings": ("name", "meaning"),
}


def list_(
    what: Annotated[str, typer.Argument(help="benchmarks, methods or settings")] = "benchmarks",
    method: Annotated[str | None, typer.Option("--method", "-m", help="Only settings of this method.")] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", help="With the values that they have on this benchmark.")
    ] = None,
    json: Json = False,
) -> None:
    """List the benchmarks, the methods, or the settings that --set may change."""
    from functools import partial

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kenyon.cli.consoles import stdout, tell, tell_json
    from kenyon.errors import ConfigError, unknown
    from kenyon.experiments.results import plain
    from kenyon.experiments.settings import MEANINGS
    from kenyon.methods.registry import switches

    lists: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "benchmarks": _benchmarks,
        "methods": _methods,
        "settings": partial(_settings, method, benchmark),
    }
    if what not in lists:
        raise unknown("list", what, lists)
    if what != "settings" and (method or benchmark):
        raise ConfigError("--method and --benchmark are for `kenyon list settings`. Leave them out.")
    rows = lists[what]()
    if json:
        tell_json(plain({what: rows}))
        return
    hidden = switches() if what == "settings" and method is None else frozenset()
    rows = [row for row in rows if row["name"] not in hidden]
    shown = (*COLUMNS[what], *(["value"] if "value" in rows[0] else []))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, leading=1)
    for key in shown:
        numbers = all(type(row[key]) in (int, bool) for row in rows)
        head = "of 5\nlearners" if key == SEVERAL else key
        table.add_column(head, justify="right" if numbers else "left", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in shown))
    stdout().print(table)
    if hidden:
        names = ", ".join(name for name in MEANINGS if name in hidden)
        tell(f"Switches that definition sets, and that win over it: {names}.")
        tell("`kenyon list settings --method METHOD` explains those of a method.")


def _benchmarks() -> list[dict[str, Any]]:
    from kenyon.benchmarks.registry import BENCHMARKS
    from kenyon.rl.suites import SUITE_BENCHMARKS

    return [
        *map(_benchmark, BENCHMARKS.values()),
        *(_suite(suite) for suite in SUITE_BENCHMARKS.values() if suite.available),
    ]


def _suite(a: SuiteBenchmark) -> dict[str, Any]:
    from kenyon.methods import LEARNERS

    suite, ppo = a.suite, a.training
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
    from kenyon.methods import LEARNERS

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
        "cite": b.cite,
    }


def _methods() -> list[dict[str, Any]]:
    from kenyon.methods import METHODS
    from kenyon.methods.registry import switches

    single = switches()
    return [
        {
            "name": spec.name,
            "family": spec.family,
            "about": spec.summary,
            "cite": spec.cite,
            "learners": spec.learners,
            "keeps_samples": spec.keeps_samples,
            "settings": ", ".join(name for name in spec.settings if name not in single),
            "switches": ", ".join(name for name in spec.settings if name in single),
        }
        for spec in METHODS.values()
    ]


def _settings(method: str | None, benchmark: str | None) -> list[dict[str, Any]]:
    """Return the settings of a method or of any, with the values that the method has on a benchmark."""
    from dataclasses import asdict
    from inspect import signature

    from kenyon.errors import ConfigError
    from kenyon.experiments.config import configure, settings
    from kenyon.experiments.settings import MEANINGS, takes
    from kenyon.experiments.spec import named_benchmark
    from kenyon.methods import find_method

    names = settings(find_method(method).name) if method else tuple(MEANINGS)
    rows: list[dict[str, Any]] = [
        {"name": name, "meaning": MEANINGS.get(name, ""), "methods": takes(name)} for name in names
    ]
    if benchmark is None:
        return rows
    if method is None:
        raise ConfigError("Values on a benchmark are those of a method: give --method too.")
    config = configure(named_benchmark(benchmark), method)
    defaults = {n: p.default for n, p in signature(find_method(method).build).parameters.items()}
    values = defaults | asdict(config.training) | asdict(config.architecture) | {"definition": "published"}
    values |= config.hyper
    return [row | {"value": values[row["name"]]} for row in rows]


def _cell(value: Any) -> str:
    from kenyon.experiments.results import value_text

    if value is None:
        return "-"
    return f"{value:,}" if type(value) is int else value_text(value)
