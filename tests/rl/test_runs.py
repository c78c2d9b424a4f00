"""Games from the command line to files, and back: results, interruptions, policies, and words for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kenyon.errors import ConfigError, DataError, ResultsError
from kenyon.experiments.config import Config, configure, playable, settings
from kenyon.experiments.policy import policy_of
from kenyon.experiments.progress import Silent
from kenyon.experiments.results import GameResult
from kenyon.experiments.runner import execute, plan, run
from kenyon.experiments.store import weights_path
from kenyon.methods import METHODS
from kenyon.rl.suites import SUITE_BENCHMARKS, SuiteBenchmark
from kenyon.rl.trainer import Agents
from kenyon.training import Interrupted
from kenyon.training import checkpoint as keeping
from tests.cli.conftest import Said
from tests.rl.fleets import SHORT
from tests.rl.toys import make

Kenyon = Callable[..., Said]


def test_a_run_leaves_scores_with_their_origin(toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path) -> None:
    words = ("run", "toys", "--games", "sort,catch", "--seeds", 2, "--out", tmp_path, "--set", "episodes=2")
    said = kenyon(*words, "--method", "finetune,caf-ewc", "--steps", 96, "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out.splitlines()[-1])
    assert told["games"] == ["sort", "catch"] and set(told["methods"]) == {"finetune", "caf-ewc"}
    for method in told["methods"].values():
        assert method["seeds"] == [0, 1] and all(name in method for name in ("nar", "np", "ns"))
    result = GameResult.load(tmp_path / "toys" / "caf-ewc" / "scores.json")
    assert result.config["training"]["steps"] == 96 and result.config["architecture"]["learners"] == 5
    # Three updates of 32 steps; two evaluations a game.
    assert result.moments == [[0, 32], [0, 96], [1, 32], [1, 96]] and result.ends == [1, 3]
    assert [run.seed for run in result.runs] == [0, 1] and result.scores.shape == (2, 4, 2)
    assert np.isnan(result.scores[:, :2, 1]).all() and not np.isnan(result.scores[:, 2:]).any()
    (fleet,) = result.fleets
    assert fleet.steps_per_second > 0 and fleet.seconds > 0 and {"kenyon", "torch"} <= set(fleet.versions)
    shown = kenyon("show", tmp_path)
    assert shown.code == 0 and "sort" in shown.out and "caf-ewc" in shown.out
    assert "finetune" in json.loads(kenyon("show", tmp_path, "--json").out)["toys"]["methods"]
    details = " ".join(kenyon("show", tmp_path / "toys" / "caf-ewc").out.split())
    assert "Settings: " in details and "steps=96" in details and "Seed 1, in the end: sort " in details
    again = kenyon(*words, "--method", "finetune,caf-ewc", "--steps", 96)
    assert again.code == 0 and "seeds" not in again.err  # nothing was trained again
    for name in ("run.json", "state"):
        assert not list(tmp_path.rglob(f"{name}*"))


def test_more_seeds_are_added_with_the_numbers_they_have_alone(toys: SuiteBenchmark, tmp_path: Path) -> None:
    run("toys", "ewc", [1], games=["catch"], device="cpu", out=tmp_path / "a")
    more = run("toys", "ewc", [0, 1], games=["catch"], device="cpu", out=tmp_path / "a")["ewc"]
    once = run("toys", "ewc", [0, 1], games=["catch"], device="cpu", out=tmp_path / "b")["ewc"]
    assert [run.scores for run in more.runs] == [run.scores for run in once.runs]
    assert [fleet.seeds for fleet in more.fleets] == [[1], [0]]
    for seed in (0, 1):
        name = f"toys/ewc/weights-{seed}.safetensors"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_stopped_run_goes_on(toys: SuiteBenchmark, tmp_path: Path) -> None:
    whole = run("toys", "ewc", [1, 2], games=["catch", "sort"], device="cpu", out=tmp_path / "whole")["ewc"]
    asked = plan("toys", ["ewc"], [1, 2], games=["catch", "sort"], device="cpu", out=tmp_path / "cut")
    stops = 0
    for after in (2, 3, 1):  # updates until somebody presses Ctrl-C, each time
        left = iter(range(after))
        with pytest.raises(Interrupted):
            execute(asked, stop=lambda left=left: next(left, None) is None)
        kept = [path.name for path in (tmp_path / "cut").rglob("state-*")]
        assert len(kept) == min(stops + 1, 2)  # the state, and the one before it
        stops += 1
    found = execute(asked)["ewc"]
    assert [run.scores for run in found.runs] == [run.scores for run in whole.runs]
    assert not list((tmp_path / "cut").rglob("state-*"))
    assert stops == 3


class Failing(Silent):
    """Notes where fleets start; the display breaks down after some updates."""

    def __init__(self, after: int = 1000) -> None:
        self.left, self.starts = after, list[int]()

    def fleet_starts(self, cells: Any, done: int, total: int) -> None:
        self.starts.append(done)

    def update_done(self, agents: Agents) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("no more")


@pytest.mark.parametrize("where", ["display", "next game"])
@pytest.mark.filterwarnings("error")
def test_what_comes_up_in_the_middle_leaves_a_state_to_go_on_from(
    toys: SuiteBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole = run("toys", "ewc", [1, 2], games=["catch", "sort"], device="cpu", out=tmp_path / "whole")["ewc"]
    asked = plan("toys", ["ewc"], [1, 2], games=["catch", "sort"], device="cpu", out=tmp_path / "cut")
    collect = Agents._collect

    def broken(self: Agents, *rest: Any) -> None:
        if self.position.phase == 1:
            raise RuntimeError("no more")
        collect(self, *rest)

    with monkeypatch.context() as patch:
        if where == "next game":
            patch.setattr(Agents, "_collect", broken)
            for name in ("COPY_EVERY", "COPY_REST"):
                patch.setattr(keeping, name, 0.0)
        with pytest.raises(RuntimeError, match="no more"):
            execute(asked, progress=Failing(3 if where == "display" else 1000))
    again = Failing()
    found = execute(asked, progress=again)["ewc"]
    assert again.starts == [3 if where == "display" else SHORT.updates]
    assert [run.scores for run in found.runs] == [run.scores for run in whole.runs]


def test_a_gradient_that_is_not_finite_ends_a_run(
    toys: SuiteBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in the last step, whose loss was finite: the weights that it leaves are not."""
    gradients, left = Agents._gradients, SHORT.updates * SHORT.epochs * SHORT.minibatches

    def spoiled(self: Agents, *rest: Any, **more: Any) -> None:
        nonlocal left
        gradients(self, *rest, **more)
        left -= 1
        if not left:
            self.gradient[0, 0] = torch.inf

    monkeypatch.setattr(Agents, "_gradients", spoiled)
    result = run("toys", "finetune", [0, 1], games=["catch"], device="cpu", out=tmp_path)["finetune"]
    assert result.runs[0].diverged == [0, SHORT.updates - 1] and result.runs[1].complete


def test_a_damaged_state_is_set_aside_and_the_one_before_serves(toys: SuiteBenchmark, tmp_path: Path) -> None:
    whole = run("toys", "ewc", 2, games=["catch"], device="cpu", out=tmp_path / "whole")["ewc"]
    asked = plan("toys", ["ewc"], 2, games=["catch"], device="cpu", out=tmp_path)
    for after in (1, 1):
        left = iter(range(after))
        with pytest.raises(Interrupted):
            execute(asked, stop=lambda left=left: next(left, None) is None)
    (last,) = [path for path in tmp_path.rglob("state-*") if "before" not in path.name]
    body = bytearray(last.read_bytes())
    body[len(body) // 2] ^= 255
    last.write_bytes(body)
    with pytest.warns(UserWarning, match=r"checksum is wrong.*-before.safetensors is used instead"):
        assert execute(asked)["ewc"].runs == whole.runs
    assert [path.name for path in tmp_path.rglob("state-*")] == [f"{last.name}.damaged"]


def test_a_policy_is_read_back(toys: SuiteBenchmark, tmp_path: Path) -> None:
    run("toys", "caf-ewc", [4], games=["catch", "sort"], device="cpu", out=tmp_path)
    folder = tmp_path / "toys" / "caf-ewc"
    policy = policy_of(folder, 4)
    assert policy.game == "sort"
    pixels = make("catch", 5, 0, False).reset()
    p = policy.playing("catch").probabilities(pixels)
    assert p.shape == (5, 3) and np.allclose(p.sum(1), 1)
    assert np.array_equal(policy_of(folder, 4, "catch").act(pixels), p.argmax(1))
    assert not np.allclose(p, policy.probabilities(pixels))
    with pytest.raises(ConfigError, match="no game of this run called 'dodge'"):
        policy.playing("dodge")
    with pytest.raises(ResultsError, match="no finished run of seed 9"):
        policy_of(folder, 9)
    none: Any
    for none in (pixels[0], pixels[:, :, 1:], pixels / 255, pixels.astype(int), None, "x", [[1]]):
        with pytest.raises(DataError, match=r"Observations of sort are bytes \(uint8\) of the shape \(N, "):
            policy.act(none)
    assert policy.act(pixels[:0]).shape == (0,)
    weights_path(folder, 4).unlink()
    with pytest.raises(ResultsError, match=r"the weights of seed 4 were not kept\. Train it again in another folder"):
        policy_of(folder, 4)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--games", "catch,snatch"), "no game of toys called 'snatch'. Did you mean catch?"),
        (("--games", "catch,catch"), "named twice"),
        (("--games", ","), "No game is named"),
        (("--steps", 31), "steps=31 is too few for one update: 4 copies x 8 steps need 32"),
        (("--steps", 64, "--set", "steps=64"), "given twice"),
        (("--set", "minibatches=5"), "cannot be divided into 5 equal minibatches"),
        (("--set", "clip=0"), "clip must be a finite number above 0"),
        (("--set", "copies=x"), "copies must be a whole number"),
        (("--set", "lambda_sp=1,1"), "lambda_sp has the value 1 twice"),
        (("--set", "horizn=3"), "Did you mean horizon?"),
        (("--set", "definition=paper"), "For games there is the published definition alone"),
        (("--method", "ewc-af2"), "works on the images of a task"),
        (("--method", "mas"), "mas needs lambda_sp"),
        (("--epochs", 3), "--epochs is for images"),
        (("--tasks", 3), "--tasks is for images"),
        (("--log", "wandb"), "--log is for images"),
    ],
)
def test_what_is_wrong_is_told(
    words: tuple[object, ...], told: str, toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path
) -> None:
    method = () if "--method" in words else ("--method", "ewc")
    said = kenyon("run", "toys", "--out", tmp_path, *method, *words)
    assert said.code == 1 and told in said.err.replace("\n", " "), said.err


def test_a_list_makes_a_grid_whose_points_have_the_numbers_they_have_alone(
    toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path
) -> None:
    words = (
        "--games",
        "catch,sort",
        "--method",
        "finetune,ewc",
        "--seeds",
        2,
        "--steps",
        64,
        "--set",
        "lambda_sp=1,900",
    )
    said = kenyon("run", "toys", *words, "--fleet", 1, "--json", "--out", tmp_path)
    assert said.code == 0, said.err
    assert [*json.loads(said.out)["methods"]] == ["finetune", "ewc[lambda_sp=1]", "ewc[lambda_sp=900]"]
    for value in (1.0, 900.0):
        name = f"lambda_sp={value:g}"
        more: dict[str, Any] = {"games": ["catch", "sort"], "device": "cpu", "steps": 64, "lambda_sp": value}
        alone = run("toys", "ewc", 2, out=tmp_path / "alone" / name, **more)["ewc"]
        result = GameResult.load(tmp_path / "toys/ewc" / name / "scores.json")
        assert (
            repr(result.runs) == repr(alone.runs) and len(result.fleets) == 2 and result.point == {"lambda_sp": value}
        )
        assert policy_of(tmp_path / "toys/ewc" / name, 1).row.equal(
            policy_of(tmp_path / "alone" / name / "toys/ewc", 1).row
        )
    shown = kenyon("show", tmp_path / "toys", "--json")
    assert len(json.loads(shown.out)["toys"]["methods"]) == 3


def test_what_a_device_has_no_room_for_is_split_and_told(
    toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Agents._start_game

    def full(most: int) -> None:
        def begins(self: Agents) -> None:
            if len(self.seeds) > most:
                raise torch.OutOfMemoryError
            begin(self)

        monkeypatch.setattr(Agents, "_start_game", begins)

    words = ("run", "toys", "--games", "catch", "--method", "ewc", "--seeds", 3, "--set", "rate=0.01,")
    full(2)
    said = kenyon(*words, "--out", tmp_path / "a")
    assert said.code == 0 and "no memory for 3 runs at once" in said.err.replace("\n", " ")
    full(0)
    said = kenyon(*words, "--out", tmp_path / "b")
    assert said.code == 1 and "(4 copies of a game, 8 steps, 4 minibatches, width 12) does not fit" in said.err
    (command,) = [line for line in said.err.splitlines() if "kenyon run" in line]
    monkeypatch.setattr(Agents, "_start_game", begin)
    assert kenyon(*command.partition("kenyon ")[2].split()).code == 0  # told so that it can be typed
    results = [GameResult.load(tmp_path / out / "toys/ewc/rate=0.01/scores.json") for out in "ab"]
    assert results[0].runs == results[1].runs and len(results[0].fleets) == 2


def test_another_order_of_games_needs_another_folder(toys: SuiteBenchmark, tmp_path: Path) -> None:
    run("toys", "finetune", [0], games=["catch", "sort"], device="cpu", out=tmp_path)
    with pytest.raises(ResultsError, match=r"games was \['catch', 'sort'\], now \['sort', 'catch'\]"):
        plan("toys", ["finetune"], [0], games=["sort", "catch"], out=tmp_path)


def test_images_know_nothing_of_games(kenyon: Kenyon, tmp_path: Path) -> None:
    said = kenyon("run", "digits", "--steps", 5, "--out", tmp_path)
    assert said.code == 1 and "--steps is for suites of games" in said.err


def test_every_playable_method_can_be_configured_and_read_back(toys: SuiteBenchmark) -> None:
    names = [name for name, spec in METHODS.items() if playable(spec)]
    assert {"finetune", "ewc", "mas", "si", "cpr-ewc", "mcl-ewc", "caf-ewc", "caf-mas", "ewc-af1"} <= set(names)
    assert not {"ewc-af2", "pnc", "agscl", "er", "joint", "icl-ewc"} & set(names)
    for name in names:
        config = configure("toys", name, overrides=dict.fromkeys(METHODS[name].required, 1.0))
        assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
        assert {"steps", "discount", "width"} <= set(settings(name, games=True))


def test_the_published_settings_of_atari(tmp_path: Path) -> None:
    atari = SUITE_BENCHMARKS["atari"]
    ppo = atari.training
    assert (ppo.copies, ppo.horizon, ppo.epochs, ppo.minibatches, ppo.updates) == (128, 64, 10, 64, 610)
    assert len(ppo.evaluated) == 30 and ppo.evaluated[-1] == 610
    assert (atari.width, atari.widths[5]) == (128, 32)
    sticky = plan("atari-sticky", ["ewc"], 1, out=tmp_path).points[0].config
    assert (sticky.training, sticky.architecture.width) == (ppo, 128) and SUITE_BENCHMARKS[
        "atari-sticky"
    ].suite.name == sticky.benchmark
    values = {name: dict(some) for name, some in atari.hyperparameters.items()}
    assert values["ewc"] == {"lambda_sp": 1e5, "accumulate": "sum"} and values["mas"] == {"lambda_sp": 10}
    assert values["cpr-ewc"]["lambda_cpr"] == 0.05
    assert (values["caf-ewc"]["lambda_af"], values["caf-ewc"]["gamma"]) == (1e-5, 0.01)


def test_a_run_that_diverged_keeps_what_it_had(
    toys: SuiteBenchmark, kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Agents._start_game

    def spoiled(self: Agents) -> None:
        begin(self)
        if self.position.phase == 1:
            self.theta[0].fill_(torch.nan)

    monkeypatch.setattr(Agents, "_start_game", spoiled)
    result = run("toys", "ewc", [0, 1], games=["catch", "sort"], device="cpu", out=tmp_path)["ewc"]
    assert result.runs[0].diverged == [1, 0] and len(result.runs[0].scores) == 2
    assert [run.seed for run in result.complete_runs] == [1]
    assert not (tmp_path / "toys/ewc/weights-0.safetensors").exists()
    assert result.to_json() == GameResult.load(tmp_path / "toys/ewc/scores.json").restricted([0, 1]).to_json()
    said = " ".join(kenyon("show", tmp_path).out.split())
    assert "2 games, 1 run " in said and "runs 1 of 2" in said and "Diverged: ewc 1 of 2 runs." in said
