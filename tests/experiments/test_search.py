"""Searches: all points in one fleet, never on test data, continued, ranked and written down."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kenyon
from kenyon.benchmarks import registry as benchmarks
from kenyon.benchmarks.registry import Benchmark
from kenyon.data import FIRST_SEED, SOURCES, Group, Source
from kenyon.data.sources import SourceSpec
from kenyon.errors import ConfigError, DeviceMemoryError, KenyonError, ResultsError
from kenyon.experiments.compare import load_results
from kenyon.experiments.found import Found
from kenyon.experiments.hyper_search import Sampling, execute_search, plan_search
from kenyon.experiments.results import Result
from kenyon.experiments.runner import run
from kenyon.models import digits_mlp
from kenyon.training import Interrupted, Trainer, Training
from tests.experiments.small import Counter, stop_after

TINY: dict[str, Any] = {"epochs": 2, "width": 2, "batch": 16}
GRID: dict[str, Any] = {"lambda_sp": [1.0, 1e6], "lambda_af": [1e-8, 0.1]}


def search(out: Path, **more: Any) -> Found:
    stop, progress = more.pop("stop", lambda: False), more.pop("progress", None)
    asked = {"protocol": "short", "folds": 2, "tasks": 2} | {
        name: more.pop(name) for name in ("protocol", "folds", "share", "tasks", "sampling", "fleet") if name in more
    }
    method = more.pop("method", "ewc-af1")
    plan = plan_search("digits", method, overrides=TINY | (more or GRID), device="cpu", out=out, **asked)
    return execute_search(plan, progress=progress, stop=stop)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return search(tmp_path_factory.mktemp("search"))


def told(found: Found) -> list[Any]:
    return [(score.settings, score.aac and score.aac.runs) for score in found.scores]


# ---------------------------------------------------------------------- what is measured


def test_all_points_and_folds_are_one_fleet_of_seeds_that_no_reported_run_has(tmp_path: Path, found: Found) -> None:
    counter = Counter()
    again = search(tmp_path, progress=counter)
    (cells,) = counter.cells
    assert len(cells) == 8 and {seed for _, seed in cells} == {FIRST_SEED, FIRST_SEED + 1} == set(again.seeds)
    assert told(again) == told(found)
    with pytest.raises(ConfigError, match=r"Seeds from 1,000,000 on.*kenyon search"):
        run("digits", "finetune", seeds=[0, FIRST_SEED], out=tmp_path)


def test_scores_are_average_accuracies_in_order(found: Found) -> None:
    folder = found.folder
    assert folder.parts[-4:] == ("search", "digits", "ewc-af1", "short")
    results = {str(path.parent.name): Result.load(path) for path in folder.rglob("result.json")}
    assert len(results) == 4
    by_hand = {name: [np.mean(run.accuracy[-1]) for run in r.runs] for name, r in results.items()}
    scored = {
        f"lambda_sp={s.settings['lambda_sp']:.0f},lambda_af={s.settings['lambda_af']:g}": s for s in found.scores
    }
    assert set(scored) == set(by_hand)
    for name, score in scored.items():
        assert score.aac is not None and list(score.aac.runs) == by_hand[name]
        assert score.mean == pytest.approx(np.mean(by_hand[name]))
        assert score.aac.sem == pytest.approx(np.std(by_hand[name], ddof=1) / np.sqrt(2))
    means = [score.mean for score in found.scores]
    assert means == sorted(means, reverse=True) and found.best == found.scores[0].settings
    assert not list(folder.rglob("weights-*")) and not list(folder.rglob("state-*"))


@pytest.mark.parametrize("protocol", ["held-out", "short"])
def test_poisoned_test_data_gives_the_same_scores(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structurally: what tests show and say cannot matter, since it is not there."""
    spec = SOURCES["digits"]

    def poisoned(data: Path | None) -> Source:
        source = spec.load(data)
        assert isinstance(source.images, torch.Tensor) and isinstance(source.test, torch.Tensor)
        images, labels = source.images.clone(), source.labels.clone()
        images[source.test] = torch.randint(0, 256, images[source.test].shape, dtype=torch.uint8)
        labels[source.test] = torch.randint(0, 10, (int(source.test.sum()),))
        return replace(source, images=images, labels=labels)

    given: dict[str, Any] = {"protocol": protocol, "folds": 1, "method": "ewc", "lambda_sp": [1.0, 1e6]}
    given |= {"width": 16, "epochs": 10}
    clean = search(tmp_path / "clean", **given)
    assert all(score.mean > 80 for score in clean.scores)  # something was learned
    monkeypatch.setitem(SOURCES, "digits", replace(spec, load=poisoned))
    assert told(search(tmp_path / "poisoned", **given)) == told(clean)
    # Reported runs do look at it: the poison works.
    reported = run("digits", "finetune", [0], tasks=2, fwt=False, out=tmp_path, device="cpu", epochs=10)["finetune"]
    assert reported.aac is not None and reported.aac.mean < 65


def test_the_whole_sequence_once_or_a_few_tasks_several_times(tmp_path: Path) -> None:
    given: dict[str, Any] = {"overrides": TINY | GRID, "device": "cpu", "out": tmp_path}
    once = plan_search("digits", "ewc-af1", **given)
    assert once.protocol.name == "held-out" and once.seeds == (FIRST_SEED,) and once.first.config.tasks == 5
    short = plan_search("r-cifar-100", "ewc-af1", protocol="short", **given)
    assert short.seeds == tuple(range(FIRST_SEED, FIRST_SEED + 3)) and short.first.config.tasks == 5
    assert plan_search("r-cifar-100", "ewc-af1", protocol="short", tasks=7, **given).first.config.tasks == 7
    assert plan_search("r-cifar-100", "ewc-af1", **given).first.config.tasks == 20
    assert "anew" in short.stream
    assert "belong together" in plan_search("s-cifar-100", "ewc-af1", **given).stream


def test_tasks_of_unequal_sizes_are_searched_fold_by_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Omniglot's alphabets: in every fold heads of other sizes, which are no one tensor."""
    digits = SOURCES["digits"].load(None)
    groups = tuple(Group(name, c, fixed=True) for name, c in (("a", (0, 1)), ("b", (2, 3, 4)), ("c", (5, 6, 7, 8))))
    spec = SourceSpec("unequal", "", (2, 3, 4), (1, 8, 8), (), True, lambda data: replace(digits, groups=groups))
    monkeypatch.setitem(SOURCES, "unequal", spec)
    training = Training(epochs=1, batch=16, validation=0.2)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "unequal", Benchmark("unequal", digits_mlp, 2, training, {}))
    counter = Counter()
    plan = plan_search(
        "unequal", "ewc", protocol="short", overrides={"lambda_sp": [1.0, 2.0]}, device="cpu", out=tmp_path
    )
    found = execute_search(plan, progress=counter)
    assert [fleet[1] for fleet in counter.fleets] == [(FIRST_SEED + fold,) * 2 for fold in range(3)]
    assert all(score.aac is not None and len(score.aac.runs) == 3 for score in found.scores)
    tasks = {tuple(run.tasks) for r in plan.out.rglob("result.json") for run in Result.load(r).runs}
    assert len(tasks) > 1 and all(sorted(order) == ["a", "b", "c"] for order in tasks)


# ---------------------------------------------------------------------- continued


def test_interrupted_it_goes_on_to_the_same_scores(tmp_path: Path, found: Found) -> None:
    with pytest.raises(Interrupted):
        search(tmp_path, stop=stop_after(2))
    assert list(tmp_path.rglob("state-*")) and not list(tmp_path.rglob("best.toml"))
    counter = Counter()
    assert told(search(tmp_path, progress=counter)) == told(found)
    assert counter.fleets[0][2] > 0 and not list(tmp_path.rglob("state-*"))
    more = search(tmp_path, progress=counter, **GRID | {"lambda_sp": [1.0, 1e6, 1e3]})
    assert len(counter.cells) == 2 and {name for name, _ in counter.cells[1]} == {
        "lambda_sp=1000,lambda_af=1e-08",
        "lambda_sp=1000,lambda_af=0.1",
    }
    assert len(more.scores) == 6 and len(search(tmp_path, folds=1).scores[0].aac.runs) == 1  # type: ignore[union-attr]
    with pytest.raises(ResultsError, match=r"search.share was 0.2, now 0.3"):
        search(tmp_path, share=0.3)


def test_it_stands_apart_from_what_is_reported(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "ewc", "folds": 1, "lambda_sp": [1.0, 5.0]}
    search(tmp_path, **given)
    assert set(load_results(tmp_path)) == {"digits (short search)"}
    run("digits", "ewc", 1, tasks=2, fwt=False, device="cpu", out=tmp_path, lambda_sp=[1.0, 5.0], **TINY)
    assert {name: len(some) for name, some in load_results(tmp_path).items()} == {"digits": 2}
    counter = Counter()
    search(tmp_path, progress=counter, **given)
    assert not counter.fleets


# ---------------------------------------------------------------------- written down


def test_the_choice_says_where_it_comes_from_and_is_run(tmp_path: Path, found: Found) -> None:
    body = tomllib.loads(found.path.read_text())
    assert body["benchmark"] == "digits" and body["method"] == "ewc-af1"
    assert body["settings"] == {"width": 2, "batch": 16} | found.best  # a shorter training is no choice
    origin = body["origin"]
    assert origin["protocol"] == "short" and origin["seeds"] == [FIRST_SEED, FIRST_SEED + 1]
    assert origin["epochs"] == 2 and origin["tasks"] == 2 and origin["share"] == 0.2
    assert {"kenyon", "torch", "python", "device", "finished"} <= set(origin)
    assert [
        ({name: point[name] for name in GRID}, point["score"], len(point["folds"])) for point in origin["points"]
    ] == [(score.settings, round(score.mean, 4), 2) for score in found.scores]
    ran = kenyon.run(config=found.path, seeds=1, tasks=1, fwt=False, device="cpu", out=tmp_path, epochs=1)
    config = ran["ewc-af1"].config
    assert config["hyper"] | found.best == config["hyper"] and "search" not in config
    assert config["architecture"]["width"] == 2 and config["training"]["epochs"] == 1


def test_python_takes_and_gives_values(tmp_path: Path) -> None:
    found = kenyon.search(
        "digits",
        method="ewc",
        protocol="short",
        folds=1,
        tasks=2,
        lambda_sp=np.array([1.0, 1e4]),
        out=tmp_path,
        **TINY,
    )
    assert found.best in ({"lambda_sp": 1.0}, {"lambda_sp": 1e4}) and len(found.scores) == 2
    assert found.table().splitlines()[0].split() == ["lambda_sp", "AAC", "%", "behind", "the", "best"]
    assert isinstance(found, kenyon.Found) and found.path.is_file()


def test_points_that_do_not_stay_finite_come_last(tmp_path: Path) -> None:
    found = search(tmp_path / "some", method="ewc", folds=1, lambda_sp=[3e38, 1.0])
    assert [score.settings["lambda_sp"] for score in found.scores] == [1.0, 3e38]
    assert found.scores[1].aac is None and "not finite" in found.table()
    assert tomllib.loads(found.path.read_text())["origin"]["points"][1] == {"lambda_sp": 3e38, "finite": False}
    none = search(tmp_path / "none", method="ewc", folds=1, lambda_sp=[3e38, 2e38])
    assert not none.path.exists()
    with pytest.raises(ResultsError, match="No point stayed finite"):
        _ = none.best


# ---------------------------------------------------------------------- asked for


def test_the_published_grid_and_what_replaces_it(tmp_path: Path) -> None:
    def grid(benchmark: str, method: str, **overrides: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        plan = plan_search(benchmark, method, overrides=overrides, device="cpu", out=tmp_path)
        return plan.grid, plan.fixed

    af = [1e-9, 1e-8, 1e-7, 1e-6]
    gamma = [0.001, 0.01, 0.02, 0.1]
    assert grid("r-cifar-100", "caf-ewc") == ({"lambda_sp": [5000, 10000], "lambda_af": af, "gamma": gamma}, {})
    assert grid("r-cifar-100", "caf-ewc", gamma=0.5, epochs=3) == (
        {"lambda_sp": [5000, 10000], "lambda_af": af},
        {"gamma": 0.5, "epochs": 3},
    )
    assert grid("r-cifar-100", "caf-ewc", gamma=(1, 2)) == ({"gamma": [1, 2]}, {})
    assert grid("omniglot", "caf-mas")[1] == {"gamma": 0.05}  # the only value tried
    assert list(grid("digits", "caf-ewc", gamma=[1, 2], lambda_sp=[3, 4])[0]) == ["lambda_sp", "gamma"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"lambda_sp": 3.0}, r"nothing to choose from.*lambda_sp=VALUE,VALUE"),
        ({"lambda_sp": [3.0]}, "nothing to choose from"),
        ({"method": "finetune"}, r"no published grid of finetune on digits.*--set"),
        ({"lambda_spp": [1.0, 2.0]}, r"no setting of ewc called 'lambda_spp'.*lambda_sp"),
        ({"lambda_sp": [1.0, 1.0]}, "twice"),
        ({"lambda_sp": [1.0, -1.0]}, "finite number"),
        ({"lambda_sp": list(range(1, 6000))}, r"5,999 points.*2 seeds"),
        ({"protocol": "long"}, "no search protocol called 'long'"),
        ({"folds": 0}, "folds must be a whole number"),
        ({"sampling": Sampling(0)}, "trials must be a whole number"),
        ({"sampling": Sampling(8, 0)}, "together must be a whole number"),
        ({"share": 0.9}, "leaves nothing to learn from"),
        ({"tasks": 6}, "5 tasks"),
        ({"fleet": 0}, "--fleet"),
        ({"method": "ewcc"}, r"no method called 'ewcc'"),
    ],
)
def test_what_cannot_be_gets_clear_words(asked: dict[str, Any], named: str, tmp_path: Path) -> None:
    given = {"method": "ewc"} | asked
    if not any(name.startswith("lambda") for name in asked) and given["method"] == "ewc":
        given["lambda_sp"] = [1.0, 2.0]
    if given["method"] == "finetune":
        given["epochs"] = 1
    with pytest.raises(KenyonError, match=named):
        search(tmp_path, **given)
    assert not list(tmp_path.rglob("result.json"))


# ---------------------------------------------------------------------- Optuna


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'kenyon\[search\]'"):
        search(tmp_path, sampling=Sampling(4, 2))


def test_optuna_proposes_batches_that_train_together(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    given: dict[str, Any] = {"sampling": Sampling(5, 2), "folds": 1, "width": [2, 4], "lambda_sp": [1.0, 1e6]}
    given |= {"lambda_af": [1e-8, 0.1], "rate": 0.01}
    counter = Counter()
    found = search(tmp_path / "whole", progress=counter, **given | {"width": 2})
    assert [len(cells) for cells in counter.cells] == [2, 2, 1] and len(found.scores) == 5
    for score in found.scores:
        assert 1 <= score.settings["lambda_sp"] <= 1e6 and 1e-8 <= score.settings["lambda_af"] <= 0.1
        assert all(value == float(f"{value:.3g}") for value in score.settings.values())
    assert "optuna" in tomllib.loads(found.path.read_text())["origin"]["search"]
    # Interrupted in the second batch, it goes on with the same proposals.
    with pytest.raises(Interrupted):
        search(tmp_path / "pieces", stop=stop_after(7), **given | {"width": 2})
    counter = Counter()
    assert told(search(tmp_path / "pieces", progress=counter, **given | {"width": 2})) == told(found)
    assert [len(cells) for cells in counter.cells] == [2, 1] and counter.fleets[0][2] > 0
    widths = search(tmp_path / "widths", **given)
    assert all(type(score.settings["width"]) is int for score in widths.scores)
    with pytest.raises(ConfigError, match=r"lambda_af on a logarithmic scale, on which 0 has no place"):
        search(tmp_path, **given | {"lambda_af": [0.0, 1.0]})


def test_what_does_not_fit_is_no_run_to_be_made_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a search is cut from other data: `kenyon run` could not make it."""

    def full(self: Trainer) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Trainer, "epochs", full)
    with pytest.raises(DeviceMemoryError, match="The same command continues") as told:
        kenyon.search("digits", "ewc", lambda_sp=[1e4, 1e5], epochs=1, out=tmp_path, device="cpu")
    assert "kenyon run" not in str(told.value)
