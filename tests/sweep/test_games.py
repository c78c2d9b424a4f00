"""Suites of games in sweeps: the numbers of `kenyon run`, whoever plays them, whatever dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments import games as runner
from kenyon.experiments.config import configure
from kenyon.experiments.progress import Silent
from kenyon.experiments.results import GameResult
from kenyon.experiments.runner import execute, plan, run
from kenyon.rl.suites import SuiteBenchmark
from kenyon.rl.trainer import Agents
from kenyon.sweep import Unfinished, carry_out, collect, open_storage, plan_sweep
from kenyon.sweep import worker as working
from kenyon.sweep.costs import Costs, Seen, Work, seen_in
from kenyon.sweep.driver import seen_in_store
from kenyon.sweep.local import Local, Processes
from kenyon.sweep.status import Watch
from kenyon.sweep.storage import FLEETS
from kenyon.training import Interrupted
from tests.cli.conftest import Said
from tests.experiments.small import stop_after, weights
from tests.rl.conftest import offered
from tests.sweep.conftest import killing_once
from tests.sweep.test_sweep import clean

FILE = """
benchmark = "toys"
method = ["finetune", "ewc"]
seeds = 2
games = ["sort", "catch"]

[settings]
lambda_sp = [1.0, 900.0]
steps = 64
"""
ASKED: dict[str, Any] = {"lambda_sp": [1.0, 900.0], "steps": 64}
MINI = """
benchmark = "rl-mini"
method = "ewc"
seeds = 2
games = "catch,dodge"

[settings]
steps = 64
copies = 4
horizon = 8
evaluations = 1
episodes = 1
longest = 50
importance_rollouts = 1
"""
SHORT: dict[str, Any] = {"steps": 64, "copies": 4, "horizon": 8, "evaluations": 1, "episodes": 1, "longest": 50}

Numbers = dict[str, str]


class Counter(Silent):
    """Where fleets began."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []  # label, runs, updates that were done

    def fleet_starts(self, cells: Any, done: int, total: int) -> None:
        self.begun.append((cells[0].point.label, len(cells), done))

    def epoch_done(self, trainer: Any) -> None:
        raise AssertionError("games have no epochs")


def numbers(results: dict[str, GameResult]) -> Numbers:
    """Everything but how long it took."""
    return {name: repr((r.config, r.point, r.moments, r.parameters, r.runs)) for name, r in results.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "games.toml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Numbers, dict[str, bytes]]:
    """Numbers and weights by `kenyon run` in one process."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        offered(patch)
        found = run("toys", "finetune,ewc", 2, games=["sort", "catch"], device="cpu", out=out, **ASKED)
    return numbers(found), weights(out)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> SuiteBenchmark:
    return offered(monkeypatch)


@pytest.fixture
def sweeping(file: Path, tmp_path: Path) -> Callable[..., Any]:
    def sweeping(
        out: object = tmp_path / "out", *, stop: Any = lambda: False, progress: Any = None, **more: Any
    ) -> Any:
        sweep = plan_sweep(file, open_storage(str(out)), **more)
        carry_out(sweep, Local("cpu", progress=progress, stop=stop), stop=stop)
        return collect(sweep)

    return sweeping


def test_the_numbers_are_those_of_a_run(sweeping: Any, whole: Any, tmp_path: Path) -> None:
    out, counter = tmp_path / "out", Counter()
    assert numbers(sweeping(progress=counter, fleet=1)["toys"]) == whole[0] and weights(out) == whole[1]
    assert sorted(name for name, _, _ in counter.begun) == sorted(2 * [*whole[0]])
    assert (out / "toys/ewc/lambda_sp=900/scores.json").is_file() and clean(out)
    again = Counter()
    assert numbers(sweeping(progress=again)["toys"]) == whole[0] and not again.begun
    status = Watch(open_storage(out)).look()
    assert status.over and (status.runs, status.finished) == (6, 6) and "finetune, ewc on toys" in status.about
    alone = Counter()
    assert (
        numbers(sweeping(tmp_path / "alone", progress=alone, fleet=1)["toys"]) == whole[0] and len(alone.begun) == 6
    )


def test_games_beside_images(sweeping: Any, file: Path, tmp_path: Path) -> None:
    text = FILE.replace('"toys"', '["digits", "toys"]').replace("steps = 64", "steps = 64\nbatch = 64\nepochs = 1")
    file.write_text(text.replace("lambda_sp = [1.0, 900.0]", "width = 4"))
    found = sweeping(tasks=1, fwt=False)
    assert [*found] == ["digits", "toys"] and [*found["digits"]] == [*found["toys"]] == ["finetune", "ewc"]
    assert found["toys"]["ewc"].config["training"]["epochs"] == 1 and "batch" not in found["toys"]["ewc"].config
    alone = run("toys", "ewc", 2, games=["sort", "catch"], out=tmp_path, steps=64, epochs=1, width=4, device="cpu")
    assert repr(found["toys"]["ewc"].runs) == repr(alone["ewc"].runs)
    assert len(found["digits"]["ewc"].runs) == 2


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_stopped_it_goes_on(
    place: str, sweeping: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "memory":
        pytest.importorskip("fsspec")
        monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    out = tmp_path / "out" if place == "folder" else f"memory://{tmp_path}"
    with pytest.raises(Interrupted):
        sweeping(out, stop=stop_after(4))
    working.opened.cache_clear()  # another machine
    counter = Counter()
    assert numbers(sweeping(out, progress=counter)["toys"]) == whole[0]
    assert any(done for _, _, done in counter.begun)


def test_it_goes_on_from_what_a_run_has_begun(sweeping: Any, whole: Any, tmp_path: Path) -> None:
    asked = {"games": ["sort", "catch"], "device": "cpu", "out": tmp_path / "out", "overrides": ASKED}
    with pytest.raises(Interrupted):
        execute(plan("toys", ["finetune", "ewc"], 2, **asked), stop=stop_after(3))
    counter = Counter()
    assert numbers(sweeping(progress=counter)["toys"]) == whole[0] and clean(tmp_path / "out")
    assert ("finetune", 2, 3) in counter.begun


def test_what_fails_is_told_with_the_command_that_completes_it(
    sweeping: Any,
    whole: Any,
    tmp_path: Path,
    kenyon: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update = Agents._learn

    def breaks(self: Agents) -> None:
        if self.method.penalties and self.position.phase == 1:
            raise OSError("the emulator is gone")
        update(self)

    monkeypatch.setattr(Agents, "_learn", breaks)
    with pytest.raises(Unfinished, match="4 runs are missing") as raised:
        sweeping()
    assert numbers(raised.value.results["toys"]) == {"finetune": whole[0]["finetune"]}
    monkeypatch.setattr(Agents, "_learn", update)
    commands = [line.partition(": kenyon ")[2] for line in str(raised.value).splitlines() if ": kenyon " in line]
    assert len(commands) == 2 and "--games sort,catch" in commands[0]
    for command in commands:
        assert kenyon(*command.split()).code == 0
    assert numbers(sweeping()["toys"]) == whole[0]  # by the commands that were told


def test_a_process_that_is_killed(file: Path, tmp_path: Path) -> None:
    """SIGKILL, once it plays: another process goes on, and the numbers stay."""
    file.write_text(MINI)
    sweep, place = plan_sweep(file, open_storage(str(tmp_path / "out"))), Processes(1, "cpu")
    kill, killed = killing_once(sweep)
    carry_out(sweep, place, watch=kill)
    games: dict[str, Any] = {"games": ["catch", "dodge"], "device": "cpu", "importance_rollouts": 1}
    usual = run("rl-mini", "ewc", 2, out=tmp_path / "run", **games, **SHORT)
    assert numbers(collect(sweep)["rl-mini"]) == numbers(usual)
    assert weights(tmp_path / "out") == weights(tmp_path / "run")
    assert killed and killed != [os.getpid()] and clean(tmp_path / "out")


def test_what_games_cost_is_learned_from_those_that_were_played(sweeping: Any, tmp_path: Path) -> None:
    config = configure("toys", "ewc", games=["sort", "catch"], overrides={"steps": 100})
    assert config.length == 2 * 96 / 1000  # steps of whole updates
    work = Work.of(config, 3)
    assert (work.benchmark, work.runs, work.learners) == ("toys", 3, 1)
    longer = replace(work, epochs=50 * work.epochs)
    seen = [Seen(replace(work, epochs=n * work.epochs), "cpu", 0.2 * n) for n in (10, 20, 40)]
    assert Costs([longer], seen).seconds[0] == pytest.approx(10, rel=0.2)
    results = sweeping()["toys"]
    found = seen_in_store(open_storage(tmp_path / "out"))
    assert len(found) == 3 and {one.work.benchmark for one in found} == {"toys"}
    assert sum(one.seconds for one in found) == pytest.approx(sum(r.seconds for r in results.values()))
    assert seen_in(results["ewc[lambda_sp=1]"])[0].work.epochs == found[0].work.epochs


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('["sort", "catch"]', '["sort", "snatch"]', "no game of toys called 'snatch'. Did you mean catch?"),
        ('["sort", "catch"]', '["sort", "sort"]', "games must be a name in quotes, or a list of names, each once"),
        ("steps = 64", "steps = 31", "steps=31 is too few for one update"),
        ("steps = 64", "stepps = 96", "no setting of finetune or ewc called 'stepps'. Did you mean steps"),
        ("steps = 64", "batch = 96", "no setting of finetune or ewc called 'batch'"),
        ("steps = 64", "rate = [1e-3, 1e-3]", "rate has the value 0.001 twice"),
        ('"ewc"]', '"ewc-af2"]', "works on the images of a task"),
        ('benchmark = "toys"', 'benchmark = "digits"', "games is for suites of games"),
    ],
)
def test_what_cannot_be_played_is_told_before_anything_is(
    old: str,
    new: str,
    told: str,
    sweeping: Any,
    file: Path,
    tmp_path: Path,
) -> None:
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        sweeping()
    assert told in str(raised.value) and not (tmp_path / "out/.sweep/plan.json").exists()


def test_what_is_for_images_is_refused_where_all_are_games(sweeping: Any) -> None:
    for option in ({"tasks": 2}, {"data": "x"}, {"keep": "every"}, {"deterministic": True}):
        with pytest.raises(ConfigError, match="is for images, and toys is a suite of games"):
            sweeping(**option)


def test_another_order_of_games_needs_another_store(sweeping: Any, whole: Any, file: Path, tmp_path: Path) -> None:
    """Also while nothing has finished: what was begun in the first order stays where it is."""
    with pytest.raises(Interrupted):
        sweeping(stop=stop_after(3))
    states = sorted(path.name for path in (tmp_path / "out" / FLEETS).rglob("state-*"))
    file.write_text(FILE.replace('["sort", "catch"]', '["catch", "sort"]'))
    for _ in range(2):
        with pytest.raises(ResultsError, match=r"games was \['sort', 'catch'\], now \['catch', 'sort'\]"):
            sweeping()
    assert sorted(path.name for path in (tmp_path / "out" / FLEETS).rglob("state-*")) == states != []
    file.write_text(FILE)
    counter = Counter()
    assert numbers(sweeping(progress=counter)["toys"]) == whole[0] and any(done for _, _, done in counter.begun)
    file.write_text(FILE.replace('["sort", "catch"]', '["catch", "sort"]'))
    with pytest.raises(ResultsError, match="games was"):
        sweeping()
