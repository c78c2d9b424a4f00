"""Experiments from plan to result: every benchmark and method, continued and refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import kenyon
from kenyon.benchmarks.registry import BENCHMARKS
from kenyon.errors import ConfigError, DataError, KenyonError, ResultsError
from kenyon.experiments.config import Architecture, configure
from kenyon.experiments.results import Result
from kenyon.experiments.runner import check_seeds, execute, plan, run
from kenyon.methods import METHODS, find_method
from kenyon.training import Interrupted
from tests.experiments.small import SMALL, Counter, digits, numbers, strengths_of
from tests.replicas import write_cifar_10, write_cifar_100
from tests.report.made import made
from tests.unsealed import unsealed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar_100(folder, per_class_train=2, per_class_test=1)
    write_cifar_10(folder, per_class_train=2, per_class_test=1)
    return folder


# ---------------------------------------------------------------------- everything runs


# Those whose networks are small enough to train here; of the others there are no small replicas in `data`.
SMALL_BENCHMARKS = ("digits", "r-cifar-100", "s-cifar-100", "r-cifar-10-100")


@pytest.mark.parametrize("benchmark_name", SMALL_BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_every_benchmark(benchmark_name: str, method: str, data: Path, tmp_path: Path) -> None:
    spec = find_method(method)
    multi = spec.multi
    width = 2 if benchmark_name == "digits" else 1
    overrides = SMALL | strengths_of([method]) | {"width": width} | ({"learners": 2} if multi else {})
    p = plan(
        benchmark_name, [method], 2, tasks=2, overrides=overrides, device="cpu", data=data, out=tmp_path, fwt=False
    )
    results = execute(p)
    assert list(results) == [method]
    result = results[method]
    assert [r.seed for r in result.runs] == [0, 1]
    phases = 1 if spec.schedule == "joint" else 2
    classes = BENCHMARKS[benchmark_name].source.class_counts[0]
    for r in result.runs:
        assert r.diverged is None and len(r.tasks) == 2
        assert len(r.accuracy) == phases
        for row in r.accuracy:
            assert len(row) == 2 and all(0 <= a <= 100 for a in row)
        assert len(r.own_accuracy) == 2 and all(len(own) == (2 if multi else 1) for own in r.own_accuracy)
        assert all(math.isnan(c) != multi for c in (*r.cosine, *r.euclidean))
    learners = 2 if multi or spec.schedule == "discrete" else 1  # of the two tasks each has one
    expected = configured_parameters(benchmark_name, learners, classes, width, heads=2 if spec.apart else 1)
    assert result.parameters == expected
    saved = load_file(tmp_path / benchmark_name / method / "weights-1.safetensors")
    if method != "pnc":  # whose active column is saved too
        counted = (tensor.numel() for name, tensor in saved.items() if name not in ("af1", "afs"))
        assert sum(counted) == expected  # all of them, and nothing else
    assert result.benchmark == benchmark_name and result.method == method
    folder = tmp_path / benchmark_name / method
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["result.json", "weights-0.safetensors", "weights-1.safetensors"]
    assert numbers(Result.load(folder / "result.json")) == numbers(result)
    again = Counter()
    assert numbers(execute(p, progress=again)[method]) == numbers(result)
    assert again.fleets == []


def configured_parameters(name: str, K: int, classes: int, w: int, heads: int = 1) -> int:
    if name == "digits":
        return K * (64 * w + w + w * 128 + 128) + heads * 2 * 129 * classes
    pairs = [(3, w), (w, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w), (4 * w, 4 * w)]
    return K * (sum(9 * i * o + o for i, o in pairs) + 64 * w * 256 + 256) + heads * 2 * 257 * classes


@pytest.mark.parametrize("name", ["r-cifar-100", "s-cifar-100", "r-cifar-10-100"])
@pytest.mark.parametrize("method", METHODS)
def test_published_configurations_are_complete(name: str, method: str) -> None:
    config = configure(name, method)
    assert config.training.epochs == 100 and config.training.batch == 256 and config.training.rate == 1e-3
    expected = (5, 9) if find_method(method).multi else (1, 2 if method == "discrete" else 32)
    assert (config.architecture.learners, config.architecture.width) == expected
    assert set(find_method(method).required) <= set(config.hyper)


def test_widths_keep_the_parameters_of_the_single_learner() -> None:
    """Supplementary Table 5 has 3 to 8 learners. By hand, of the CIFAR network with 20 heads."""

    def parameters(K: int, nc: int) -> int:
        pairs = [(3, nc), (nc, nc), (nc, 2 * nc), (2 * nc, 2 * nc), (2 * nc, 4 * nc), (4 * nc, 4 * nc)]
        return K * (sum(9 * i * o + o for i, o in pairs) + 64 * nc * 256 + 256) + 20 * 5 * 257

    assert parameters(1, 32) == 837_252
    for K, width in ((3, 13), (4, 10), (5, 9), (6, 7), (7, 6), (8, 6)):
        assert configure("r-cifar-100", "caf-ewc", overrides={"learners": K}).architecture.width == width
        assert configure("r-cifar-100", "icl-mas", overrides={"learners": K}).architecture.width == width
        off = {w: abs(parameters(K, w) - 837_252) for w in range(1, 33)}
        assert min(off, key=lambda w: off[w]) == width
    off = {w: abs(parameters(20, w) - 837_252) for w in range(1, 33)}  # a learner a task
    assert configure("r-cifar-100", "discrete").architecture.width == min(off, key=lambda w: off[w]) == 2


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_value_belongs_to_a_setting_of_a_method(name: str) -> None:
    for method, values in BENCHMARKS[name].hyperparameters.items():
        assert set(find_method(method).required) <= set(values) <= set(find_method(method).hyperparameters)
        find_method(method)(values)


def test_definitions_are_saved_as_the_switches_that_they_set(tmp_path: Path) -> None:
    """So results from before compare equal, and those of a definition that changes nothing are the published ones."""
    with pytest.raises(ConfigError, match="mas-af2 has no definition authors"):
        configure("digits", "mas-af2", overrides={"definition": "authors"})
    paper = digits(tmp_path, ["ewc", "mas"], definition="paper")
    assert paper["ewc"].config["hyper"] == {"lambda_sp": 10.0, "fisher": "exact", "accumulate": "sum"}
    assert paper["mas"].config["hyper"] == {"lambda_sp": 10.0}  # as published
    counter = Counter()
    switched = digits(tmp_path, fisher="exact", accumulate="sum", progress=counter)["ewc"]
    assert numbers(switched) == numbers(paper["ewc"])
    assert numbers(digits(tmp_path, ["mas"], progress=counter)["mas"]) == numbers(paper["mas"])
    assert counter.fleets == []  # all of them are there
    points = digits(tmp_path / "grid", definition=["published", "paper"])
    assert [r.config["hyper"].get("fisher") for r in points.values()] == [None, "exact"]


# ---------------------------------------------------------------------- what is there is kept


def test_adding_seeds_trains_only_the_new_ones(tmp_path: Path) -> None:
    first = digits(tmp_path, seeds=[0, 3])["ewc"]
    counter = Counter()
    more = digits(tmp_path, seeds=[5, 0, 3, 1], progress=counter)["ewc"]
    assert counter.fleets == [("ewc", (5, 1), 0)]
    assert [r.seed for r in more.runs] == [0, 1, 3, 5]
    kept = [r for r in more.runs if r.seed in (0, 3)]
    assert repr(kept) == repr(first.runs)
    at_once = digits(tmp_path / "other", seeds=[0, 1, 3, 5])["ewc"]
    assert numbers(at_once) == numbers(more)
    fewer = digits(tmp_path, seeds=[3])["ewc"]
    assert [r.seed for r in fewer.runs] == [3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lambda_sp": 11.0}, "lambda_sp"),
        ({"epochs": 2}, "epochs"),
        ({"width": 3}, "width"),
        ({"tasks": 3}, "tasks"),
        ({"fisher": "exact"}, "fisher"),
    ],
)
def test_another_configuration_in_the_folder_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    digits(tmp_path)
    before = (tmp_path / "digits/ewc/result.json").read_bytes()
    with pytest.raises(ResultsError, match=named):
        digits(tmp_path, **change)
    assert (tmp_path / "digits/ewc/result.json").read_bytes() == before


def test_another_configuration_of_an_unfinished_fleet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, epochs=3, stop=lambda: True)
    with pytest.raises(ResultsError, match="epochs"):
        digits(tmp_path, epochs=2)


def test_forward_transfer_has_its_reference(tmp_path: Path) -> None:
    results = digits(tmp_path, ["finetune", "joint"], fwt=True)
    alone = Result.load(tmp_path / "digits/random-init/result.json")
    finetune = results["finetune"]
    assert finetune.fwt is not None
    expected = []
    for mine, ref in zip(finetune.runs, alone.runs, strict=True):
        expected.append(mine.accuracy[0][1] - ref.accuracy[1][1])  # A[1,2] - a_2, over T - 1 = 1 task
    assert finetune.fwt.runs == pytest.approx(tuple(expected))
    assert results["joint"].fwt is None and results["joint"].bwt is None
    loaded = Result.load(tmp_path / "digits/finetune/result.json")
    assert loaded.alone == finetune.alone and loaded.fwt == finetune.fwt


def test_result_round_trips(tmp_path: Path) -> None:
    result = digits(tmp_path, ["caf-ewc"], learners=2)["caf-ewc"]
    path = tmp_path / "again.json"
    result.save(path)
    again = Result.load(path)
    assert again == result
    body = json.loads(path.read_text())
    assert body["summary"]["aac"]["mean"] == pytest.approx(
        sum(sum(r.accuracy[-1]) / 2 for r in result.runs) / 2, abs=1e-3
    )
    single = digits(tmp_path, ["finetune"], seeds=1)["finetune"]  # with NaN: one learner has no diversity
    single.save(path)
    assert "NaN" not in path.read_text()
    assert repr(asdict(Result.load(path))) == repr(asdict(single))


def test_a_result_is_told_in_a_line() -> None:
    whole = made("ewc", point={"lambda_sp": 2}, seeds=3)
    assert re.fullmatch(
        r"<Result digits ewc\[lambda_sp=2\]: 3 runs, AAC \S+ ± \S+, BWT \S+ ± \S+, FWT \S+ ± \S+>", repr(whole)
    )
    fallen = replace(whole, point={}, runs=[replace(whole.runs[0], accuracy=[], diverged=[0, 0])])
    assert repr(fallen) == "<Result digits ewc: 1 run (1 diverged)>"


@pytest.mark.parametrize("spoiled", [b"", b"{", b"[]", b"3", b'{"format": 99}', b'{"format": 1}', b"\xff\xfe\x00"])
def test_a_spoiled_result_is_named(spoiled: bytes, tmp_path: Path) -> None:
    path = tmp_path / "digits/ewc/result.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(spoiled)
    with pytest.raises(ResultsError, match=r"result\.json"):
        digits(tmp_path)


def test_a_spoiled_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=lambda: True)
    (state,) = (tmp_path / "digits/ewc").glob("state-*.safetensors")
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=rf"{state.name} cannot be used.*start again"):
        digits(tmp_path)


def test_results_from_before_a_setting_existed_are_known_again(tmp_path: Path) -> None:
    """What was stored without it had its default."""
    first = kenyon.run("digits", methods="finetune", seeds=1, out=tmp_path, fwt=False, epochs=1, tasks=1)
    path = tmp_path / "digits" / "finetune" / "result.json"
    stored = unsealed(path)
    assert "bounded" not in stored["config"]["training"]  # the newest: results without it stay as they were
    for name in ("optimiser", "momentum", "schedule", "drop_epoch", "carry", "penalties_from"):
        del stored["config"]["training"][name]
    path.write_text(json.dumps(stored))
    again = kenyon.run("digits", methods="finetune", seeds=1, out=tmp_path, fwt=False, epochs=1, tasks=1)
    assert again["finetune"].runs == first["finetune"].runs
    with pytest.raises(ResultsError, match=r"momentum was 0\.9, now 0\.5"):
        kenyon.run("digits", methods="finetune", out=tmp_path, fwt=False, epochs=1, tasks=1, momentum=0.5)
    with pytest.raises(ResultsError, match="bounded"):
        kenyon.run("digits", methods="finetune", out=tmp_path, fwt=False, epochs=1, tasks=1, bounded=True)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"benchmark": "digit"}, "digits"),
        ({"benchmark": "mnist"}, "mnist"),
        ({"methods": ["ewk"]}, "ewk"),
        ({"methods": []}, "method"),
        ({"methods": ["ewc", "ewc"]}, "ewc"),
        ({"seeds": [1, 1]}, "1,1"),
        ({"seeds": [0, -4]}, "-4"),
        ({"seeds": []}, "seed"),
        ({"seeds": 0}, "seed"),
        ({"seeds": -2}, "seed"),
        ({"tasks": 0}, "tasks"),
        ({"tasks": 6}, "5"),
        ({"tasks": -1}, "tasks"),
        ({"device": "tpu"}, "tpu"),
        ({"overrides": {"lambda": 3.0}}, "lambda"),
        ({"overrides": {"learners": 2}}, "learners"),
        ({"overrides": {"lambda_sp": -1.0}}, "lambda_sp"),
        ({"overrides": {"lambda_sp": math.nan}}, "lambda_sp"),
        ({"overrides": {"lambda_sp": "much"}}, "lambda_sp"),
        ({"overrides": {"epochs": 0}}, "epochs"),
        ({"overrides": {"epochs": 1.5}}, "epochs"),
        ({"overrides": {"epochs": "three"}}, "epochs"),
        ({"overrides": {"batch": -16}}, "batch"),
        ({"overrides": {"rate": 0.0}}, "rate"),
        ({"overrides": {"rate": math.inf}}, "rate"),
        ({"overrides": {"validation": 1.0}}, "validation"),
        ({"overrides": {"width": 0}}, "width"),
        ({"overrides": {"width": -1}}, "width"),
        ({"overrides": {"width": 2.5}}, "width"),
        ({"overrides": {"precision": "float16"}}, "precision"),
        ({"overrides": {"fisher": "other"}}, "other"),
        ({"overrides": {"accumulate": "other"}}, "other"),
        ({"methods": ["caf-ewc"], "overrides": {"learners": 0}}, "learners"),
        ({"methods": ["caf-ewc"], "overrides": {"learners": 2.5}}, "learners"),
        ({"methods": ["caf-ewc"], "overrides": {"diversity": "huge"}}, "huge"),
        ({"methods": ["caf-ewc"], "overrides": {"gate": "maybe"}}, "gate"),
        ({"methods": ["caf-ewc"], "overrides": {"gamma": -0.1}}, "gamma"),
        ({"methods": ["caf-ewc"], "overrides": {"afs_form": "third"}}, "third"),
        ({"methods": ["caf-ewc"], "overrides": {"af1": "third"}}, "third"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, Any], named: str, tmp_path: Path) -> None:
    """Before anything is trained, with a message that names the thing."""
    given = {"benchmark": "digits", "methods": ["ewc"], "seeds": 1, "out": tmp_path, "fwt": False} | arguments
    given["overrides"] = strengths_of(given["methods"]) | given.get("overrides", {})
    with pytest.raises(ConfigError) as refused:
        plan(**given)
    assert named in str(refused.value)


def test_run_refuses_unknown_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lamda_sp"):
        run("digits", "ewc", 1, out=tmp_path, lamda_sp=3.0)


def test_missing_data_is_named(tmp_path: Path) -> None:
    p = plan(
        "r-cifar-100", ["finetune"], 1, tasks=1, device="cpu", data=tmp_path / "nowhere", out=tmp_path, fwt=False
    )
    with pytest.raises(DataError, match="nowhere"):
        execute(p)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KenyonError, match="file"):
        plan("digits", ["finetune"], 1, out=tmp_path / "file")


@pytest.mark.parametrize("seeds", [np.arange(2), [np.int64(0), 1], np.int64(2), 2])
def test_seeds_may_be_whole_numbers_of_any_kind(seeds: Any) -> None:
    assert check_seeds(seeds) == (0, 1) and all(type(seed) is int for seed in check_seeds(seeds))


@pytest.mark.parametrize("seeds", ["0,3", 1.0, [0.5], None])
def test_other_seeds_are_refused_with_words(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        check_seeds(seeds)


def test_the_reference_of_several_learners_has_the_usual_width(tmp_path: Path) -> None:
    """However the usual width of each of them is written; one learner is held against one of its own width."""

    def references(method: str, **given: Any) -> list[Architecture]:
        asked = plan("digits", [method], 1, overrides={"epochs": 1, **given}, device="cpu", out=tmp_path)
        return [point.config.architecture for point in asked.references]

    usual = references("caf-ewc")
    assert [one.width for one in usual] == [16]
    assert references("caf-ewc", width=3) == references("caf-ewc", learners=5, width=[3, 4]) == usual
    assert [one.width for one in references("ewc", width=8)] == [8]
    assert [one.width for one in references("caf-ewc", learners=1, width=8)] == [8]


@pytest.mark.parametrize("learners", [2, 5, 7])
def test_a_width_that_follows_from_the_number_of_learners_is_no_change(learners: int) -> None:
    config = configure("digits", "caf-ewc", overrides={"learners": learners})
    assert config.changes == ([], {} if learners == 5 else {"learners": learners})
    wider = configure("digits", "caf-ewc", overrides={"learners": learners, "width": 20})
    assert wider.changes[1]["width"] == 20
