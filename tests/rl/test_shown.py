"""What users see of games that were learned: tables, pages, pictures, and what did not stay finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kenyon.experiments.compare import load_scores, measures
from kenyon.experiments.results import GameResult
from kenyon.experiments.runner import run
from kenyon.rl.suites import SuiteBenchmark
from tests.cli.conftest import Said
from tests.report.made import Page, made, saved
from tests.report.test_page import check_sound
from tests.rl.fleets import SHORT

Kenyon = Callable[..., Said]


def test_scores_of_other_games_stand_apart(toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path) -> None:
    """By their names, whatever their order; and what was learned otherwise has a label that says so."""
    run("toys", "finetune", [0], games=["catch", "sort"], device="cpu", out=tmp_path)
    run("toys", "ewc", [0], games=["sort", "catch"], device="cpu", out=tmp_path)
    run("toys", "finetune", [0], games=["catch", "sort"], device="cpu", out=tmp_path / "longer", steps=160)
    found = load_scores(tmp_path)
    assert list(found) == ["toys (catch, sort)", "toys (sort, catch)"]
    assert list(found["toys (catch, sort)"]) == ["finetune[steps=160]", "finetune[steps=128]"]
    assert measures(found["toys (sort, catch)"]) == {}  # there is no fine-tuning in that order
    said = kenyon("show", tmp_path)
    assert said.code == 0 and "toys (catch, sort): 2 games" in " ".join(said.out.split())


@pytest.mark.parametrize("images", [False, True])
def test_games_are_on_the_page(toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path, images: bool) -> None:
    results = run("toys", "ewc,finetune", [0, 1], games=["catch", "sort"], device="cpu", out=tmp_path / "results")
    odd = replace(results["ewc"], config=results["ewc"].config | {"method": '<b>&"ש😀'})
    lost = replace(odd.runs[0], scores=[], diverged=[0, 3])
    replace(odd, runs=[lost, *odd.runs[1:]]).save(tmp_path / "results/toys/odd/scores.json")
    if images:
        saved(tmp_path / "results", made("ewc"))
    said = kenyon("report", tmp_path / "results", "--out", tmp_path / "r.html")
    assert said.code == 0, said.err
    assert f"{3 + images} results of {1 + images} benchmark" in said.out
    page = Page((tmp_path / "r.html").read_text())
    check_sound(page)
    (table,) = [t for t in page.tables if t["caption"].startswith("toys. Of games")]
    head, *rows = [[cell["text"] for cell in row] for row in table["rows"]]
    assert head[:6] == ["method", "NAR", "NP", "NS", "runs", "catch"]
    assert [row[0] for row in rows] == ["finetune", "ewc", '<b>&"ש😀'] and rows[2][4] == "1 of 2"
    assert (
        "catch, sort" in page.text
        and "diverged in game 1, update 4" in page.text
        and ("All benchmarks" in page.text) == images
    )
    titles = {v["title"] for v in page.values["views"].values()}
    assert {"Normalised plasticity", "NAR in continual learning"} <= titles


def test_which_agent_is_watched_is_asked_for(toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path) -> None:
    run("toys", "ewc", [0, 1], games=["catch"], device="cpu", out=tmp_path, lambda_sp=[1.0, 2.0])
    for folder in (tmp_path, tmp_path / "toys/ewc"):
        said = kenyon("watch", folder)
        assert said.code == 1 and "lambda_sp=1" in said.err and "lambda_sp=2" in said.err
        assert str(tmp_path / "toys/ewc/lambda_sp=1") in said.err  # as an example
    point = tmp_path / "toys/ewc/lambda_sp=1"
    (point / "weights-0.safetensors").unlink()
    said = kenyon("watch", point)
    assert said.code == 1 and "were not kept. Those of seed 1 are there." in said.err
    (point / "weights-1.safetensors").unlink()
    assert "Train it again" in kenyon("watch", point).err
    assert "OUT/SUITE/METHOD" in kenyon("watch", tmp_path / "nowhere").err
    assert "only scores of games" in kenyon("analyse", tmp_path).err


def test_scores_are_normalised_by_fine_tuning_that_learned_alike(toys: SuiteBenchmark, tmp_path: Path) -> None:
    asked = {"games": ["catch", "sort"], "device": "cpu", "out": tmp_path}
    results = run("toys", "finetune,ewc", [0], **asked, importance_rollouts=[1, 2], rate=[0.003, 0.004])
    alone = {rate: {n: r for n, r in results.items() if f"rate={rate}" in n} for rate in (0.003, 0.004)}
    found = measures(results)
    assert set(found) == set(results)
    for some in alone.values():
        for name, mine in measures(some).items():
            assert mine.nar and found[name].nar and mine.nar.runs == found[name].nar.runs


def test_games_that_did_not_stay_finite_are_told(toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path) -> None:
    said = kenyon("run", "toys", "--method", "ewc", "--seeds", "2", "--set", "rate=1e30", "--out", tmp_path / "a")
    assert said.code == 1 and "No run stayed finite on toys" in said.err
    assert "no numbers for seeds 0, 1" in said.out and f"/a-rate-{toys.training.rate:g}" in said.out  # the usual one
    result = GameResult.load(tmp_path / "a/toys/ewc/scores.json")
    assert result.fleets[0].steps_per_second * result.seconds < SHORT.samples * SHORT.updates
