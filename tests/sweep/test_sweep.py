"""Sweeps end with the numbers of `kenyon run`, whoever trains them, whatever dies, and wherever they are kept."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kenyon.errors import ConfigError, DataError, ResultsError
from kenyon.experiments import execute, plan, runner, training
from kenyon.experiments.progress import Silent
from kenyon.experiments.results import Result
from kenyon.experiments.runner import run
from kenyon.experiments.store import result_files
from kenyon.report.verify import verify
from kenyon.sweep import Sweep, Unfinished, carry_out, collect, leases, open_storage
from kenyon.sweep import worker as working
from kenyon.sweep.driver import LIVES
from kenyon.sweep.jobs import DIED, Order, Outcome
from kenyon.sweep.leases import Holder, Lease, Leases
from kenyon.sweep.local import Local, Processes
from kenyon.sweep.status import WAITING, Watch
from kenyon.sweep.storage import BEGUN, FLEETS, HOME, LEASES
from kenyon.training import Interrupted, Trainer
from tests.experiments.small import Counter, all_numbers, stop_after, weights
from tests.experiments.test_fleets import full_device
from tests.sweep.conftest import SETTINGS, Sweeping, killing_once

Planned = Callable[..., Sweep]
Whole = tuple[dict[str, str], dict[str, bytes]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Numbers and weights of the experiment by `kenyon run`."""
    out = tmp_path_factory.mktemp("whole")
    return all_numbers(
        run("digits", "ewc,finetune", 2, tasks=2, fwt=False, device="cpu", out=out, **SETTINGS)
    ), weights(out)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state after every epoch."""
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(training, "REST", 0.0)


def clean(out: Path) -> bool:
    """Whether nothing is left but results, the plan and its marks."""
    return {path.name for path in (out / HOME).iterdir()} <= {
        *("plan.json", "marks", "leases", "fleets", "begun")
    } and not (any(any((out / part).glob("*")) for part in (LEASES, FLEETS, BEGUN)) or any(out.rglob("state-*")))


def test_the_numbers_are_those_of_a_run(sweeping: Sweeping, tmp_path: Path, whole: Whole) -> None:
    counter = Counter()
    found = sweeping(progress=counter, fleet=3)["digits"]
    assert all_numbers(found) == whole[0] and weights(tmp_path / "out") == whole[1]
    assert sorted(len(cells) for cells in counter.cells) == [2, 2, 2] and clean(tmp_path / "out")
    again = Counter()
    assert all_numbers(sweeping(progress=again)["digits"]) == whole[0] and not again.fleets
    assert len(result_files(tmp_path / "out")) == 3  # of points; a fleet's own folder never shows


def test_forward_transfer_and_several_benchmarks(sweeping: Sweeping, experiment: Path, tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "examples" / "own_stream.py"
    names = {'"digits"': f'["digits", "{own}"]', '["ewc", "finetune"]': '"finetune"', "lambda_sp": "# lambda_sp"}
    for old, new in names.items():
        experiment.write_text(experiment.read_text().replace(old, new))
    found = sweeping(fwt=True)
    assert [*found] == ["digits", "own-stream"] and "random-init" not in found["digits"]
    settings = {name: value for name, value in SETTINGS.items() if name != "lambda_sp"}
    usual = run("digits", "finetune", 2, tasks=2, device="cpu", out=tmp_path / "run", **settings)
    assert found["digits"]["finetune"].fwt == usual["finetune"].fwt is not None
    assert found["own-stream"]["finetune"].fwt is not None


@pytest.mark.parametrize("calls", [0, 3])
def test_stopped_it_goes_on(calls: int, sweeping: Sweeping, tmp_path: Path, whole: Whole) -> None:
    with pytest.raises(Interrupted):
        sweeping(stop=stop_after(calls))
    waiting = [line.share for line in Watch(open_storage(tmp_path / "out")).look().lines if line.state == WAITING]
    assert any(waiting) is (calls > 0) and all(0 <= share < 1 for share in waiting)
    counter = Counter()
    assert all_numbers(sweeping(progress=counter)["digits"]) == whole[0] and weights(tmp_path / "out") == whole[1]
    assert clean(tmp_path / "out")
    if calls == 3:
        assert any(done for _, _, done in counter.fleets)


def test_it_goes_on_from_what_a_run_has_begun(sweeping: Sweeping, tmp_path: Path, whole: Whole) -> None:
    out = tmp_path / "out"
    planned = plan("digits", ["ewc"], 2, tasks=2, overrides=SETTINGS, fwt=False, device="cpu", out=out)
    with pytest.raises(Interrupted):
        execute(planned, stop=stop_after(2))
    counter = Counter()
    assert all_numbers(sweeping(progress=counter)["digits"]) == whole[0] and clean(out)
    assert [done for method, _, done in counter.fleets if method == "ewc"] == [2]


def test_what_a_fleet_that_failed_had_begun_is_there_for_a_run(
    sweeping: Sweeping, planned: Planned, tmp_path: Path, whole: Whole
) -> None:
    class Breaks(Counter):
        def epoch_done(self, trainer: Trainer) -> None:
            super().epoch_done(trainer)
            if self.calls in (3, 7):
                raise RuntimeError("something broke")

    with pytest.raises(Unfinished, match="RuntimeError: something broke"):
        sweeping(progress=Breaks())
    counter = Counter()
    out: dict[str, Any] = {"out": tmp_path / "out", "progress": counter}
    found = run("digits", "ewc,finetune", 2, tasks=2, fwt=False, device="cpu", **out, **SETTINGS)
    assert all_numbers(found) == whole[0] and all(done for _, _, done in counter.fleets)


def test_a_store_at_an_address(sweeping: Sweeping, tmp_path: Path, whole: Whole, often: None) -> None:
    fsspec = pytest.importorskip("fsspec")
    address = f"memory://{tmp_path}"
    with pytest.raises(Interrupted):
        sweeping(address, stop=stop_after(3))
    working.opened.cache_clear()  # another machine
    counter = Counter()
    assert all_numbers(sweeping(address, progress=counter)["digits"]) == whole[0]
    assert any(done for _, _, done in counter.fleets)
    files = fsspec.filesystem("memory")
    found = {path.removeprefix(f"{tmp_path}/"): files.cat_file(path) for path in files.find(str(tmp_path))}
    assert {name: data for name, data in found.items() if "weights" in name} == whole[1]
    assert not any("state-" in name or name.startswith((FLEETS, LEASES)) for name in found)
    assert not any(list(Path(working.opened(address).local).rglob("weights-*")))  # copies are not kept
    with pytest.raises(ConfigError, match="none that fsspec knows"):
        open_storage("nowhere://x")


def test_two_sweeps_share_a_store(planned: Planned, tmp_path: Path, whole: Whole) -> None:
    """Both at the same time: every fleet is trained once, and both end with everything."""
    counters = [Counter(), Counter()]
    found: list[Any] = []
    first = planned(fleet=1)
    second = planned(fleet=6)  # takes the fleets as the first has cut them
    assert [fleet.id for fleet in first.fleets] == [fleet.id for fleet in second.fleets] and len(first.fleets) == 6

    class Slow(Local):
        def start(self, order: Order) -> None:
            super().start(order)
            barrier.wait(120)  # both are at it

    barrier = threading.Barrier(2, timeout=120)

    def one(sweep: Sweep, counter: Counter) -> None:
        carry_out(sweep, Slow("cpu", progress=counter))
        barrier.abort()
        found.append(all_numbers(collect(sweep)["digits"]))

    pairs = list(zip((first, second), counters, strict=True))
    threads = [threading.Thread(target=_quietly, args=(one, *pair)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trained = [cell for counter in counters for cells in counter.cells for cell in cells]
    assert sorted(map(str, trained)) == sorted(set(map(str, trained))) and len(trained) == 6
    assert found and all(numbers == whole[0] for numbers in found) and weights(tmp_path / "out") == whole[1]


def _quietly(work: Callable[..., None], *given: Any) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):  # the other has finished everything
        work(*given)


def test_another_plan_is_refused_while_one_is_at_work_and_goes_on_from_it_after(
    planned: Planned, sweeping: Sweeping, experiment: Path, tmp_path: Path, whole: Whole
) -> None:
    with pytest.raises(Interrupted):
        sweeping(stop=stop_after(3))
    lease = Leases(open_storage(str(tmp_path / "out"))).claim("fleet")
    assert lease is not None
    experiment.write_text(experiment.read_text().replace("seeds = 2", "seeds = 3"))
    with pytest.raises(ResultsError, match=r"used by a sweep with another plan \(ewc, finetune on digits\).*--out"):
        planned()
    lease.release()
    counter = Counter()
    found = sweeping(progress=counter)["digits"]
    assert any(done for _, _, done in counter.fleets)  # what the first had begun
    assert {label: len(result.runs) for label, result in found.items()} == dict.fromkeys(whole[0], 3)
    assert {one.state for one in verify(tmp_path / "out")} == {"whole"}
    named = {name for result in found.values() for name in result.weights}
    assert named == {f"weights-{seed}.safetensors" for seed in range(3)}  # also of runs that were merged
    assert all_numbers({label: result.restricted([0, 1]) for label, result in found.items()}) == whole[0]
    assert clean(tmp_path / "out")


def test_another_plan_waits_for_leases_of_other_machines_to_end(
    planned: Planned, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = planned().space
    experiment.write_text(experiment.read_text().replace("seeds = 2", "seeds = 3"))
    theirs = replace(Holder.here(), machine="another")
    told: list[str] = []

    def left() -> None:
        space.write(f"{LEASES}/fleet.1", json.dumps(asdict(theirs)).encode())

    def goes_on(seconds: float) -> None:
        nonlocal theirs
        theirs = replace(theirs, beat=theirs.beat + 1)
        left()

    left()
    monkeypatch.setattr(time, "sleep", goes_on)
    with pytest.raises(ResultsError, match="another plan"):
        planned(tell=told.append)
    monkeypatch.setattr(time, "sleep", lambda seconds: monkeypatch.setattr(leases, "EXPIRY", -1.0))
    assert len(planned(tell=told.append).fleets) == 2 and len(told) == 2


# ---------------------------------------------------------------------- what goes wrong


def test_a_fleet_that_does_not_fit_is_split_and_a_run_that_does_not_is_told(
    sweeping: Sweeping, tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_device(monkeypatch, 2, (0, 0))
    counter = Counter()
    assert all_numbers(sweeping(progress=counter)["digits"]) == whole[0] and counter.splits == [(4, 2)]
    full_device(monkeypatch, 0, None)
    with pytest.raises(Unfinished) as raised:
        sweeping(tmp_path / "full")
    told = str(raised.value)
    assert "6 runs are missing. The same command tries them again" in told and "does not fit into the memory" in told
    assert "kenyon run digits --method ewc --seeds 2 --tasks 2 --set epochs=2" in told


def test_what_fails_does_not_keep_the_rest_from_going_on(
    sweeping: Sweeping, tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = runner.train_tasks

    def fails(job: Any, *given: Any, **more: Any) -> None:
        if job.runs[0].config.method == "finetune":
            raise DataError("There is no such image.")
        train(job, *given, **more)

    monkeypatch.setattr(runner, "train_tasks", fails)
    with pytest.raises(Unfinished, match=r"2 runs are missing(.|\n)*no such image(.|\n)*--method finetune") as raised:
        sweeping()
    done = {label: numbers for label, numbers in whole[0].items() if label.startswith("ewc")}
    assert all_numbers(raised.value.results["digits"]) == done
    monkeypatch.setattr(runner, "train_tasks", train)
    assert all_numbers(sweeping()["digits"]) == whole[0]


def test_runs_that_diverge_are_results(sweeping: Sweeping, experiment: Path) -> None:
    experiment.write_text(experiment.read_text().replace("lambda_sp = [10.0, 1e4]", "lambda_sp = [10.0, 1e30]"))
    found = sweeping()["digits"]
    assert {label: [run.complete for run in result.runs] for label, result in found.items()} == {
        "ewc[lambda_sp=10]": [True, True],
        "ewc[lambda_sp=1e+30]": [False, False],
        "finetune": [True, True],
    }


def test_a_fleet_that_kills_its_workers_is_left_out(planned: Planned) -> None:
    class Deadly(Local):
        deaths = 0

        def start(self, order: Order) -> None:
            if order.fleet.runs[0].config.method == "finetune":
                self.deaths += 1
                self.ended.append((order, Outcome(DIED)))
            else:
                super().start(order)

    sweep, place = planned(), Deadly("cpu")
    carry_out(sweep, place)
    assert place.deaths == LIVES
    with pytest.raises(Unfinished, match="died 3 times") as raised:
        collect(sweep)
    assert len(raised.value.results["digits"]) == 2


def test_a_process_that_is_killed(planned: Planned, tmp_path: Path, whole: Whole) -> None:
    """SIGKILL, once it is at work: another process takes its fleet, and the numbers stay."""
    sweep, place = planned(fleet=4), Processes(1, "cpu")
    kill, killed = killing_once(sweep)
    carry_out(sweep, place, watch=kill)
    assert all_numbers(collect(sweep)["digits"]) == whole[0] and weights(tmp_path / "out") == whole[1]
    assert killed and killed != [os.getpid()] and clean(tmp_path / "out")


def test_a_damaged_plan_is_named(planned: Planned, tmp_path: Path) -> None:
    planned()
    path = tmp_path / "out" / HOME / "plan.json"
    for text in ("{", "[]", '{"format": 1}', path.read_text().replace('"labels"', '"label"')):
        path.write_text(text)
        with pytest.raises(ResultsError, match=r"plan\.json is damaged"):
            planned()


def test_results_that_were_removed_are_made_again(sweeping: Sweeping, tmp_path: Path, whole: Whole) -> None:
    sweeping()
    path = tmp_path / "out/digits/finetune/result.json"
    assert len(Result.load(path).runs) == 2
    path.unlink()
    assert all_numbers(sweeping()["digits"]) == whole[0]


def test_runs_that_others_finished_count_as_done(tmp_path: Path) -> None:
    lease = Lease(open_storage(tmp_path), "fleet", 1)
    told = working.LeaseProgress(lease, 10, Silent())
    told.before = 8
    two: Any = [None, None]
    told.fleet_starts(two, 50, 100)  # that go on: how far they had come counts at once
    assert lease.share == 0.9
    told._stands(75)
    assert lease.share == 0.95
