"""Every figure at smoke scale; existing runs are used, missing ones named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kenyon
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.compare import ASIDE, reported
from kenyon.experiments.results import Result
from kenyon.paper.reproduce import REPRODUCTIONS, SCALES, reproduce
from kenyon.paper.reproduce.figure import Place, Variant, find_scale
from kenyon.paper.reproduce.page import claims_page
from kenyon.paper.reproduce.runs import point_of
from kenyon.training import choose_device
from kenyon.utils.views import checked

CPU = choose_device("cpu")


def test_every_figure_at_smoke_scale(tmp_path: Path) -> None:
    written = reproduce("all", out=tmp_path, device="cpu")
    assert [one.name for one in written] == list(REPRODUCTIONS)
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    for one in written:
        body: dict[str, Any] = json.loads(one.data.read_text())
        assert body["name"] == one.name and body["scale"] == "smoke" and body["views"]
        for view in body["views"]:
            checked(view)
        for path in (*one.pictures, one.table):
            assert path.stat().st_size > 50
        assert {path.suffix for path in one.pictures} == {".png", ".svg", ".pdf"}
        for runs in body["origin"]["runs"].values():
            for run in runs.values():
                assert (tmp_path / run["result"]).is_file() and run["seeds"]
        for claim in body["claims"]:
            assert claim["verdict"] in ("for", "against", "undecided")
    page = claims_page(tmp_path / "figures" / "smoke", "pictures")
    assert all(f"### {name}: " in page and f"(pictures/{name}.png)" in page for name in REPRODUCTIONS)
    assert page.startswith(f"{sum(len(one.figure.claims) for one in written)} claims of {len(written)} figures")
    # A second time nothing is trained, and nothing has to be.
    again = reproduce(["fig2c,s7", "fig4ghi"], out=tmp_path, device="cpu", train=False)
    assert [one.name for one in again] == ["fig2c", "s7", "fig4ghi"]
    assert trained == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    for one in again:
        before = next(w for w in written if w.name == one.name)
        assert [c.row() for c in one.figure.comparisons] == [c.row() for c in before.figure.comparisons]


def test_runs_of_other_commands_are_used(tmp_path: Path) -> None:
    """A variant that changes nothing is the method itself, in the folder of `kenyon run`."""
    smoke = find_scale("smoke")
    place = Place(tmp_path, smoke, CPU)
    usual = dict(smoke.settings)
    results = kenyon.run("digits", "mcl-ewc", 2, out=place.runs, device="cpu", fwt=False, **usual)
    point = point_of(place, "digits", Variant("mcl-ewc", {"diversity": "high"}))
    assert point.varied == {} and point.config.as_dict() == results["mcl-ewc"].config
    other = point_of(place, "digits", Variant("mcl-ewc", {"diversity": "low"}))
    assert other.varied == {"diversity": "low"}
    assert Result.load(place.runs / "digits/mcl-ewc/result.json").runs == results["mcl-ewc"].runs


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_variant_can_be_configured(name: str, scale: str, tmp_path: Path) -> None:
    place = Place(tmp_path, find_scale(scale), CPU)
    for one in REPRODUCTIONS[name].wanted(place.scale):
        names = [variant.name for variant in one.variants]
        assert len(set(names)) == len(names)
        labels = [point_of(place, one.benchmark, variant).label for variant in one.variants]
        assert len(set(labels)) == len(labels)


def test_fewer_runs_than_published() -> None:
    paper, smoke = SCALES["paper"], SCALES["smoke"]
    assert [paper.at_most(3).trained(n) for n in (1, 3, 5, 10)] == [1, 3, 3, 3]
    assert [paper.at_most(3).seeds(n) for n in (1, 3, 5, 10)] == [1, 3, 5, 10]  # those that are there are shown
    assert smoke.at_most(5).trained(10) == smoke.seeds(10) == 2  # never more than the scale has
    assert paper.at_most(None) == paper
    with pytest.raises(ConfigError, match="seeds must be at least 1, not 0"):
        reproduce("fig3b", seeds=0)


def test_a_page_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no figures"):
        claims_page(tmp_path)
    (tmp_path / "fig2c.json").write_text("{")
    with pytest.raises(ResultsError, match="kenyon reproduce fig2c"):
        claims_page(tmp_path)


def test_names_and_scales_that_are_none() -> None:
    with pytest.raises(ConfigError, match="fig2c"):
        reproduce("fig2e")
    with pytest.raises(ConfigError, match="smoke"):
        reproduce("fig2c", scale="smokey")
    with pytest.raises(ConfigError, match="No figure"):
        reproduce([])
    with pytest.raises(ConfigError, match="made of digits, not of r-cifar-100"):
        reproduce("fig2c", benchmarks=["r-cifar-100"])


def test_claims_are_a_table_with_a_column_a_benchmark(tmp_path: Path) -> None:
    claims = [
        {"claim": "here: more beats less", "verdict": "for", "difference": 2.8349, "sem": 0.0712, "runs": [1, 2, 3]},
        {"claim": "there: more beats less", "verdict": "undecided", "difference": -1.33, "sem": 1.49, "runs": [1, 2]},
        {
            "claim": "there: less is enough (it says: or more)",
            "verdict": "against",
            "difference": -3.14159,
            "sem": None,
            "runs": [1],
        },
    ]
    body = {"name": "s7", "title": "A title, and (more)", "shows": "what is", "notes": [], "claims": claims}
    (tmp_path / "s7.json").write_text(json.dumps(body | {"numbers": {"rows": []}}))
    lines = claims_page(tmp_path, "pictures").splitlines()
    assert "3 claims of 1 figures and tables: 1 hold, 1 do not, 1 are undecided." in lines[0]
    assert "| [s7: A title, and (more)](#s7-a-title-and-more) | 1 | 1 | 1 |" in lines
    assert lines[-4:] == [
        "| the paper says | here | there |",
        "|---|---|---|",
        "| more beats less | **holds** +2.835 ± 0.071, n 3 | undecided -1.3 ± 1.5, n 2 |",
        "| less is enough (it says: or more) |  | **does not hold** -3.14, n 1 |",
    ]


def test_runs_of_smaller_scales_are_no_results_of_a_benchmark(tmp_path: Path) -> None:
    """Such runs are below the folder of a report, and are shown only if named."""
    assert set(ASIDE) == {scale.folder for scale in SCALES.values()} - {""}
    for folder, epochs in (("digits", 2), ("smoke/digits", 1)):
        out = (tmp_path / folder).parent
        kenyon.run("digits", "ewc", 1, tasks=2, epochs=epochs, fwt=False, device="cpu", out=out)
    assert [file.relative_to(tmp_path).parts[0] for file, _ in reported(tmp_path)] == ["digits"]
    assert len(reported(tmp_path / "smoke")) == 1
