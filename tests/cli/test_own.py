"""A user's own data and backbones, from one file to results: tables, signals, tokens, domains and times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kenyon.data import Source, from_arrays
from kenyon.errors import ConfigError
from kenyon.experiments import benchmark, find_benchmark, load_benchmark_file
from kenyon.experiments.config import configure
from kenyon.experiments.training import build_net
from tests.cli.conftest import Said

HEAD = """
import numpy as np
import torch
from torch import nn
from kenyon.experiments import benchmark
from kenyon.data import Classes, Domains, Times, from_arrays
from kenyon.training import Training

rng = np.random.default_rng(0)
y = np.arange(160) % 4
HYPER = {"caf-ewc": {"lambda_sp": 100.0, "lambda_af": 1e-6, "gamma": 0.02}, "ewc": {"lambda_sp": 100.0}}
TRAINING = Training(epochs=2, batch=16, validation=0.2)
"""
TABLE = """
def dense(width, learners):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8))

@benchmark(backbone=dense, width=24, training=TRAINING, hyperparameters=HYPER)
def mine_table(data):
    return from_arrays(rng.normal(size=(160, 8)) + y[:, None], y, Classes(2))
"""
SIGNALS = """
class Wave(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, width, 3), nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.randn(width))
        self.register_buffer("window", torch.hann_window(10), persistent=False)

    def forward(self, x):
        return (self.norm(self.conv(x)) * self.window).relu().mean(2) * self.scale

@benchmark(backbone=lambda width, learners: Wave(width), width=12, training=TRAINING, hyperparameters=HYPER)
def mine_signals(data):
    return from_arrays(rng.normal(size=(160, 3, 12)) + y[:, None, None], y, Domains(np.arange(160) // 4 % 2))
"""
TOKENS = """
class Words(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.block = nn.TransformerEncoderLayer(width, 2, width, batch_first=True)

    def forward(self, x):
        return self.block(self.embedding(x)).mean(1)

@benchmark(
    backbone=lambda width, learners: Words(width), width=8, widths={5: 2}, training=TRAINING, hyperparameters=HYPER
)
def mine_tokens(data):
    return from_arrays(rng.integers(0, 5, (160, 6)) + 5 * y[:, None], y, Times(2))
"""


@pytest.mark.parametrize(
    ("name", "text", "tasks"), [("table", TABLE, 2), ("signals", SIGNALS, 2), ("tokens", TOKENS, 2)]
)
def test_a_file_of_own_data_is_run(
    kenyon: Callable[..., Said], tmp_path: Path, name: str, text: str, tasks: int
) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + text)
    words = ["--seeds", 2, "--out", tmp_path, "--device", "cpu", "--no-fwt", "--json"]
    said = kenyon("run", path, "-m", "ewc,caf-ewc" if name == "signals" else "caf-ewc", *words)
    assert said.code == 0, said.err
    found = json.loads(said.out.splitlines()[-1])["methods"]["caf-ewc"]
    result = json.loads((tmp_path / f"mine-{name}" / "caf-ewc" / "result.json").read_text())
    assert len(result["runs"]) == 2 and len(result["runs"][0]["accuracy"]) == tasks and found["aac"] is not None
    bench = find_benchmark(f"mine-{name}")
    single, five = bench.parameters(bench.width, 1), bench.parameters(bench.width_for(5), 5)
    assert name == "tokens" or abs(five / single - 1) < 0.25
    if name == "signals":  # batch normalisation, constants and a shared head, read back from their files
        what = ["--what", "flatness,discrepancy,change", "--set", "flatness.directions=1"]
        said = kenyon("analyse", tmp_path, "--benchmark", path, "-m", "ewc", *what, "--device", "cpu")
        assert said.code == 0, said.err


def test_times_and_domains_can_be_searched_on(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    path = tmp_path / "signals.py"
    path.write_text(HEAD + SIGNALS)
    words = ["--set", "lambda_sp=1,100", "--out", tmp_path, "--device", "cpu"]
    said = kenyon("search", path, "--method", "ewc", *words)
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TABLE.replace("def dense(width, learners)", "def dense(width)"), "def backbone(width, learners)"),
        (TABLE.replace("return nn.Sequential(", "return ("), "must give an nn.Module"),
        (TABLE.replace("nn.Linear(8, width)", "nn.Linear(9, width)"), "cannot take a batch of the shape"),
        (TABLE.replace("Classes(2)", "Classes(3)"), "4 classes do not make tasks of 3"),
        (TOKENS.replace("widths={5: 2}, ", ""), "cannot be built with width"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(
    kenyon: Callable[..., Said], tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "wrong.py").write_text(HEAD + text)
    said = kenyon("run", tmp_path / "wrong.py", "-m", "caf-ewc", "--seeds", 1, "--out", tmp_path, "--device", "cpu")
    assert said.code == 1 and words in " ".join(said.err.split()), said.err


def test_the_example_of_domains_can_be_read() -> None:
    name = load_benchmark_file(Path(__file__).parents[2] / "examples" / "own_domains.py")
    source = find_benchmark(name).source
    assert (source.class_counts, source.shape, source.heads) == ((10,) * 4, (64,), "shared")


def test_a_benchmark_may_start_from_given_weights() -> None:
    pretrained = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    pretrained[0].requires_grad_(False)
    hyper = {"caf-ewc": {"lambda_sp": 1.0, "lambda_af": 1e-6, "gamma": 0.02}}

    @benchmark(backbone=lambda width, learners: pretrained, width=6, hyperparameters=hyper, start="given")
    def given_weights(data: object) -> Source:
        return from_arrays(np.random.default_rng(0).normal(size=(80, 8)), np.arange(80) % 4)

    config = configure("given-weights", "caf-ewc")
    net = build_net(config, config.build_method(), given_weights(None).stream(0), torch.device("cpu"))
    row = net.initial([3])[0]
    assert net.learners == 5 and net.backbone_names == ("2.weight", "2.bias")
    assert all(torch.equal(one, pretrained[2].weight) for one in net.layout.view(row, "2.weight"))


def test_a_benchmark_keeps_its_name(tmp_path: Path) -> None:
    """Results know benchmarks by name: those of another digits would be taken for these."""
    (tmp_path / "mine.py").write_text(HEAD + TABLE.replace("mine_table", "digits"))
    with pytest.raises(ConfigError, match="a benchmark digits already"):
        load_benchmark_file(tmp_path / "mine.py")
    assert find_benchmark("digits").width == 16


def test_runs_of_other_data_do_not_count_as_runs_of_these(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + TABLE)
    run = ("run", file, "--method", "ewc", "--out", tmp_path / "out", "--no-fwt", "--seeds")
    assert kenyon(*run, 1).code == 0
    file.write_text((HEAD + TABLE).replace("default_rng(0)", "default_rng(1)"))
    said = kenyon(*run, 2)
    assert said.code == 1 and "results, which another benchmark of that name made" in said.err


def test_values_to_begin_with_are_told_where_none_are_chosen() -> None:
    @benchmark(backbone=lambda width, learners: nn.Linear(8, width), width=6)
    def untuned(data: object) -> Source:
        return from_arrays(np.random.default_rng(0).normal(size=(80, 8)), np.arange(80) % 4)

    told = r"needs lambda_sp, lambda_af, gamma, and nothing is chosen for untuned.*--set gamma=0\.02.*kenyon search"
    with pytest.raises(ConfigError, match=told):
        configure("untuned", "caf-ewc")
    assert configure("untuned", "finetune").hyper == {}


def test_where_a_users_own_file_failed_is_told(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    run = ("run", file, "--method", "ewc", "--out", tmp_path, "--no-fwt", "--seeds", 1)
    file.write_text(HEAD + TABLE.replace("return from_arrays", "1 / 0; return from_arrays"))
    said = kenyon(*run)
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "1 / 0" in text)
    assert said.code == 1 and f"mine.py, line {line}, in mine_table: ZeroDivisionError" in said.err
