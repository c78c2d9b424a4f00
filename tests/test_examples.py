"""The examples of the estimator run, in their smallest form."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    few = ["--tasks=2", "--per-class=8", "--epochs=1", "--seeds=1", "--width=4", "--device=cpu"]
    found = []
    for jobs in (1, 2):
        path = tmp_path / f"{jobs}.json"
        command = [sys.executable, str(EXAMPLES / "table.py"), *few, f"--jobs={jobs}", f"--json={path}"]
        subprocess.run([*command, "--strengths=ewc=1e3,caf-ewc=1e4"], check=True, capture_output=True)
        found.append([row["named"] for row in json.loads(path.read_text())["rows"]])
    assert found[0] == found[1]


def test_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = runpy.run_path(str(EXAMPLES / "networks.py"))
    images = torch.zeros(2, 3, 32, 32)
    assert networks["resnet18"](2)(images).shape == (2, 16)
    assert networks["VisionTransformer"](12)(images).shape == (2, 12)
    parameters = sum(p.numel() for p in networks["resnet18"]().parameters())
    assert 11.0e6 < parameters < 11.3e6  # as the usual ResNet-18 without its head
