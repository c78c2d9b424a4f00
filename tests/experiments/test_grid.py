"""Grids: which points there are, that each is what it would be alone, where it is kept, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kenyon.data import find_source
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.compare import load_results
from kenyon.experiments.config import configure, parse_settings
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.results import Result, point_label, point_name, value_text
from kenyon.experiments.runner import plan, run
from kenyon.experiments.training import build_method, build_trainer
from kenyon.methods import METHODS, Method, find_method, method
from kenyon.methods.penalties.weights import StabilityProtection
from tests.experiments.small import Counter, all_numbers, digits, numbers, strengths_of, weights

CAF = {"learners": 2, "epochs": 2, "batch": 32}
GRID = {"lambda_sp": [1.0, 1e4], "lambda_af": [1e-8, 1e-2]}
LABELS = [f"caf-ewc[lambda_sp={sp},lambda_af={af}]" for sp in ("1", "10000") for af in ("1e-08", "0.01")]


# ---------------------------------------------------------------------- a point is what it would be alone


def test_points_train_together_and_each_equals_the_same_alone(tmp_path: Path) -> None:
    counter = Counter()
    together = digits(tmp_path / "grid", ["caf-ewc"], progress=counter, **CAF, **GRID)
    assert list(together) == LABELS
    (cells,) = counter.cells  # one fleet: four points, two seeds each
    assert [seed for _, seed in cells] == [0, 1] * 4 and len({name for name, _ in cells}) == 4
    for label, result in together.items():
        alone = digits(tmp_path / label, ["caf-ewc"], **CAF, **result.point)["caf-ewc"]
        assert numbers(result) == numbers(alone)
        assert result.config == alone.config  # each has its own, in full
        folder = point_name(result.point)
        for seed in (0, 1):
            file = f"weights-{seed}.safetensors"
            point_weights = (tmp_path / "grid/digits/caf-ewc" / folder / file).read_bytes()
            assert point_weights == (tmp_path / label / "digits/caf-ewc" / file).read_bytes()
    assert len(set(all_numbers(together).values())) == 4  # and the strengths matter


@pytest.mark.parametrize("name", ["mas", "si", "ewc-af1", "ewc-af2", "pnc"])
def test_strengths_of_every_kind_differ_between_points(name: str, tmp_path: Path) -> None:
    strength = find_method(name).strengths[-1]
    grid = digits(tmp_path / "grid", [name], 1, epochs=2, **{strength: [0.5, 50.0]})
    for label, value in ((f"{name}[{strength}=0.5]", 0.5), (f"{name}[{strength}=50]", 50.0)):
        alone = digits(tmp_path / label, [name], 1, epochs=2, **{strength: value})
        assert numbers(grid[label]) == numbers(alone[name])


def test_equal_seeds_are_equal_at_every_point() -> None:
    """A paired comparison: the same first weights, the same order of samples and the same dropout."""
    config = {lam: configure("digits", "ewc", tasks=2, overrides={"lambda_sp": lam}) for lam in (1.0, 1e3)}
    cells = [RunSpec(GridPoint(c, {"lambda_sp": lam}), seed) for lam, c in config.items() for seed in (4, 9)]
    trainer = build_trainer(cells, find_source("digits").load(None), torch.device("cpu"))
    assert trainer.fleet.seeds == (4, 9, 4, 9)
    assert torch.equal(trainer.theta[:2], trainer.theta[2:]) and not torch.equal(trainer.theta[0], trainer.theta[1])
    assert trainer.fleet.streams[0] is trainer.fleet.streams[2]
    trainer.enter_phase()
    engine = trainer.engine
    engine.train_epoch(lambda: None, trainer.theta)
    for drawn in (engine.loader.index, engine.draws.keys):
        assert torch.equal(drawn[:2], drawn[2:]) and not torch.equal(drawn[0], drawn[1])


def test_only_strengths_that_differ_become_tensors() -> None:
    points = [
        GridPoint(configure("digits", "caf-ewc", overrides={"gamma": gamma, "lambda_sp": 7.0}))
        for gamma in (0.0, 0.5)
    ]
    built = build_method([RunSpec(p, 0) for p in points], torch.device("cpu"))
    protection, _, divergence = built.penalties
    assert protection.strength == 7.0 and isinstance(protection.strength, float)
    assert isinstance(divergence.strength, torch.Tensor) and divergence.strength.tolist() == [0.0, 0.5]
    assert divergence.strength.dtype == torch.float32


def test_strengths_are_known_from_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_method("caf-ewc").strengths == ("lambda_sp", "lambda_af", "gamma")
    assert find_method("ewc-af2").strengths == ("lambda_sp", "lambda_af")
    assert find_method("finetune").strengths == ()
    monkeypatch.setattr("kenyon.methods.registry.METHODS", dict(METHODS))  # what follows is not there for other tests

    def plain_protection(lambda_sp, factor: float = 1.0):  # type: ignore[no-untyped-def]
        """Without annotations: its points train one after another."""
        return Method(None, (StabilityProtection(lambda_sp, factor),))

    method(plain_protection)
    assert find_method("plain-protection").strengths == ()
    plain_protection.__annotations__ = {"lambda_sp": "OnlyForTheTypeChecker"}
    assert find_method("plain-protection").strengths == ()


def test_other_settings_train_in_fleets_of_their_own(tmp_path: Path) -> None:
    counter = Counter()
    grid = digits(tmp_path / "grid", seeds=2, progress=counter, fisher=["published", "exact"], width=[2, 3])
    assert list(grid) == [f"ewc[width={w},fisher={f}]" for w in (2, 3) for f in ("published", "exact")]
    assert [[seed for _, seed in cells] for cells in counter.cells] == [[0, 1]] * 4
    mixed = digits(tmp_path / "mixed", seeds=1, progress=(both := Counter()), lambda_sp=[1.0, 9.0], epochs=[1, 2])
    assert [len(cells) for cells in both.cells] == [2, 2]  # for each number of epochs, both strengths together
    for label in ("ewc[width=3,fisher=exact]", "ewc[epochs=2,lambda_sp=9]"):
        result = (grid | mixed)[label]
        alone = digits(tmp_path / label, seeds=len(result.runs), **result.point)["ewc"]
        assert numbers(result) == numbers(alone)


def test_a_method_without_the_setting_runs_once(tmp_path: Path) -> None:
    counter = Counter()
    given: Any = {"lambda_sp": [1.0, 10.0], "gamma": [0.01, 0.1]}
    results = digits(tmp_path, ["finetune", "ewc", "caf-ewc"], 1, progress=counter, **given)
    assert list(results)[:3] == ["finetune", "ewc[lambda_sp=1]", "ewc[lambda_sp=10]"] and len(results) == 7
    assert [len(cells) for cells in counter.cells] == [1, 2, 4]
    assert (tmp_path / "digits/finetune/result.json").is_file()


def test_the_reference_is_trained_once(tmp_path: Path) -> None:
    counter = Counter()
    results = digits(tmp_path, fwt=True, progress=counter, lambda_sp=[1.0, 1e4])
    assert [fleet[:2] for fleet in counter.fleets] == [("random-init", (0, 1)), ("ewc", (0, 1, 0, 1))]
    alone = Result.load(tmp_path / "digits/random-init/result.json")
    for result in results.values():
        assert result.alone == {r.seed: [row[t] for t, row in enumerate(r.accuracy)] for r in alone.runs}
        assert result.fwt is not None


def test_a_reference_has_the_settings_of_the_points_it_belongs_to(tmp_path: Path) -> None:
    results = digits(tmp_path, fwt=True, epochs=[1, 3], lambda_sp=[1.0, 2.0])
    for result in results.values():
        epochs = result.point["epochs"]
        reference = Result.load(tmp_path / f"digits/random-init/epochs={epochs}/result.json")
        assert result.alone[0] == [row[t] for t, row in enumerate(reference.runs[0].accuracy)]


def test_a_point_that_diverges_harms_no_other(tmp_path: Path) -> None:
    extreme = 3e38  # the penalty overflows as soon as there is something to protect
    results = digits(tmp_path / "grid", lambda_sp=[10.0, extreme], epochs=2)
    good, bad = results.values()
    assert good.aac is not None and numbers(good) == numbers(
        digits(tmp_path / "good", lambda_sp=10.0, epochs=2)["ewc"]
    )
    assert bad.aac is None and all(r.diverged is not None and r.diverged[0] == 1 for r in bad.runs)
    assert numbers(bad) == numbers(digits(tmp_path / "bad", lambda_sp=extreme, epochs=2)["ewc"])
    assert len(weights(tmp_path / "grid")) == 2


# ---------------------------------------------------------------------- where it is kept


def test_each_point_has_its_folder_with_its_whole_configuration(tmp_path: Path) -> None:
    digits(tmp_path, ["caf-ewc"], 1, learners=2, **GRID)
    folder = tmp_path / "digits/caf-ewc"
    names = {path.name for path in folder.iterdir()}
    assert names == {label.removeprefix("caf-ewc[").removesuffix("]") for label in LABELS}
    body = json.loads((folder / "lambda_sp=10000,lambda_af=1e-08/result.json").read_text())
    assert body["point"] == {"lambda_sp": 1e4, "lambda_af": 1e-8}
    assert body["config"]["hyper"] == {"lambda_sp": 1e4, "lambda_af": 1e-8, "gamma": 0.02}
    assert body["fleets"][0]["together"] == 4 and body["fleets"][0]["seeds"] == [0]
    found = load_results(tmp_path)["digits"]
    assert list(found) == LABELS  # in the order of the values, not of the letters


def test_a_single_value_is_stored_as_ever(tmp_path: Path) -> None:
    result = digits(tmp_path, lambda_sp=5.0)
    assert list(result) == ["ewc"]
    body = json.loads((tmp_path / "digits/ewc/result.json").read_text())
    assert "point" not in body and "together" not in body["fleets"][0]


def test_points_that_are_there_are_not_trained_again(tmp_path: Path) -> None:
    first = digits(tmp_path, lambda_sp=[1.0, 100.0])
    counter = Counter()
    assert all_numbers(digits(tmp_path, lambda_sp=[100, 1], progress=counter)) == all_numbers(first)
    assert counter.cells == []
    larger = digits(tmp_path, lambda_sp=[1.0, 10.0, 100.0], progress=counter)
    assert counter.cells == [[("lambda_sp=10", 0), ("lambda_sp=10", 1)]]
    assert all_numbers(larger) | all_numbers(first) == all_numbers(larger)
    digits(tmp_path, lambda_sp=[100.0], seeds=4, progress=(alone := Counter()))  # a list of one: that point alone
    assert alone.cells == [[("lambda_sp=100", 2), ("lambda_sp=100", 3)]]
    digits(tmp_path, lambda_sp=[1.0, 100.0], seeds=4, progress=(rest := Counter()))
    assert rest.cells == [[("lambda_sp=1", 2), ("lambda_sp=1", 3)]]


def test_another_configuration_in_a_points_folder_is_refused(tmp_path: Path) -> None:
    digits(tmp_path, lambda_sp=[1.0, 2.0])
    with pytest.raises(ResultsError, match=r"lambda_sp=2.*epochs was 1, now 2"):
        digits(tmp_path, lambda_sp=[2.0, 3.0], epochs=2)
    digits(tmp_path, lambda_sp=5.0, epochs=2)  # the method's own folder is still free
    digits(tmp_path, lambda_sp=[1.0, 2.0])


@pytest.mark.parametrize("value", [1000, 1000.0, 1e6, 1e-8, 0.1 + 0.2, 1 / 3, 1e300, 5e-324, 123456789.5, 0.0])
def test_names_of_values_round_trip(value: float) -> None:
    assert float(value_text(value)) == value
    assert value_text(np.float64(value)) == value_text(float(value))
    if float(value).is_integer() and value < 1e15:
        assert int(value_text(value)) == value  # also where a whole number is expected


def test_names_and_labels() -> None:
    point = {"epochs": 3, "gate": True, "lambda_sp": 1000.0, "lambda_af": 1e-8, "fisher": "exact"}
    assert point_name(point) == "epochs=3,gate=true,lambda_sp=1000,lambda_af=1e-08,fisher=exact"
    assert parse_settings(point_name(point).split(","), ["caf-ewc"]) == point
    assert point_label("ewc", {"lambda_sp": 0.5}) == "ewc[lambda_sp=0.5]"
    assert point_label("ewc", {}) == "ewc"


def test_arrays_and_ranges_are_lists_of_values(tmp_path: Path) -> None:
    small: Any = {"tasks": 1, "width": 2, "device": "cpu", "fwt": False}
    results = run("digits", "ewc", 1, out=tmp_path, epochs=1, lambda_sp=np.array([1.0, 10.0]), **small)
    assert list(results) == ["ewc[lambda_sp=1]", "ewc[lambda_sp=10]"]
    results = run("digits", "finetune", 1, out=tmp_path, epochs=range(1, 3), **small)
    assert list(results) == ["finetune[epochs=1]", "finetune[epochs=2]"]
    assert list(run("digits", "ewc", 1, out=tmp_path, epochs=1, lambda_sp=np.float32(2), **small)) == ["ewc"]
    results = run("digits", "ewc", 1, out=tmp_path, epochs=1, lambda_sp=[np.int64(1), torch.tensor(10.0)], **small)
    assert list(results) == ["ewc[lambda_sp=1]", "ewc[lambda_sp=10]"]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("methods", "overrides", "named"),
    [
        (["ewc"], {"lambda_sp": [1000, 1e3]}, "lambda_sp has the value 1000 twice"),
        (["ewc"], {"lambda_sp": []}, "lambda_sp has an empty list"),
        (["ewc"], {"lambda_sp": [1.0, "much"]}, "lambda_sp must be a number, not 'much'"),
        (["ewc"], {"lambda_sp": [1.0, None]}, "lambda_sp must be a number"),
        (["ewc"], {"lambda_sp": [1.0, [2.0]]}, "lambda_sp must be a number"),
        (["ewc"], {"lambda_sp": [1.0, -1.0]}, "lambda_sp must be a finite number, 0 or larger"),
        (["ewc"], {"lambda_sp": [1.0, math.nan]}, "lambda_sp"),
        (["ewc"], {"lambda_sp": [1.0, 1e39]}, "lambda_sp"),  # infinite in single precision
        (["ewc"], {"epochs": [1, 2.5]}, "epochs must be a whole number"),
        (["ewc"], {"epochs": [0, 1]}, "epochs must be at least 1"),
        (["ewc"], {"fisher": ["published", "guess"]}, "guess"),
        (["ewc"], {"gamma": [0.1, 0.2]}, "gamma"),
        (["ewc"], {"lamda_sp": [1.0, 2.0]}, "lambda_sp"),
        (["ewc", "caf-ewc"], {"lambda_sp": list(range(40)), "gamma": list(range(126))}, "5,080 points"),
    ],
)
def test_impossible_grids_are_refused(
    methods: list[str], overrides: dict[str, Any], named: str, tmp_path: Path
) -> None:
    given = strengths_of(methods) | overrides
    with pytest.raises(ConfigError) as refused:
        plan("digits", methods, 2, overrides=given, out=tmp_path, fwt=False)
    assert named in str(refused.value)


def test_a_grid_beyond_reason_is_refused_at_once(tmp_path: Path) -> None:
    """Before its points are listed: there are more than could be."""
    many = {name: range(1, 10_001) for name in ("lambda_sp", "lambda_af", "gamma")}
    with pytest.raises(ConfigError, match=r"5,000,000,000,000 runs.*at most 10,000.*fewer values or seeds"):
        plan("digits", ["caf-ewc"], 5, overrides=many, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fleet", [0, -1, 2.5, "2", np.int64(0)])
def test_an_impossible_fleet_is_refused(fleet: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--fleet"):
        plan("digits", ["finetune"], 1, out=tmp_path, fleet=fleet)


def test_a_fleet_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    asked: Any = np.int64(2)
    assert type(plan("digits", ["finetune"], 1, out=tmp_path, fleet=asked).most) is int
