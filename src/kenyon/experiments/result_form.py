"""The form of a result: what stands where, checked when it is read, so that nothing later has to doubt it."""

from __future__ import annotations

from typing import Any

from kenyon.utils.formats import WEIGHTS


def check_result(result: Any) -> None:
    """Raises ValueError that names the first thing out of place."""
    _check_common(result)
    config = result.config
    _need(_whole(config.get("tasks")) and config["tasks"] > 0, "config.tasks is no whole number from 1 on")
    _need("search" not in config or isinstance(config["search"].get("name"), str), "config.search has no name")
    shapes = set()
    for run in result.runs:
        where = f"the run of seed {run.seed!r:.40}"
        _need(_list(run.tasks, str), f"{where} has no list of task names")
        T = len(run.tasks)
        _need(_matrix(run.accuracy, T), f"accuracy of {where} is not rows of {T} numbers")
        per_cent = all(_between(0, row, 100) for row in run.accuracy)
        _need(per_cent, f"accuracy of {where} is not in per cent")
        own = run.own_accuracy
        width = len(own[0]) if isinstance(own, list) and own and isinstance(own[0], list) else 0
        _need(_matrix(own, width) and len(own) in (0, T), f"own_accuracy of {where} is not {T} rows of numbers")
        for values in (run.cosine, run.euclidean):
            _need(_numbers(values) and len(values) in (0, T), f"diversity of {where} is not {T} numbers")
        if run.complete:
            _need(bool(run.accuracy) and T > 0, f"{where} has no accuracy, but did not diverge")
            _need(len(own) == len(run.cosine) == len(run.euclidean) == T, f"{where} was not measured in the end")
            shapes.add((len(run.accuracy), T, len(own), width))
    _need(len(shapes) < 2, "its runs have different numbers of tasks or learners")
    for seed, values in result.alone.items():
        tasks = {len(run.tasks) for run in result.runs if run.seed == seed}
        _need(_numbers(values) and tasks <= {len(values)}, f"alone of seed {seed} is not a number a task")


def check_scores(result: Any) -> None:
    """The same of a result of games."""
    _check_common(result)
    games = result.config.get("games")
    _need(_list(games, str) and bool(games), "config.games is no list of names")
    moments = result.moments
    _need(isinstance(moments, list) and all(_list(m, int) and len(m) == 2 for m in moments), "moments are no pairs")
    complete = [run for run in result.runs if run.complete]
    if complete:
        _need({game for game, _ in moments} == set(range(len(games))), "a game has no moment at which it was tested")
    for run in result.runs:
        where = f"the run of seed {run.seed!r:.40}"
        _need(_matrix(run.scores, len(games)), f"scores of {where} are not rows of {len(games)} numbers")
        _need(not run.complete or len(run.scores) == len(moments), f"scores of {where} are not a row a moment")


def _check_common(result: Any) -> None:
    """What results of images and of games have alike."""
    config = result.config
    _need(isinstance(config, dict), "config is no object")
    for name in ("benchmark", "method"):
        _need(isinstance(config.get(name), str), f"config.{name} is no text")
    for name in ("training", "architecture", "hyper"):
        _need(isinstance(config.get(name), dict), f"config.{name} is no object")
    for name in ("training", "architecture", "hyper", "search"):
        _need(_plain(config.get(name, {})), f"config.{name} has settings that are no single values")
    _need(_whole(config["architecture"].get("learners")), "config.architecture.learners is no whole number")
    _need(_whole(config["training"].get("epochs")), "config.training.epochs is no whole number")
    _need(_whole(result.parameters), "parameters is no whole number")
    _need(_plain(result.point), "point is no object of single values")
    seeds = {run.seed for run in result.runs if _whole(run.seed)}
    _need(len(seeds) == len(result.runs), "a seed is no whole number, or there twice")
    for run in result.runs:
        place = run.diverged
        _need(place is None or (_list(place, int) and len(place) == 2), f"diverged of the run of seed {run.seed}")
    for fleet in result.fleets:
        _need(_list(fleet.seeds, int) and _seconds(fleet.seconds), "a fleet has no seeds or no seconds")
        _need(isinstance(fleet.versions, dict), "a fleet has no versions")
        texts = (fleet.device, fleet.precision, fleet.finished, *fleet.versions.values())
        _need(all(isinstance(t, str) for t in texts), "device, precision, date or versions of a fleet are no text")
        _need(fleet.together is None or _whole(fleet.together), "together of a fleet is no whole number")
        _need(fleet.sharing is None or _whole(fleet.sharing), "sharing of a fleet is no whole number")
        _need(fleet.deterministic in (None, True, False), "deterministic of a fleet is neither true nor false")
    for name, file in result.weights.items():
        _need(bool(WEIGHTS.fullmatch(name)), "weights names other files than weights of its runs")
        _need(_whole(file.size) and isinstance(file.sha256, str), f"weights has no size or no sha256 of {name}")
    _need(isinstance(result.unsealed, list) and seeds.issuperset(result.unsealed), "unsealed names other seeds")


def out_of_place(error: Exception) -> str:
    """What is wrong with a result, in words."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return repr(error) if isinstance(error, (TypeError, AttributeError)) else str(error)


def _need(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _plain(table: Any) -> bool:
    """Names and single values, as settings are."""
    if not isinstance(table, dict):
        return False
    return all(isinstance(v, str) or (isinstance(v, (int, float)) and abs(v) < 1e300) for v in table.values())


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64


def _number(value: Any) -> bool:
    """NaN, not measured, is one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) > 1e15


def _seconds(value: Any) -> bool:
    return _number(value) and value >= 0


def _numbers(values: Any) -> bool:
    if not isinstance(values, list):
        return False
    if {*map(type, values)} == {float}:  # most rows are, and a result has many
        return _between(-1e15, values, 1e15)
    return all(map(_number, values))


def _between(low: float, values: list[float], high: float) -> bool:
    """Whether no value is below or above. NaN, not measured, is neither."""
    if values and low <= min(values) and max(values) <= high:  # a NaN that is not the first is passed over
        return True
    return all(not (v < low or v > high) for v in values)


def _list(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(v, kind) for v in values)


def _matrix(rows: Any, width: int) -> bool:
    return isinstance(rows, list) and all(_numbers(row) and len(row) == width for row in rows)
