"""Fleets that are interrupted, split, or too large for the device: nothing is lost, and the numbers stay the same."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import kenyon
from kenyon.errors import DeviceMemoryError, ResultsError
from kenyon.experiments import scheduler as fleets
from kenyon.experiments import training
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.scheduler import split_job
from kenyon.experiments.store import Job, PointFolder
from kenyon.training import Interrupted, Trainer
from kenyon.training.checkpoint import load_state, save_state
from kenyon.training.device import out_of_memory, taken_by_others
from tests.experiments.small import Counter, all_numbers, digits, stop_after, weights

GRID: dict[str, Any] = {"lambda_sp": [1.0, 1e3, 1e5], "epochs": 3, "batch": 64}  # with two seeds: six runs
NAMES = [f"lambda_sp={value}" for value in ("1", "1000", "100000")]
Told = dict[str, str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, dict[str, bytes]]:
    """The numbers and weights of the grid, trained as one fleet without disturbance."""
    out = tmp_path_factory.mktemp("whole")
    return all_numbers(digits(out, **GRID)), weights(out)


@pytest.fixture
def check(whole: tuple[Told, dict[str, bytes]], tmp_path: Path) -> Callable[[dict[str, Any]], None]:
    def check(results: dict[str, Any]) -> None:
        assert all_numbers(results) == whole[0]
        assert weights(tmp_path) == whole[1]
        assert not list(tmp_path.rglob("state-*"))

    return check


def states(out: Path) -> list[Path]:
    return sorted(path.relative_to(out / "digits/ewc") for path in out.rglob("state-*.safetensors"))


# ---------------------------------------------------------------------- interruptions


def test_a_runs_members_stay_together(tmp_path: Path) -> None:
    """Independent learners of runs with their own strengths: in one fleet, split, and interrupted in between."""
    given: dict[str, Any] = GRID | {"learners": 2}
    whole = digits(tmp_path / "whole", ["icl-ewc"], **given)
    assert len(set(all_numbers(whole).values())) > 1
    out = tmp_path / "pieces"
    with pytest.raises(Interrupted):
        digits(out, ["icl-ewc"], fleet=4, stop=stop_after(4), **given)
    counter = Counter()
    again = digits(out, ["icl-ewc"], fleet=1, progress=counter, **given)
    assert all_numbers(again) == all_numbers(whole) and weights(out) == weights(tmp_path / "whole")
    assert [len(cells) for cells in counter.cells] == [1] * 6 and counter.fleets[0][2] > 0


@pytest.mark.parametrize("calls", [0, 2, 5])
def test_a_fleet_of_several_points_goes_on(calls: int, tmp_path: Path, check: Any) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(calls), **GRID)
    (state,) = states(tmp_path)
    assert state.parent == Path()  # in the method's folder: it is no point's alone
    counter = Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert [(len(cells), fleet[2] > 0) for cells, fleet in zip(counter.cells, counter.fleets, strict=True)] == [
        (6, True)
    ]


def test_points_of_several_settings_go_on(tmp_path: Path) -> None:
    """Their names depend on the order of the settings, which is not that of the letters."""
    given: dict[str, Any] = {"epochs": [2, 3], "lambda_sp": [1.0, 1e3], "lambda_af": [1e-8, 0.1]}
    whole = digits(tmp_path / "whole", ["ewc-af1"], 1, **given)
    with pytest.raises(Interrupted):
        digits(tmp_path / "pieces", ["ewc-af1"], 1, stop=stop_after(7), **given)  # in the second fleet
    counter = Counter()
    assert all_numbers(digits(tmp_path / "pieces", ["ewc-af1"], 1, progress=counter, **given)) == all_numbers(whole)
    assert [(len(seeds), done > 0) for _, seeds, done in counter.fleets] == [(4, True)]
    assert not list((tmp_path / "pieces").rglob("state-*"))


def test_interrupted_again_and_again_in_small_fleets(tmp_path: Path, check: Any) -> None:
    """One epoch a session, another size of the fleets every time."""
    for session in range(60):
        try:
            results = digits(tmp_path, fleet=(6, 4, 2, 1, 5)[session % 5], stop=lambda: True, **GRID)
            break
        except Interrupted:
            continue
    check(results)
    assert session > 6


def test_the_state_names_every_run_and_a_points_own_is_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=lambda: True, **GRID)
    with safe_open(tmp_path / "digits/ewc" / states(tmp_path)[0], framework="pt") as file:
        identity = json.loads(file.metadata()["identity"])
    assert [(share["point"], share["seeds"]) for share in identity["points"]] == [
        ({"lambda_sp": value}, [0, 1]) for value in GRID["lambda_sp"]
    ]
    assert [share["config"]["hyper"]["lambda_sp"] for share in identity["points"]] == GRID["lambda_sp"]
    with pytest.raises(Interrupted):
        digits(tmp_path, seeds=[7], stop=lambda: True, **GRID | {"lambda_sp": [1.0]})
    assert states(tmp_path)[0].parent == Path("lambda_sp=1")


def test_some_points_of_an_unfinished_fleet_go_on_alone(tmp_path: Path, check: Any) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(3), **GRID)
    counter = Counter()
    digits(tmp_path, seeds=[1], progress=counter, **GRID | {"lambda_sp": [1e3]})
    assert counter.cells == [[("lambda_sp=1000", 1)]] and counter.fleets[0][2] > 0
    assert len(states(tmp_path)) == 1  # the others are still to be done
    check(digits(tmp_path, progress=counter, **GRID))
    assert len(counter.cells[1]) == 5 and counter.fleets[1][2] > 0 and len(counter.cells) == 2


def test_a_run_goes_on_from_its_most_advanced_state(tmp_path: Path, check: Any) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(1), **GRID)
    with pytest.raises(Interrupted):  # one point goes further
        digits(tmp_path, stop=stop_after(2), **GRID | {"lambda_sp": [1e3]})
    assert len(states(tmp_path)) == 2
    counter = Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert [len(cells) for cells in counter.cells] == [2, 4]
    assert counter.fleets[0][2] > counter.fleets[1][2] > 0


def test_killed_between_saving_two_points(tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    add, added = PointFolder.add, []

    def die_after_one(folder: PointFolder, *what: Any) -> None:
        if added:
            raise Killed
        added.append(folder.path)
        add(folder, *what)

    with monkeypatch.context() as patch:
        patch.setattr(training, "SAVE_EVERY", 0.0)
        patch.setattr(training, "REST", 0.0)
        patch.setattr(PointFolder, "add", die_after_one)
        with pytest.raises(Killed):
            digits(tmp_path, **GRID)
    saved = tmp_path / "digits/ewc/lambda_sp=1/result.json"
    before = saved.read_bytes()
    counter = Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert saved.read_bytes() == before  # finished is finished
    ((_, seeds, done),) = counter.fleets
    assert seeds == (0, 1, 0, 1) and done == 6 and counter.calls == 0  # and the others had only to be saved


def test_a_state_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """One configuration, under another file name, its numbers written as whole ones."""
    given: dict[str, Any] = {"epochs": 3, "lambda_sp": 7.0}
    with pytest.raises(Interrupted):
        digits(tmp_path / "old", stop=stop_after(2), **given)
    (path,) = (tmp_path / "old/digits/ewc").glob("state-*")
    with safe_open(path, framework="pt") as file:
        head, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    identity = json.loads(head["identity"])
    assert set(identity) == {"config", "seeds"}
    identity["config"]["hyper"]["lambda_sp"] = 7
    save_state(
        path.with_name("state-0a1b2c3d.safetensors"),
        tensors,
        load_state(path, {name: t.clone() for name, t in tensors.items()}, head["identity"]),
        json.dumps(identity, sort_keys=True),
    )
    path.unlink()
    counter = Counter()
    results = digits(tmp_path / "old", progress=counter, **given)
    assert counter.fleets[0][2] > 0
    assert all_numbers(results) == all_numbers(digits(tmp_path / "new", **given))
    assert not list((tmp_path / "old").rglob("state-*"))


def test_another_configuration_of_unfinished_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=lambda: True, **GRID)
    with pytest.raises(ResultsError, match=r"lambda_sp=1000.*epochs was 3, now 2"):
        digits(tmp_path, **GRID | {"epochs": 2, "lambda_sp": [1e3, 7.0]})
    digits(tmp_path, **GRID | {"epochs": 1, "lambda_sp": [7.0]})  # another point is no concern of it
    digits(tmp_path, epochs=1, lambda_sp=7.0)


# ---------------------------------------------------------------------- fleets of a given size


@pytest.mark.parametrize(("fleet", "sizes"), [(1, [1] * 6), (4, [3, 3]), (5, [3, 3]), (6, [6])])
def test_smaller_fleets_give_the_same_numbers(fleet: int, sizes: list[int], tmp_path: Path, check: Any) -> None:
    counter = Counter()
    check(digits(tmp_path, fleet=fleet, progress=counter, **GRID))
    assert [len(cells) for cells in counter.cells] == sizes


def test_parts_of_a_job_are_few_and_nearly_equal() -> None:
    point = GridPoint(configure("digits", "finetune"))
    for runs in range(1, 30):
        job = Job(tuple(RunSpec(point, seed) for seed in range(runs)))
        for most in range(1, 31):
            parts = split_job(job, most)
            assert tuple(run for part in parts for run in part.runs) == job.runs
            sizes = [len(part.runs) for part in parts]
            assert len(parts) == -(-runs // most) and max(sizes) <= most and max(sizes) - min(sizes) <= 1


# ---------------------------------------------------------------------- out of memory


def full_device(monkeypatch: pytest.MonkeyPatch, room: int, moment: tuple[int, int] | None) -> list[Any]:
    """A device that holds so many runs: more fail at (phase, epoch), or when the trainer is built."""
    failed: list[Any] = []

    class Small(Trainer):
        def __init__(self, net: Any, streams: Any, *more: Any, **options: Any) -> None:
            super().__init__(net, streams, *more, **options)
            assert all(trainer() is None for trainer in failed), "a failed trainer is still in memory"
            self._note_failure(None)

        def validate(self) -> None:
            self._note_failure((self.position.phase, self.position.epoch))
            super().validate()

        def _note_failure(self, now: tuple[int, int] | None) -> None:
            if len(self.fleet) > room and now == moment:
                failed.append(weakref.ref(self))
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(training, "Trainer", Small)
    return failed


@pytest.mark.parametrize("moment", [None, (0, 0), (1, 2)])
@pytest.mark.parametrize("saving", [True, False])
def test_a_fleet_that_does_not_fit_is_halved(
    moment: tuple[int, int] | None, saving: bool, tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if saving:
        monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
        monkeypatch.setattr(training, "REST", 0.0)
    failed, counter = full_device(monkeypatch, 2, moment), Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert counter.splits == [(6, 3), (3, 2)] and len(failed) == 2
    done = [fleet[2] for fleet in counter.fleets if len(fleet[1]) <= 2]
    # What was saved before is kept: the halves begin where the whole broke off.
    assert [len(fleet[1]) for fleet in counter.fleets][-4:] == [1, 2, 1, 2]
    assert done == ([5] * 4 if saving and moment == (1, 2) else [0] * 4)


def test_independent_learners_are_split_by_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = GRID | {"learners": 2}
    whole = digits(tmp_path / "whole", ["icl-ewc"], **given)
    full_device(monkeypatch, 5, (0, 1))  # rows: two runs of two, not two and a half
    counter = Counter()
    assert all_numbers(digits(tmp_path / "split", ["icl-ewc"], progress=counter, **given)) == all_numbers(whole)
    assert counter.splits == [(6, 3), (3, 2)] and len(counter.fleets[-1][1]) == 2


def test_the_size_that_fits_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digits(tmp_path / "whole", ["ewc", "mas", "finetune"], 3, lambda_sp=[1.0, 10.0])
    full_device(monkeypatch, 3, (0, 0))
    counter = Counter()
    results = digits(tmp_path / "split", ["ewc", "mas", "finetune"], 3, lambda_sp=[1.0, 10.0], progress=counter)
    assert all_numbers(results) == all_numbers(expected)
    assert counter.splits == [(6, 3)]  # and not again for the second method
    assert [len(fleet[1]) for fleet in counter.fleets] == [6, 3, 3, 3, 3, 3]


def test_a_state_from_a_larger_device_is_split(tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(4), **GRID)
    full_device(monkeypatch, 4, None)
    counter = Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert counter.splits == [(6, 3)]
    assert [(len(fleet[1]), fleet[2]) for fleet in counter.fleets] == [(3, 4), (3, 4)]


def test_halves_that_are_interrupted_go_on(tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    full_device(monkeypatch, 3, (0, 1))
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(training, "REST", 0.0)
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(4), **GRID)
    counter = Counter()
    check(digits(tmp_path, progress=counter, **GRID))
    assert counter.splits == [] and [len(cells) for cells in counter.cells] == [3, 3]
    assert all(done > 0 for _, _, done in counter.fleets)


def test_a_single_run_that_does_not_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path, **GRID | {"lambda_sp": [1.0]})
    full_device(monkeypatch, 0, (0, 1))
    with pytest.raises(DeviceMemoryError) as told:
        digits(tmp_path, ["ewc"], progress=(counter := Counter()), **GRID)
    for word in ("ewc[lambda_sp=1000]", "batch 64", "width 2", "--set", "batch=", "width=", "more memory", "saved"):
        assert word in str(told.value)
    assert "learners" not in str(told.value)
    assert counter.splits == [(4, 2), (2, 1)]
    assert (tmp_path / "digits/ewc/lambda_sp=1/result.json").exists()


def test_a_device_that_others_fill_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "taken_by_others", lambda device: "other programs hold 7 of its 8 GB")
    full_device(monkeypatch, 0, (0, 1))
    with pytest.raises(DeviceMemoryError, match="memory of cpu: other programs hold 7 of its 8 GB"):
        digits(tmp_path, ["ewc"], **GRID)


@pytest.mark.parametrize(("free", "own", "told"), [(10, 20, "70 of its 100 GB"), (10, 82, ""), (100, 0, "")])
def test_what_others_hold_is_what_is_neither_free_nor_ours(
    free: int, own: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 10**9, 100 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * 10**9)
    words = f"other programs hold {told}, and once they have ended the same command may have room"
    assert taken_by_others(torch.device("cuda")) == (words if told else "")
    assert taken_by_others(torch.device("cpu")) == ""


def test_other_errors_are_not_taken_for_a_full_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trainer: Trainer) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(Trainer, "epochs", broken)
    with pytest.raises(RuntimeError, match="something else"):
        digits(tmp_path, **GRID)


def test_a_full_device_is_known_by_many_words() -> None:
    def hidden() -> None:
        """What happens when memory runs out inside a capture: leaving it fails as well."""
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("CUDA error: capture was not joined")

    with pytest.raises(RuntimeError) as caught:
        hidden()
    assert out_of_memory(caught.value)
    assert out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    assert out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not out_of_memory(None)


def test_what_no_machine_could_hold_is_told(tmp_path: Path) -> None:
    options = {"tasks": 2, "epochs": 1, "fwt": False, "device": "cpu", "out": tmp_path}
    with pytest.raises(DeviceMemoryError, match="width 1000000000"):
        kenyon.run("digits", ["caf-ewc"], 1, width=10**9, **options)
    kenyon.run("digits", ["caf-ewc"], 1, batch=10**12, **options)  # as large as the data


def test_memory_that_runs_out_on_a_cpu_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(10**15)
    assert out_of_memory(caught.value) and out_of_memory(MemoryError())
