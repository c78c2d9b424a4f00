"""The examples of the estimator run, in their smallest form."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from tests.replicas import write_cifar_100

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["table", "table_over_time", "signal_1d"])
def test_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--tasks=2", "--per-class=8", "--epochs=1", "--seeds=2", "--width=4", "--device=cpu"]
    monkeypatch.setattr("sys.argv", [name, *few, f"--json={tmp_path / 'it.json'}"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    rows = json.loads((tmp_path / "it.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["finetune", "ewc", "caf-ewc"]
    assert all(len(row["named"]) == 2 and 0 <= min(row["named"]) <= 100 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == 3


# The other takes seconds and differs by its network, which is tested below.
@pytest.mark.parametrize("name", ["cifar_transformer", pytest.param("cifar_resnet", marks=pytest.mark.torture)])
def test_settings_are_chosen_without_the_test_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar_100(tmp_path, 10, 1)
    few = ["--tasks=2", "--epochs=1", "--seeds=1", "--width=6", "--device=cpu", "--held-out=100"]
    monkeypatch.setattr("sys.argv", [name, *few, f"--data={tmp_path}", "--rates=ewc=1e-4,caf-ewc=3e-4"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    ran = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 3
    tasks = ran["from_source"]("r-cifar-100", ran["args"])
    for _, (X, y), (tested, labels) in tasks:
        assert (len(X), len(tested)) == (40, 10) and set(y.tolist()) == set(labels.tolist())
    ran["args"].held_out = None
    usual = ran["from_source"]("r-cifar-100", ran["args"])
    assert [len(tested) for _, _, (tested, _) in usual] == [5, 5]
    assert [name for name, *_ in usual] != [name for name, *_ in tasks]


def test_several_processes_are_told_one_job_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nprint('words')\nprint(json.dumps({'named': len(sys.argv[-1]), 'seconds': 1}))"
    )
    monkeypatch.setattr("sys.argv", [str(script), "--jobs=2"])
    each = runpy.run_path(str(EXAMPLES / "side_by_side.py"))["_each"]
    assert [one["named"] for one in each(None, [("ewc", 0), ("caf-ewc", 11)], 2)] == [len("ewc:0"), len("caf-ewc:11")]
    few = ["--tasks=2", "--per-class=8", "--epochs=1", "--width=4", "--device=cpu", "--strengths=ewc=1e3"]
    monkeypatch.setattr("sys.argv", ["table", *few, "--only", "ewc:1"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "table.py"), run_name="__main__")
    assert json.loads(capsys.readouterr().out)["named"] >= 0


def test_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = runpy.run_path(str(EXAMPLES / "networks.py"))
    images = torch.zeros(2, 3, 32, 32)
    assert networks["resnet18"](2)(images).shape == (2, 16)
    assert networks["VisionTransformer"](12)(images).shape == (2, 12)
    parameters = sum(p.numel() for p in networks["resnet18"]().parameters())
    assert 11.0e6 < parameters < 11.3e6  # as the usual ResNet-18 without its head
