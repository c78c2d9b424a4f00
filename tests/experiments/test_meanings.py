"""Every setting is explained, and no other."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from kenyon.experiments.config import Architecture, settings
from kenyon.experiments.settings import MEANINGS, takes
from kenyon.methods import METHODS
from kenyon.training import Training

OURS = sorted(name for name, spec in METHODS.items() if spec.build.__module__.startswith("kenyon."))


def words(hint: Any) -> set[str]:
    """That a setting may have as values."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*(words(part) for part in get_args(hint)))


def test_what_is_explained_is_there() -> None:
    assert set(MEANINGS) == {name for method in OURS for name in settings(method)}
    assert takes("eta") == ["agscl"] and set(takes("rate")) >= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_word_that_a_setting_may_have_is_named(name: str) -> None:
    for kind in (METHODS[name].build, Training, Architecture):
        for setting, hint in get_type_hints(kind).items():
            for word in words(hint) if setting in MEANINGS else ():
                assert word in MEANINGS[setting], f"{setting} may be {word}"
