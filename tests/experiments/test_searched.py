"""The grids of the paper: that every chosen value was among those tried, or is a named exception."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kenyon.benchmarks.registry import BENCHMARKS, find_benchmark
from kenyon.errors import ConfigError
from kenyon.methods import find_method

HYPERPARAMETERS = {name: b.hyperparameters for name, b in BENCHMARKS.items() if name != "digits-conv"}
SEARCHED = {name: b.tried for name, b in BENCHMARKS.items() if b.tried}
# Chosen values that were not among those tried: the table selects none, and the authors' scripts have these.
OUTSIDE = {
    ("cub-200", "cpr-ewc", "lambda_cpr"): 0.001,
    ("cub-200", "cpr-mas", "lambda_cpr"): 0.001,
    ("tiny-imagenet", "cpr-mas", "lambda_cpr"): 0.01,
}


@pytest.mark.parametrize("benchmark", SEARCHED)
def test_chosen_values_were_tried(benchmark: str) -> None:
    for method, grid in SEARCHED[benchmark].items():
        chosen = HYPERPARAMETERS[benchmark][method]
        assert set(grid) <= set(find_method(method).strengths)
        for name, values in grid.items():
            assert len(set(values)) == len(values)
            outside = OUTSIDE.get((benchmark, method, name))
            assert (chosen[name] in values) == (outside is None)
            assert outside is None or chosen[name] == outside


def test_every_exception_is_one() -> None:
    assert all(name in SEARCHED[benchmark][method] for benchmark, method, name in OUTSIDE)


def test_table_6_is_complete() -> None:
    """Nine methods on six benchmarks (Omniglot has a second split), and the four of CORe50."""
    table = {"ewc", "mas", "si", "agscl", "pnc", "cpr-ewc", "cpr-mas", "caf-ewc", "caf-mas"}
    sizes = {name: len(methods) for name, methods in SEARCHED.items()}
    assert sizes.pop("core50") == 4 and set(sizes.values()) == {9} and len(sizes) == 8
    assert all(set(SEARCHED[name]) == table for name in sizes)
    # How many values the table prints of each: (benchmark, method) -> one number a setting, counted by hand.
    counted = {
        ("s-cifar-100", "agscl"): [4, 4, 4],
        ("r-cifar-100", "caf-ewc"): [2, 4, 4],
        ("r-cifar-10-100", "cpr-mas"): [4, 5],
        ("omniglot", "caf-mas"): [4, 4, 1],
        ("cub-200", "agscl"): [7, 1, 4],
        ("cub-200", "caf-ewc"): [3, 5, 4],
        ("tiny-imagenet", "ewc"): [3],
        ("tiny-imagenet", "cpr-ewc"): [4, 4],
        ("tiny-imagenet", "cpr-mas"): [5, 5],
    }
    for (benchmark, method), lengths in counted.items():
        assert [len(values) for values in SEARCHED[benchmark][method].values()] == lengths


def test_grids_rise_and_missing_ones_are_named() -> None:
    assert find_benchmark("r-cifar-100").grid("caf-ewc")["lambda_af"] == (1e-9, 1e-8, 1e-7, 1e-6)
    with pytest.raises(ConfigError, match=r"no published grid of rwalk on r-cifar-100.*--set"):
        find_benchmark("r-cifar-100").grid("rwalk")
    with pytest.raises(ConfigError, match="has none"):
        find_benchmark("digits-conv").grid("ewc")


# The bold values of Supplementary Table 6, a line a method as it is printed: (lambda_sp), (lambda_sp, lambda_cpr),
# AGS-CL (lambda_sp, mu, rho), CAF (lambda_sp, lambda_af, gamma). None: no value is bold.
TABLE_6 = {
    "ewc": [(25000,), (25000,), (25000,), (5e6,), (2,), (40,)],
    "mas": [(16,), (4,), (4,), (4,), (0.01,), (0.5,)],
    "si": [(10,), (10,), (8,), (10,), (0.4,), (0.8,)],
    "agscl": [
        (3200, 10, 0.3),
        (1600, 10, 0.3),
        (7000, 20, 0.2),
        (None, 7, 0.5),
        (0.001, 0.01, 0.1),
        (0.1, 0.001, 0.1),
    ],
    "pnc": [(50000,), (20000,), (50000,), (1e7,), (10,), (80,)],
    "cpr-ewc": [(25000, 1.5), (10000, 1.5), (25000, 0.5), (5e6, 0.2), (None, None), (40, 0.5)],
    "cpr-mas": [(16, 1.5), (4, 1.5), (4, 0.2), (4, None), (0.01, None), (0.5, None)],
    "caf-ewc": [
        *[(10000, 1e-8, 0.01), (5000, 1e-8, 0.02), (10000, 1e-8, 0.02)],
        *[(5e6, 1e-12, 0.05), (5, 1e-8, 0.001), (320, 1e-4, 0.001)],
    ],
    "caf-mas": [
        *[(8, 1e-8, 0.02), (4, 1e-8, 0.02), (8, 1e-8, 0.02)],
        *[(32, 1e-12, 0.05), (0.05, 1e-9, 0.001), (0.5, 1e-8, 0.001)],
    ],
}
COLUMNS = ("s-cifar-100", "r-cifar-100", "r-cifar-10-100", "omniglot", "cub-200", "tiny-imagenet")
# Where the table selects nothing, or another value is taken on purpose, as the files of benchmarks say.
INSTEAD = {
    ("r-cifar-100", "caf-ewc", 0): 10000,
    ("r-cifar-100", "pnc", 0): 1000,
    ("omniglot", "agscl", 0): 1000,
    ("omniglot", "cpr-mas", 1): 0.2,
    ("cub-200", "cpr-ewc", 0): 2,
    ("cub-200", "cpr-ewc", 1): 0.001,
    ("cub-200", "cpr-mas", 1): 0.001,
    ("tiny-imagenet", "cpr-mas", 1): 0.01,
}
SETTINGS = {
    "agscl": ("lambda_sp", "mu", "rho"),
    **dict.fromkeys(("cpr-ewc", "cpr-mas"), ("lambda_sp", "lambda_cpr")),
    **dict.fromkeys(("caf-ewc", "caf-mas"), ("lambda_sp", "lambda_af", "gamma")),
}


@pytest.mark.parametrize("method", TABLE_6)
def test_chosen_values_are_those_of_the_table(method: str) -> None:
    for benchmark, printed in zip(COLUMNS, TABLE_6[method], strict=True):
        expected = tuple(INSTEAD.get((benchmark, method, i), value) for i, value in enumerate(printed))
        chosen = HYPERPARAMETERS[benchmark][method]
        assert tuple(chosen[name] for name in SETTINGS.get(method, ("lambda_sp",))) == expected, benchmark
    assert HYPERPARAMETERS["omniglot-clean"][method] == HYPERPARAMETERS["omniglot"][method]


def test_those_of_core50_are_those_of_the_text() -> None:
    """Supplementary Section 2.3; CAF has lambda_SP of the plain methods, and SI the value of CUB-200-2011."""
    chosen = HYPERPARAMETERS["core50"]
    strengths = {
        m: tuple(chosen[m].get(n) for n in ("lambda_sp", "lambda_af", "gamma")) for m in ("caf-ewc", "caf-mas")
    }
    assert chosen["ewc"]["lambda_sp"] == 100 and chosen["mas"]["lambda_sp"] == 0.01
    assert strengths == {"caf-ewc": (100, 1e-6, 0.1), "caf-mas": (0.01, 1e-6, 0.1)}
    assert chosen["si"] == HYPERPARAMETERS["cub-200"]["si"]
    assert not {"rwalk", "cpr-ewc", "cpr-mas", "agscl", "pnc"} & set(chosen)
    assert {chosen[m]["accumulate"] for m in chosen if "mas" in m} == {"average"}


@pytest.mark.parametrize("benchmark", HYPERPARAMETERS)
def test_methods_that_the_table_does_not_have(benchmark: str) -> None:
    """Forgetting on one learner: lambda_SP of the plain method and lambda_AF of the authors' scripts (AF-2 on EWC on
    CIFAR has the lambda_SP of AFEC). Learners without forgetting, together or independent: lambda_SP of CAF, but for
    digits, which are ours. Joint training: EWC with AF-1, and CAF on EWC.
    """
    chosen = HYPERPARAMETERS[benchmark]
    afec = {"s-cifar-100": 40000, "r-cifar-100": 10000, "r-cifar-10-100": 25000}
    for base in ("ewc", "mas"):
        plain, caf = chosen[base]["lambda_sp"], chosen[f"caf-{base}"]["lambda_sp"]
        assert (chosen[f"{base}-af1"]["lambda_sp"], chosen[f"{base}-af1"]["lambda_af"]) == (plain, 1e-6)
        expected = afec.get(benchmark, plain) if base == "ewc" else plain
        assert (chosen[f"{base}-af2"]["lambda_sp"], chosen[f"{base}-af2"]["lambda_af"]) == (expected, 1)
        assert chosen[f"mcl-{base}"]["lambda_sp"] == caf
        if benchmark != "digits":
            assert chosen[f"icl-{base}"]["lambda_sp"] == caf
    assert chosen["joint-af1"] == {"lambda_af": 1e-6}
    assert all(chosen["joint-caf"][name] == chosen["caf-ewc"][name] for name in ("lambda_af", "gamma"))
    assert chosen["er"]["memory"] == (2 if benchmark == "digits" else 20)
    assert chosen["er"].get("replay") == ("mixed" if benchmark.startswith("omniglot") else None)


@pytest.mark.parametrize("benchmark", HYPERPARAMETERS)
def test_forms_are_those_that_the_values_belong_to(benchmark: str) -> None:
    """Large images and CORe50 have another scale of importance; AF-S has equal weights everywhere but on CIFAR and on
    digits. Every method on EWC (Progress & Compress is one) or on MAS has the form of its benchmark, no other has it.
    """
    scale = {"cub-200": "large", "tiny-imagenet": "large", "core50": "core50"}.get(benchmark)
    for method, values in HYPERPARAMETERS[benchmark].items():
        assert values.get("fisher") == (scale if "ewc" in method or method == "pnc" else None), method
        assert values.get("omega") == (scale if "mas" in method else None), method
        equal = "caf" in method and "cifar" not in benchmark and benchmark != "digits"
        assert values.get("afs") == ("uniform" if equal else None), method
        assert values.get("reinit") == (False if (benchmark, method) == ("cub-200", "pnc") else None)
        assert values.get("decay") == (1 if (benchmark, method) == ("r-cifar-100", "pnc") else None)


@pytest.mark.parametrize("benchmark", ["s-cifar-100", "r-cifar-100", "r-cifar-10-100"])
def test_active_forgetting_on_cifar_has_its_published_forms(benchmark: str) -> None:
    chosen = HYPERPARAMETERS[benchmark]
    assert chosen["mas-af1"]["from_first"] is True
    assert {chosen[name]["af1_heads"] for name in ("ewc-af1", "mas-af1", "caf-ewc", "caf-mas")} == {"open"}
    assert {chosen[name]["af2_validated"] for name in ("ewc-af2", "mas-af2")} == {False}


def test_published_results_were_made_with_these_values() -> None:
    """Of every method on every benchmark, those of RWalk and of the authors' scripts too: a command without `--set`
    makes them again.
    """
    results = sorted((Path(__file__).parents[2] / "benchmarks" / "h200").glob("*/*/result.json"))
    assert {path.parts[-3] for path in results} == set(COLUMNS)
    for path in results:
        benchmark, method = path.parts[-3:-1]
        made_with = json.loads(path.read_text(encoding="utf-8"))["config"].get("hyper", {})
        for name, value in HYPERPARAMETERS[benchmark].get(method, {}).items():
            assert made_with[name] == value, f"{name} of {method} on {benchmark}"
