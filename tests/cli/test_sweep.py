"""`kenyon sweep` as a user calls it: what it shows and saves, and what it refuses with which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kenyon.errors import ConfigError
from kenyon.sweep import ray_cluster as cluster
from kenyon.sweep.leases import Leases
from kenyon.sweep.storage import MARKS, open_storage
from tests.cli.conftest import Said

Kenyon = Callable[..., Said]
EXPERIMENT = """
benchmark = "digits"
method = ["ewc", "finetune"]
seeds = 1

[settings]
epochs = 1
width = 2
batch = 64
"""
FEW = ["--tasks", 1, "--no-fwt", "--device", "cpu"]


def test_help_names_the_extras(kenyon: Kenyon) -> None:
    said = kenyon("sweep", "--help")
    assert "kenyon[ray]" in said.out and "kenyon[remote]" in said.out  # brackets are markup to Rich


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "experiment.toml").write_text(EXPERIMENT)
    return path


def test_from_a_file_to_tables_pictures_and_a_status(kenyon: Kenyon, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = kenyon("sweep", file, *FEW, "--out", out, "--json")
    assert said.code == 0
    body = json.loads(said.out.splitlines()[-1])["benchmarks"]["digits"]
    assert set(body["methods"]) == {"ewc", "finetune"} and body["device"] == "cpu"
    assert "digits: 1 task, 1 run" in said.err and (out / "digits/figure.png").is_file()
    shown = kenyon("show", out)
    assert "ewc" in shown.out and "finetune" in shown.out
    # The same again as it stands while one fleet waits, one is at work, and one has failed.
    status = json.loads(kenyon("sweep", "--status", "--out", out, "--json").out)
    assert (status["finished"], status["runs"], status["left"]) == (2, 2, None)
    space = open_storage(out)
    first, second = (line["id"] for line in status["lines"])
    space.remove(f"{MARKS}/{first}")
    assert "1 of 2 runs finished; 1 fleet waiting, nobody at work" in kenyon("sweep", "--status", "--out", out).out
    lease = Leases(space).claim(first)
    assert lease is not None
    lease.share = 0.25
    lease.renew()
    said = kenyon("sweep", "--status", "--out", out)
    assert "1 fleet at work, 0 waiting" in said.out and "25%" in said.out and str(os.getpid()) in said.out
    space.write(f"{MARKS}/{second}", json.dumps({"end": "failed", "why": "It broke.", "without": []}).encode())
    said = kenyon("sweep", "--status", "--out", out)
    assert "0 of 2 runs" in said.out and "1 fleet with missing runs" in said.out and "It broke." in said.out


def test_what_is_missing_is_told_after_what_there_is(
    kenyon: Kenyon, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kenyon.experiments import runner

    train = runner.train_tasks

    def fails(job: Any, *given: Any, **more: Any) -> None:
        if job.runs[0].config.method == "ewc":
            raise ValueError("no room")
        train(job, *given, **more)

    monkeypatch.setattr(runner, "train_tasks", fails)
    said = kenyon("sweep", file, *FEW, "--out", tmp_path / "out")
    assert said.code == 1 and "finetune" in said.out and "1 run is missing" in said.err and "no room" in said.err
    assert "kenyon run digits --method ewc --seeds 1 --tasks 1 --set epochs=1 --set batch=64" in said.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("benchmrk = 'digits'", "Did you mean benchmark?"),
        ("benchmark = 'digitz'", "There is no benchmark called 'digitz'. Did you mean digits"),
        ("games = 'catch'", "--games is for suites of games: atari, atari-sticky, rl-mini"),
        ("steps = 64", "steps is a setting. Write it below a line [settings]"),
        ("benchmark = 'rl-mni'", "Did you mean rl-mini"),
        (
            "benchmark = 'rl-mini'\ngames = ['catch', 'snatch']",
            "--tasks is for images, and rl-mini is a suite of games",
        ),
        ("benchmark = 'mine.py'", "There is no file mine.py"),
        ("benchmark = []", "benchmark must be a name in quotes, or a list of names"),
        ("method = 'ewk'", "There is no method called 'ewk'. Did you mean ewc"),
        ("method = []", "method must be a name in quotes, or a list of names"),
        ("seeds = []", "There must be at least one seed"),
        ("[settings]\nlambda_sp = []", "lambda_sp has an empty list of values"),
        ("[settings]\nlambda = 3", "There is no setting of finetune or ewc or caf-ewc called 'lambda'"),
        ("benchmark = ", "is not TOML"),
    ],
)
def test_experiments_that_cannot_be_run(kenyon: Kenyon, file: Path, tmp_path: Path, text: str, told: str) -> None:
    file.write_text(text)
    said = kenyon("sweep", file, *FEW, "--out", tmp_path / "out")
    assert said.code == 1 and told in said.err and not (tmp_path / "out" / ".sweep" / "plan.json").exists()


def test_calls_that_cannot_be_carried_out(kenyon: Kenyon, file: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    out = tmp_path / "out"
    for words, told in (
        (["sweep"], "No experiment is named"),
        (["sweep", file, "--status"], "takes no experiment"),
        (["sweep", "--status", "--out", out], "There is no sweep in"),
        (["sweep", file, *FEW, "--workers", 0, "--out", out], "--workers takes a whole number from 1 on, not 0"),
        (["sweep", file, *FEW, "--out", tmp_path / "taken"], "Cannot write"),
        (["sweep", file, *FEW, "--out", "memory://x", "--workers", 2], "memory:// belongs to one process"),
        (["sweep", tmp_path / "none.toml", "--out", out], "Cannot read the configuration"),
        (["sweep", file, *FEW, "--fleet", 0, "--out", out], "--fleet takes a whole number"),
        (["sweep", file, "--tasks", 9, "--out", out], "digits has 5 tasks"),
        (["sweep", file, *FEW, "--out", out, "--device", "tpu"], "no device 'tpu'"),
    ):
        said = kenyon(*words)
        assert said.code == 1 and told in said.err, (words, said.err)


def test_addresses_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("ray") is None:
        with pytest.raises(ConfigError, match=r"pip install 'kenyon\[ray\]'"):
            cluster.Cluster("local", "cpu")
    monkeypatch.setattr(cluster, "_ray", object)
    for address in ("nonsense", "host:", ":6379", "host:port"):
        with pytest.raises(ConfigError, match="is no address of a Ray cluster"):
            cluster.Cluster(address, "cpu")
    with pytest.raises(ConfigError, match=r"No Ray cluster answers at 127\.0\.0\.1:1 .*ray start --head"):
        cluster.Cluster("127.0.0.1:1", "cpu")
    with pytest.raises(ConfigError, match="--workers is the cluster's own"):
        cluster.Cluster("127.0.0.1:1", "cpu", 2)


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_a_local_ray(file: Path, tmp_path: Path) -> None:
    from kenyon.experiments.results import Result
    from tests.experiments.small import numbers

    words = [sys.executable, "-m", "kenyon", "sweep", file, *FEW]
    for place in ((), ("--ray", "local", "--workers", 2)):
        told = [*words, "--out", tmp_path / str(len(place)), *place]
        subprocess.run([str(word) for word in told], check=True, capture_output=True)
    for method in ("ewc", "finetune"):
        paths = [tmp_path / name / "digits" / method / "result.json" for name in ("0", "4")]
        alone, with_ray = (numbers(Result.load(path)) for path in paths)
        assert alone == with_ray
