"""Results under different settings are refused for one table, or labelled by what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result
from kenyon.report.page.entries import collect
from tests.report.made import made, saved


def labels(folder: Path, *, apart: bool = False) -> list[str]:
    return [e.label for group in collect(folder, apart=apart) for e in group.entries]


def refusal(folder: Path) -> str:
    with pytest.raises(ResultsError) as caught:
        collect(folder)
    return str(caught.value)


def test_one_method_under_two_settings(tmp_path: Path) -> None:
    saved(tmp_path, made("ewc"), made("mas"), place="a")
    saved(tmp_path, made("ewc", lambda_sp=500), place="b")
    told = refusal(tmp_path)
    top = tmp_path.name
    assert f"ewc: hyper.lambda_sp is 1000 in {top}/a/digits/ewc/result.json, 500 in {top}/b/digits" in told
    assert "--apart" in told and "mas" not in told
    assert labels(tmp_path, apart=True) == ["mas", "ewc[lambda_sp=1000]", "ewc[lambda_sp=500]"]


@pytest.mark.parametrize(
    ("other", "name", "value"), [(made("mas", epochs=50), "training.epochs", 50), (made("mas", tasks=3), "tasks", 3)]
)
def test_methods_under_other_epochs_or_tasks(tmp_path: Path, other: Result, name: str, value: int) -> None:
    saved(tmp_path, made("ewc"), other)
    told = refusal(tmp_path)
    assert f"{name} is" in told and f"{value} in" in told and "digits/mas/result.json" in told
    short = name.rpartition(".")[2]
    was = {"epochs": 5, "tasks": 4}[short]
    assert labels(tmp_path, apart=True) == [f"mas[{short}={value}]", f"ewc[{short}={was}]"]


def test_a_setting_that_only_other_points_name_is_no_secret(tmp_path: Path) -> None:
    """A grid that varies lambda_sp does not excuse a result whose label lacks its own value."""
    grid = made("ewc", point={"width": 4, "lambda_sp": 7}, width=4)
    saved(tmp_path, made("ewc"), made("ewc", point={"width": 4}, width=4, lambda_sp=500), grid)
    assert "ewc: hyper.lambda_sp is 1000 in" in refusal(tmp_path)
    found = {"ewc[lambda_sp=1000]", "ewc[width=4,lambda_sp=500]", "ewc[width=4,lambda_sp=7]"}
    assert set(labels(tmp_path, apart=True)) == found


def test_the_same_twice_is_told_apart_by_its_folder(tmp_path: Path) -> None:
    saved(tmp_path, made("ewc"), place="monday")
    saved(tmp_path, made("ewc", seeds=2), place="tuesday")
    assert "ewc is there more than once" in refusal(tmp_path)
    assert labels(tmp_path, apart=True) == ["ewc[in=monday]", "ewc[in=tuesday]"]


def test_points_of_a_grid_belong_together(tmp_path: Path) -> None:
    points = [made("ewc", point={"lambda_sp": v}) for v in (100, 1000)]
    learners = [made("caf-ewc", point={"learners": k}, learners=k, width=9 - k) for k in (2, 3)]
    saved(tmp_path, made("ewc", lambda_sp=7), *points, *learners)
    assert set(labels(tmp_path)) == {
        *("ewc", "ewc[lambda_sp=100]", "ewc[lambda_sp=1000]"),
        *("caf-ewc[learners=2]", "caf-ewc[learners=3]"),
    }
    saved(tmp_path, made("ewc", point={"lambda_sp": 5000}, width=99))
    assert "architecture.width is 8 in" in refusal(tmp_path)


def test_different_benchmarks_need_not_agree(tmp_path: Path) -> None:
    saved(tmp_path, made("ewc"), made("ewc", "s-cifar-100", tasks=3, epochs=9))
    assert labels(tmp_path) == ["ewc", "ewc"]


def test_many_differences_are_counted(tmp_path: Path) -> None:
    saved(tmp_path, *(made(f"m{i}") for i in range(9)), place="a")
    saved(tmp_path, *(made(f"m{i}", lambda_sp=1) for i in range(9)), place="b")
    told = refusal(tmp_path)
    assert told.count("hyper.lambda_sp") == 6 and "and 3 more" in told
