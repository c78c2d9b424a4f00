"""What a user of version 0.1 could import, call and type is still there: see `api`."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.golden import api
from tests.golden.api import FILE, calls_refused, collect, deprecated, keys, missing, unexcused

RECORDED = json.loads(FILE.read_text())
SOME = (("digits", "r-cifar-100", "cub-200", "rl-mini"), ("caf-ewc", "ewc", "agscl"))  # values are slow to look up


@pytest.fixture(scope="module")
def now() -> api.Api:
    return collect(SOME)


def test_nothing_is_missing(now: api.Api) -> None:
    gone = unexcused(missing(RECORDED, now), deprecated())
    assert not gone, "Not there any more, and not in deprecated.json:\n" + "\n".join(gone)


def test_what_is_deprecated_has_a_reason() -> None:
    assert all(isinstance(reason, str) and len(reason) > 10 for reason in deprecated().values())


def without(body: Any, *path: str) -> Any:
    """A copy in which an entry is missing."""
    found = copy.deepcopy(body)
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    if isinstance(inner, list):
        inner.remove(path[-1])
    else:
        del inner[path[-1]]
    return found


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("methods", "si"), "method si"),
        (("benchmarks", "core50"), "benchmark core50"),
        (("settings", "gamma"), "setting gamma"),
        (("settings", "gamma", "caf-mas"), "setting gamma of caf-mas"),
        (("commands", "data get"), "command data get"),
        (("commands", "run", "options", "--fleet"), "option run --fleet"),
        (("values", "digits", "ewc", "lambda_sp"), "value of lambda_sp of ewc on digits"),
        (("output", "verify", "counts/"), "verify counts/"),
        (("registered", "analysis", "flatness"), "analysis flatness"),
    ],
)
def test_what_is_missing_is_noticed(path: tuple[str, ...], name: str, now: api.Api) -> None:
    assert unexcused(missing(RECORDED, without(now, *path)), deprecated()) == [name]


def test_missing_imports_are_noticed(now: api.Api, monkeypatch: pytest.MonkeyPatch) -> None:
    import kenyon.regularizers

    monkeypatch.delattr(kenyon.regularizers, "AFS")
    assert unexcused(missing(RECORDED, now), deprecated()) == ["class kenyon.tools:AFS"]


@pytest.mark.parametrize(
    ("recorded", "now", "refused"),
    [
        ("(a, b=1, *, c=None)", "(a, b=1, more=2, *, c=None, d=3)", []),
        ("(a, b=1)", "(a, *, b=1)", ["b by its position"]),
        ("(a, b)", "(b, a)", ["a by its position", "b by its position"]),
        ("(a, *, b=1)", "(a)", ["b"]),
        ("(a, *, b=1)", "(a, **more)", []),
        ("(a, *, b=1)", "(a, *, b=2)", ["default of b"]),
        ("(a, *, b=1)", "(a, *, b)", ["default of b"]),
        ("(a, *, b=...)", "(a, *, b=2)", []),
        ("(a)", "(a, b)", ["b, which must be given now"]),
        ("(a, **more)", "(a)", ["more"]),
        ("(a)", None, ["signature"]),
    ],
)
def test_calls_that_are_refused(recorded: str, now: str | None, refused: list[str]) -> None:
    assert [name.strip("*") for name in calls_refused(recorded, now)] == refused


def test_deprecations_are_patterns() -> None:
    assert unexcused(["parameter kenyon:run fleet", "method si"], ["parameter kenyon:*"]) == ["method si"]


def test_keys_of_output() -> None:
    body = {"methods": {"caf-ewc": {"aac": [{"mean": 1}]}, "ewc": {}}, "seconds": 2}
    assert keys(body) == {"methods/", "methods/*/", "methods/*/aac/", "methods/*/aac/mean/", "seconds/"}
