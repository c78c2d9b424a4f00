"""Files that say what to run: what they may say, what wins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kenyon
from kenyon.errors import ConfigError
from kenyon.experiments.spec import merge_spec, read_spec

WHOLE = """
benchmark = "digits"
method = "caf-ewc"
seeds = [0, 3]

[settings]
lambda_sp = 5000
gamma = 0.1
epochs = 2

[origin]
anything = "goes"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    return path


def test_it_says_everything_and_what_is_said_beside_it_wins(path: Path) -> None:
    file = read_spec(path)
    wanted = merge_spec(file, {})
    assert (wanted.benchmarks, wanted.methods, wanted.seeds) == (("digits",), ("caf-ewc",), [0, 3])
    assert wanted.settings == {"lambda_sp": 5000, "gamma": 0.1, "epochs": 2}
    wanted = merge_spec(
        file, {"benchmarks": ["digits"], "methods": ["caf-ewc"], "seeds": 7, "settings": {"gamma": 0.2}}
    )
    assert wanted.seeds == 7 and wanted.settings == {"lambda_sp": 5000, "gamma": 0.2, "epochs": 2}


def test_everything_may_be_left_out(path: Path) -> None:
    path.write_text("")
    for file in (None, read_spec(path)):
        wanted = merge_spec(file, {"settings": {"epochs": 3}})
        assert wanted.benchmarks == ("digits",) and wanted.methods == ("finetune", "ewc", "caf-ewc")
        assert wanted.seeds is None and wanted.settings == {"epochs": 3}
    path.write_text('method = "ewc, mas"')
    assert read_spec(path).given["methods"] == ("ewc", "mas")
    path.write_text('method = ["ewc", "mas"]\nseeds = 2', encoding="utf-8-sig")  # as some editors on Windows do
    assert read_spec(path).given["methods"] == ("ewc", "mas") and read_spec(path).given["seeds"] == 2


def test_python_runs_it(path: Path, tmp_path: Path) -> None:
    ran = kenyon.run(config=path, tasks=1, fwt=False, device="cpu", out=tmp_path, epochs=1, width=2)
    (result,) = ran.values()
    assert [run.seed for run in result.runs] == [0, 3] and result.config["training"]["epochs"] == 1
    assert result.config["hyper"]["lambda_sp"] == 5000


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("benchmrk = 'digits'", r"no key of a configuration called 'benchmrk'. Did you mean benchmark"),
        ("lambda_sp = 3", r"lambda_sp is a setting. Write it below a line \[settings\]"),
        ("seeds = 'many'", "seeds must be how many, or a list of whole numbers, not 'many'"),
        ("seeds = [1, true]", "seeds must be"),
        ("method = 3", "method must be a name"),
        ("benchmark = 3", "benchmark must be a name"),
        ("benchmark = []", "benchmark must be a name in quotes, or a list of names"),
        ("method = ['ewc', 'ewc']", "or a list of names, each once"),
        ("settings = 3", r"settings must be a table: \[settings\]"),
        ("benchmark = ", "is not TOML"),
    ],
)
def test_what_it_may_not_say(text: str, named: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=named) as raised:
        read_spec(path)
    assert "mine.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"benchmark": "r-cifar-100"}, r"mine.toml is for digits, not for r-cifar-100"),
        ({"methods": "ewc"}, r"mine.toml is for caf-ewc, not for ewc"),
        ({"methods": "ewc,caf-ewc"}, r"mine.toml is for caf-ewc, not for ewc, caf-ewc"),
        ({"methods": []}, "No method is named"),
    ],
)
def test_settings_that_were_chosen_for_others_are_refused(
    beside: dict[str, Any], named: str, path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=named):
        kenyon.run(config=path, out=tmp_path / "out", **beside)


def test_unknown_settings_and_missing_files_are_named(path: Path, tmp_path: Path) -> None:
    path.write_text("method = 'ewc'\n[settings]\nlamda_sp = 3")
    with pytest.raises(ConfigError, match=r"no setting of ewc called 'lamda_sp'. Did you mean.*lambda_sp"):
        kenyon.run(config=path, out=tmp_path / "out")
    path.write_text("method = 'ewc'\n[settings]\nepochs = 2.5")
    with pytest.raises(ConfigError, match=r"epochs must be a whole number, not 2\.5"):
        kenyon.run(config=path, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"Cannot read the configuration .*there.toml: No such file"):
        read_spec(tmp_path / "there.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_spec(path)
