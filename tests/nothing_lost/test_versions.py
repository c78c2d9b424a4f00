"""Files of other versions: older ones are read, newer ones are refused and left alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result
from kenyon.experiments.weights import read_weights
from kenyon.training import Interrupted
from tests.experiments.small import Counter, digits, numbers, stop_after
from tests.nothing_lost.small import FORMAT_1, GIVEN, the_state


def test_results_and_states_of_an_older_version_are_read(tmp_path: Path) -> None:
    """Files of the version whose states had no checksum."""
    folder = tmp_path / "digits/ewc"
    folder.mkdir(parents=True)
    shutil.copy(FORMAT_1 / "state-31d02360.safetensors", folder)
    counter = Counter()
    given: dict[str, Any] = {"epochs": 2, "width": 1, "batch": 64}
    result = digits(tmp_path, seeds=1, progress=counter, **given)["ewc"]
    assert counter.fleets[0][2] > 0
    old = Result.load(FORMAT_1 / "result.json")
    assert numbers(result) == numbers(old)
    read_weights(FORMAT_1 / "weights-0.safetensors", old.config, 0)


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(1), **GIVEN)
    path = the_state(tmp_path)
    newer = path.read_bytes().replace(b'"format":"2"', b'"format":"7"')
    path.write_bytes(newer)
    with pytest.raises(ResultsError, match=r"state of format 7, made by a newer version.*Update Kenyon"):
        digits(tmp_path, **GIVEN)
    assert path.read_bytes() == newer
    path.unlink()
    digits(tmp_path, **GIVEN)
    result = tmp_path / "digits/ewc/result.json"
    result.write_text(result.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(ResultsError, match=r"result of format 9, made by a newer version.*Update Kenyon"):
        digits(tmp_path, **GIVEN)
