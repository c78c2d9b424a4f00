"""The form of a result file: what stands where, checked when it is read, so that nothing later has to doubt it."""

from __future__ import annotations

import math
from typing import Any


def check_result(body: Any) -> None:
    """Raises ValueError that names the first thing out of place."""
    _of(body, dict, "the file")
    config = _of(body.get("config"), dict, "config")
    for name in ("benchmark", "method"):
        _of(config.get(name), str, f"config.{name}")
    _whole(config.get("tasks"), "config.tasks", least=1)
    for part in ("training", "architecture", "hyper"):
        _plain(_of(config.get(part), dict, f"config.{part}"), f"config.{part}")
    if "search" in config:
        _plain(_of(config["search"], dict, "config.search"), "config.search")
        _of(config["search"].get("name"), str, "config.search.name")
    _whole(config["training"].get("epochs"), "config.training.epochs", least=1)
    _whole(config["architecture"].get("learners"), "config.architecture.learners", least=1)
    _plain(_of(body.get("point", {}), dict, "point"), "point")
    _whole(body.get("parameters"), "parameters")
    seeds = [_check_run(run, f"runs[{number}]") for number, run in enumerate(_of(body.get("runs"), list, "runs"))]
    if len(set(seeds)) != len(seeds):
        raise ValueError("a seed is there twice")
    lengths = {len(run["tasks"]) for run in body["runs"]} | {config["tasks"]}
    if body["runs"] and len(lengths) > 1:
        raise ValueError("runs have different numbers of tasks")
    shapes = {tuple(map(len, (run["accuracy"], *run["own_accuracy"]))) for run in body["runs"] if _complete(run)}
    if len(shapes) > 1 or any(0 in shape for shape in shapes):
        raise ValueError("the numbers of runs have different shapes, or a complete run has none")
    for seed, values in _of(body.get("alone", {}), dict, "alone").items():
        _numbers(values, f"alone[{seed}]", config["tasks"])
    for number, fleet in enumerate(_of(body.get("fleets"), list, "fleets")):
        _check_fleet(fleet, f"fleets[{number}]")


def _complete(run: dict[str, Any]) -> bool:
    return run.get("diverged") is None


def _check_run(run: Any, where: str) -> int:
    _of(run, dict, where)
    seed = _whole(run.get("seed"), f"{where}.seed")
    tasks = _of(run.get("tasks"), list, f"{where}.tasks")
    for name in tasks:
        _of(name, str, f"{where}.tasks")
    rows = _of(run.get("accuracy"), list, f"{where}.accuracy")
    for row in rows:
        _numbers(row, f"{where}.accuracy", len(tasks))
    if not _complete(run):
        place = _of(run["diverged"], list, f"{where}.diverged")
        if len(place) != 2:
            raise ValueError(f"{where}.diverged is not a task and an epoch")
        for number in place:
            _whole(number, f"{where}.diverged")
    elif len(rows) not in (1, len(tasks)):
        raise ValueError(f"{where}.accuracy has {len(rows)} rows for {len(tasks)} tasks")
    measured = len(tasks) if rows else 0
    own = _of(run.get("own_accuracy"), list, f"{where}.own_accuracy")
    for name in ("own_accuracy", "cosine", "euclidean"):
        if len(_of(run.get(name), list, f"{where}.{name}")) != measured:
            raise ValueError(f"{where}.{name} has not one entry a task")
    for name in ("cosine", "euclidean"):
        _numbers(run[name], f"{where}.{name}", measured)
    for row in own:
        _numbers(row, f"{where}.own_accuracy", len(own[0]) if isinstance(own[0], list) else 0)
    return seed


def _check_fleet(fleet: Any, where: str) -> None:
    _of(fleet, dict, where)
    for seed in _of(fleet.get("seeds"), list, f"{where}.seeds"):
        _whole(seed, f"{where}.seeds")
    if fleet.get("seconds") is None:
        raise ValueError(f"{where}.seconds is not a number")
    _number(fleet["seconds"], f"{where}.seconds")
    for name in ("device", "precision", "finished"):
        _of(fleet.get(name), str, f"{where}.{name}")
    for value in _of(fleet.get("versions"), dict, f"{where}.versions").values():
        _of(value, str, f"{where}.versions")
    if "together" in fleet:
        _whole(fleet["together"], f"{where}.together")
    if "deterministic" in fleet:
        _of(fleet["deterministic"], bool, f"{where}.deterministic")


def _of(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        kinds = {dict: "a table", list: "a list", str: "a text", bool: "true or false"}
        raise ValueError(f"{where} is not {kinds[kind]}")
    return value


def _whole(value: Any, where: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{where} is not a whole number from {least} on")
    return value


def _number(value: Any, where: str) -> None:
    """Or null, where nothing was measured."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not _sane(value)):
        raise ValueError(f"{where} is not a number")


def _sane(value: float) -> bool:
    return math.isfinite(value) and abs(value) < 1e30


def _numbers(values: Any, where: str, count: int) -> None:
    if len(_of(values, list, where)) != count:
        raise ValueError(f"{where} has {len(values)} numbers, not {count}")
    for value in values:
        _number(value, where)


def _plain(table: dict[str, Any], where: str) -> None:
    """Settings are single values."""
    for name, value in table.items():
        if not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{where}.{name} is not a single value")
