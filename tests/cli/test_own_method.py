"""A method of a user's own, in one file and without touching the package."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kenyon import ContinualLearner
from kenyon.errors import ConfigError
from kenyon.experiments import configure
from kenyon.methods import METHODS, find_method, load_method_file
from kenyon.methods.penalties.weights import Weights
from kenyon.models import Net, digits_mlp
from tests.cli.conftest import Said
from tests.unsealed import unsealed

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
SMALL = ("--tasks", 2, "--epochs", 1, "--seeds", 1, "--no-fwt")
KINDS = """
from typing import Literal
from kenyon.methods import Method, method

@method
def told(form: Literal["mild", "hard"] = "mild", rounds: int = 1, warm: bool = False, share: float | None = None):
    assert (form, rounds, warm, share) in [("mild", 1, False, None), ("hard", 3, True, 0.5)]
    return Method()
"""

MISMADE = "from kenyon.methods import Method, method\n@method\ndef mine(): return Method(penalties=(0.5,))"


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_a_file_is_a_method(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    out = ("--out", tmp_path)
    said = kenyon(
        "run", "digits", "--method", f"finetune,{EXAMPLE}", *out, *SMALL, "--set", "lambda_af=1e-3", "--json"
    )
    assert said.code == 0, said.err
    assert list(json.loads(said.out.splitlines()[-1])["methods"]) == [
        "finetune",
        "ewc-af1-cpr",
        "selective-forgetting",
    ]
    METHODS.pop("selective-forgetting")  # as in another process
    said = kenyon("analyse", tmp_path, "--what", "pertask")
    assert said.code == 1 and "finetune,mine.py" in said.err
    said = kenyon("analyse", tmp_path, "--what", "pertask", "--method", EXAMPLE)
    assert said.code == 0, said.err
    assert (tmp_path / "digits" / "selective-forgetting" / "analysis" / "pertask.json").is_file()


def test_a_search_takes_a_file_with_one_method(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("search", "digits", "--method", EXAMPLE, "--out", tmp_path)
    assert said.code == 1 and "ewc-af1-cpr, selective-forgetting" in said.err


def test_annotations_say_what_values_are(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(KINDS)
    run = ("run", "digits", "--method", file, "--out", tmp_path, *SMALL)
    words = [word for pair in ("form=hard", "rounds=3", "warm=yes", "share=0.5") for word in ("--set", pair)]
    said = kenyon(*run, *words)
    assert said.code == 0, said.err
    assert find_method("told").summary == ""  # a docstring is not asked for
    for pair, why in (("rounds=1.5", "rounds must be a whole number"), ("warm=3", "warm is true or false")):
        said = kenyon(*run, "--set", pair)
        assert said.code == 1 and why in said.err


def test_a_configuration_may_name_a_file(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'method = ["finetune", "{EXAMPLE}"]')
    said = kenyon("run", "--config", tmp_path / "mine.toml", "--out", tmp_path, *SMALL)
    assert said.code == 0, said.err
    assert {path.name for path in (tmp_path / "digits").iterdir()} >= {"ewc-af1-cpr", "selective-forgetting"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must define at least one function with @method"),
        ("from kenyon.methods import Method, method\n@method\ndef ewc(): return Method()", "a method ewc already"),
        ("import nonsense", "ModuleNotFoundError"),
        (MISMADE, "0.5 is no penalty"),
    ],
)
def test_files_that_are_no_method(text: str, why: str, kenyon: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    said = kenyon("run", "--method", tmp_path / "mine.py", "--out", tmp_path)
    assert said.code == 1 and why in said.err
    assert "no file" in kenyon("run", "--method", tmp_path / "missing.py").err


def test_two_files_of_one_name(tmp_path: Path) -> None:
    found = []
    for name in ("alpha_here", "beta_there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(
            f"from kenyon.methods import Method, method\n@method\ndef {name}(): return Method()"
        )
        found.append(load_method_file(tmp_path / name / "mine.py"))
    assert found == [["alpha-here"], ["beta-there"]]


def test_the_forces_of_the_examples_penalty_are_its_gradient() -> None:
    penalty = runpy.run_path(str(EXAMPLE))["ForgetUnimportant"](torch.tensor([2.0, 3.0]))
    net = Net(digits_mlp(3), (1, 8, 8), (2, 2))
    made = torch.Generator().manual_seed(0)
    theta = torch.randn(2, net.layout.size, generator=made, requires_grad=True)
    importance = torch.rand(2, net.layout.protected, generator=made)
    weights = Weights(net, theta, torch.tensor([0]), importance, torch.zeros_like(importance))
    (expected,) = torch.autograd.grad(penalty.value(weights).sum(), theta)
    got = torch.zeros_like(theta)
    for force in penalty.forces(weights, got):
        force.add_to(got, theta.detach())
    torch.testing.assert_close(got, expected)


NEEDY = """
from typing import Literal
from kenyon.methods import Method, method
from kenyon.methods.base import Replay

@method
def needy_replay(memory: int, form: Literal["mixed", "published"]):
    return Method(replay=Replay(memory, form=form))

@method
def needy_several(share: float):
    assert 0 < share < 1
    return Method(multi=True)
"""


def test_required_values_that_are_no_strengths(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    """What the values decide is asked of the method at those that were given."""
    file = tmp_path / "mine.py"
    file.write_text(NEEDY)
    run = ("run", "digits", "--method", file, "--out", tmp_path, *SMALL)
    said = kenyon(*run, "--set", "memory=5")
    assert said.code == 1 and "needy-replay needs form: give --set form=VALUE" in said.err
    given = ("--set", "memory=5", "--set", "form=mixed", "--set", "share=0.5")
    said = kenyon(*run, *given, "--json")
    assert said.code == 0, said.err
    assert list(json.loads(said.out.splitlines()[-1])["methods"]) == ["needy-replay", "needy-several"]
    assert find_method("needy-replay").keeps_samples  # at values that are made up
    made = {
        name: configure("digits", name, overrides=values)
        for name, values in (
            ("needy-replay", {"memory": 5, "form": "mixed"}),
            ("needy-several", {"share": 0.5}),
        )
    }
    assert [config.architecture.learners for config in made.values()] == [1, 5]
    with pytest.raises(ConfigError, match="no setting of needy-replay called 'learners'"):
        configure("digits", "needy-replay", overrides={"memory": 5, "form": "mixed", "learners": 2})
    assert configure("digits", "needy-several", overrides={"share": 0.5, "learners": 2}).architecture.learners == 2
    said = kenyon("list", "methods")  # a method that refuses what is made up stands in nobody's way
    assert said.code == 0, said.err


def test_required_values_in_the_estimator(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NEEDY)
    load_method_file(file)
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    one = ContinualLearner(method="needy-replay", options={"memory": 5, "form": "mixed"}, epochs=1).fit(x, y)
    several = ContinualLearner(method="needy-several", options={"share": 0.5}, epochs=1).fit(x, y)
    assert (one.knowledge_.net.learners, several.knowledge_.net.learners) == (1, 5)


def test_a_function_that_returns_no_method(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from kenyon.methods import Method, method\n@method\ndef mine(): Method()")
    said = kenyon("run", "digits", "--method", file, "--out", tmp_path, *SMALL)
    assert said.code == 1 and "the method mine gives None. It must return a Method" in said.err


STEADY = '''"""A file."""
from kenyon.methods.importance import fisher_published
from kenyon.methods import Method, method
from kenyon.methods.penalties.weights import StabilityProtection, Strength


@method
def steady(lambda_sp: Strength = 1e4):
    """Plain protection."""
    return Method(fisher_published(), (StabilityProtection(lambda_sp),))
'''


def test_runs_of_other_code_do_not_count_as_runs_of_this(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    """A default that changed would otherwise be averaged with what it was."""
    file, out = tmp_path / "mine.py", tmp_path / "out"
    run = ("run", "digits", "--method", file, "--out", out, "--tasks", 2, "--epochs", 1, "--no-fwt", "--seeds")
    file.write_text(STEADY)
    assert kenyon(*run, 1).code == 0
    file.write_text(STEADY.replace("A file.", "Mine.").replace("Plain", "Simple") + "\n# a comment\n")
    assert kenyon(*run, 2).code == 0
    before = (out / "digits" / "steady" / "result.json").read_bytes()
    for changed in (STEADY.replace("1e4", "1e2"), STEADY.replace("(StabilityProtection(lambda_sp),)", "()")):
        file.write_text(changed)
        said = kenyon(*run, 3)
        assert said.code == 1 and "results, which another method of that name made: its code has changed" in said.err
    assert (out / "digits" / "steady" / "result.json").read_bytes() == before
    file.write_text(STEADY)
    said = kenyon(*run, 2, "--json")
    assert json.loads(said.out.splitlines()[-1])["methods"]["steady"]["seeds"] == [0, 1]


def test_results_from_before_code_was_told_apart_may_be_of_any(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file, path = tmp_path / "mine.py", tmp_path / "digits" / "steady" / "result.json"
    run = ("run", "digits", "--method", file, "--out", tmp_path, "--tasks", 2, "--epochs", 1, "--no-fwt", "--seeds")
    file.write_text(STEADY)
    assert kenyon(*run, 1).code == 0
    stored = unsealed(path)
    assert list(stored["config"].pop("own")) == ["method"]
    path.write_text(json.dumps(stored))
    assert kenyon(*run, 2).code == 0 and len(json.loads(path.read_text())["runs"]) == 2
    assert kenyon("analyse", tmp_path, "--what", "change", "--method", file).code == 0  # reads the weights of both


def test_kenyons_own_code_is_known_by_its_version() -> None:
    assert "own" not in configure("digits", "ewc").as_dict()


def test_where_an_own_penalty_failed_is_told_in_a_line(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, text = tmp_path / "mine.py", EXAMPLE.read_text()
    first = "    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:\n"
    assert first in text
    file.write_text(text.replace(first, f"{first}        raise RuntimeError('oops')\n"))
    run = ("run", "digits", "--method", file, "--out", tmp_path, *SMALL, "--set", "lambda_af=1e-3")
    said = kenyon(*run)
    assert said.code == 1 and "in forces: RuntimeError: oops. Finished runs are saved" in said.err
    assert "Traceback" not in said.err and "KENYON_TRACEBACK=1" in said.err
    monkeypatch.setenv("KENYON_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="oops"):
        kenyon(*run)
