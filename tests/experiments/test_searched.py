"""The grids of the paper: that every chosen value was among those tried, or is a named exception."""

from __future__ import annotations

import pytest

from kenyon.errors import ConfigError
from kenyon.experiments.hyperparameters import HYPERPARAMETERS
from kenyon.experiments.searched import OUTSIDE, SEARCHED, find_grid
from kenyon.methods import find_method


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
    assert find_grid("r-cifar-100", "caf-ewc")["lambda_af"] == (1e-9, 1e-8, 1e-7, 1e-6)
    with pytest.raises(ConfigError, match=r"no published grid of rwalk on r-cifar-100.*--set"):
        find_grid("r-cifar-100", "rwalk")
    with pytest.raises(ConfigError, match="has none"):
        find_grid("mine", "ewc")


@pytest.mark.parametrize(
    ("benchmark", "agscl", "pnc", "si"),
    [
        ("s-cifar-100", (3200, 10, 0.3), 50000, 10),
        ("r-cifar-100", (1600, 10, 0.3), None, 10),
        ("r-cifar-10-100", (7000, 20, 0.2), 50000, 8),
        ("omniglot", (1000, 7, 0.5), 1e7, 10),
        ("cub-200", (1e-3, 1e-2, 0.1), 10, 0.4),
        ("tiny-imagenet", (0.1, 1e-3, 0.1), 80, 0.8),
    ],
)
def test_chosen_values_are_those_of_the_table(
    benchmark: str, agscl: tuple[float, ...], pnc: float | None, si: float
) -> None:
    """Supplementary Table 6, with the exceptions that `hyperparameters` names."""
    chosen = HYPERPARAMETERS[benchmark]
    assert tuple(chosen["agscl"].values()) == agscl and chosen["si"] == {"lambda_sp": si}
    assert pnc is None or chosen["pnc"]["lambda_sp"] == pnc


@pytest.mark.parametrize("benchmark", ["s-cifar-100", "r-cifar-100", "r-cifar-10-100"])
def test_active_forgetting_on_cifar_has_its_published_forms(benchmark: str) -> None:
    chosen = HYPERPARAMETERS[benchmark]
    assert chosen["mas-af1"]["from_first"] is True
    assert {chosen[name]["af1_heads"] for name in ("ewc-af1", "mas-af1", "caf-ewc", "caf-mas")} == {"open"}
    assert {chosen[name]["af2_validated"] for name in ("ewc-af2", "mas-af2")} == {False}
