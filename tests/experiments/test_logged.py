"""Logs of runs: what they are told, and that a run that was interrupted has each number once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kenyon.errors import ConfigError, DeviceMemoryError
from kenyon.experiments.runner import execute, plan
from kenyon.integrations import loggers as choice
from kenyon.integrations.loggers import LoggedRun, Moment
from kenyon.metrics import average_curve
from kenyon.training import Interrupted, Trainer
from tests.experiments.small import SMALL, stop_after, strengths_of

Rows = dict[str, dict[Moment, dict[str, float]]]  # of every run, by its path


def train(out: Path, log: str, method: str = "ewc", stop: Callable[[], bool] = lambda: False, **more: Any) -> Any:
    asked = {"tasks": 3, "device": "cpu", "out": out, "fwt": False, "log": log}
    overrides = SMALL | strengths_of([method]) | {"epochs": 2, "batch": 64} | more
    return execute(plan("digits", [method], 2, overrides=overrides, **asked), stop=stop)[method]


class ResultBase:
    """A log in memory, which does not leave out what it has: what is told twice must be told alike."""

    everything: Rows = {}  # noqa: RUF012
    runs: list[LoggedRun] = []  # noqa: RUF012
    closed: list[bool] = []  # noqa: RUF012

    def __init__(self, run: LoggedRun) -> None:
        self.rows = self.everything.setdefault(str(run.path), {})
        self.runs.append(run)

    def add(self, moment: Moment, values: dict[str, float]) -> None:
        assert self.rows.setdefault(moment, values) == values

    def close(self, *, finished: bool) -> None:
        self.closed.append(finished)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> type[ResultBase]:
    fresh = type("ResultBase", (ResultBase,), {"everything": {}, "runs": [], "closed": []})
    monkeypatch.setitem(choice.LOGS, "kept", (lambda: None, fresh))
    return fresh


@pytest.mark.parametrize("method", ["ewc", "pnc", "icl-ewc", "joint-caf"])
def test_what_a_log_is_told(method: str, kept: type[ResultBase], tmp_path: Path) -> None:
    result = train(tmp_path, "kept", method)
    assert kept.closed == [True, True]
    stages, tasks = (2, 3) if method == "pnc" else (1, 1 if method == "joint-caf" else 3)
    for run, described in zip(result.runs, kept.runs, strict=True):
        assert described.path == Path("digits", method, f"seed-{run.seed}") and described.fresh
        assert described.config["seed"] == run.seed and described.config["method"] == method
        rows = kept.everything[str(described.path)]
        epochs = {moment.epoch: values for moment, values in rows.items() if not moment.tested}
        assert list(epochs) == list(range(1, 2 * stages * tasks + 1))
        assert all(set(values) == {"loss/training", "loss/validation", "rate"} for values in epochs.values())
        assert all(0 < values["loss/training"] < 3 for values in epochs.values())
        tests = [(moment.epoch, values) for moment, values in rows.items() if moment.tested]
        assert [epoch for epoch, _ in tests] == [2 * stages * (task + 1) for task in range(tasks)]
        matrix = np.array(run.accuracy)
        curve = average_curve(matrix) if tasks > 1 else matrix.mean(1)
        for task, (_, values) in enumerate(tests):
            assert values["accuracy/average"] == pytest.approx(curve[task], abs=1e-3)
            seen = [value for name, value in values.items() if name != "accuracy/average"]
            assert seen == pytest.approx(matrix[task, : len(seen)], abs=1e-3)
            assert len(seen) == (3 if method == "joint-caf" else task + 1)


def test_the_mean_training_loss(kept: type[ResultBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all batches of the epoch, as the steps saw them."""
    from kenyon.training import Trainer

    seen: list[list[float]] = []
    step = Trainer.step

    def watched(self: Trainer) -> None:
        step(self)
        seen.append(self.engine.loss.tolist())

    watched.__name__ = "step"
    monkeypatch.setattr(Trainer, "step", watched)
    train(tmp_path, "kept")
    for number, described in enumerate(kept.runs):
        told = [v["loss/training"] for m, v in kept.everything[str(described.path)].items() if not m.tested]
        losses = [row[number] for row in seen]
        each = len(losses) // len(told)
        means = [sum(losses[e * each : (e + 1) * each]) / each for e in range(len(told))]
        assert told == pytest.approx(means, rel=1e-4)


def test_a_run_that_diverged_tells_no_more(kept: type[ResultBase], tmp_path: Path) -> None:
    result = train(tmp_path, "kept", rate=1e30)
    assert all(run.diverged == [0, 0] for run in result.runs)
    assert all(not rows for rows in kept.everything.values())


def test_interrupted_the_same_is_told(kept: type[ResultBase], tmp_path: Path) -> None:
    train(tmp_path / "whole", "kept")
    whole = dict(kept.everything)
    kept.everything.clear()
    sessions(tmp_path / "pieces", "kept")
    assert kept.everything == whole
    assert kept.closed.count(False) == 2 * 2 and kept.closed[-2:] == [True, True]


def sessions(out: Path, log: str) -> None:
    """Interrupted twice; the second time the state is put back by hand to that of the first."""
    for calls in (1, 4):
        with pytest.raises(Interrupted):
            train(out, log, stop=stop_after(calls))
        if calls == 1:
            shutil.copytree(out / "digits", out / "before")
    shutil.rmtree(out / "digits")
    shutil.move(out / "before", out / "digits")
    train(out, log)


def test_a_log_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no log called 'tensorbord'"):
        train(tmp_path, "tensorbord")
    for name, module in (("tensorboard", "tensorboard"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"pip install 'kenyon\[{name}\]'"):
            train(tmp_path, name)
    assert not list(tmp_path.iterdir())  # nothing was begun


# ---------------------------------------------------------------------- TensorBoard


def in_tensorboard(out: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for folder in sorted({path.parent for path in out.rglob("events.*")}):
        reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        reader.Reload()
        assert "config/text_summary" in reader.Tags()["tensors"]
        tags = reader.Tags()["scalars"]
        found[folder.name] = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags}
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard itself
def test_tensorboard_has_each_number_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path / "whole", "tensorboard")
    whole = in_tensorboard(tmp_path / "whole" / "tensorboard")
    assert list(whole) == ["seed-0", "seed-1"]
    assert [step for step, _ in whole["seed-0"]["rate"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in whole["seed-0"]["accuracy/average"]] == [2, 4, 6]
    sessions(tmp_path / "pieces", "tensorboard")
    assert in_tensorboard(tmp_path / "pieces" / "tensorboard") == whole
    # Trained anew in the same folder, an older log is forgotten.
    shutil.rmtree(tmp_path / "pieces" / "digits")
    train(tmp_path / "pieces", "tensorboard", epochs=1)
    again = in_tensorboard(tmp_path / "pieces" / "tensorboard")
    assert [step for step, _ in again["seed-0"]["rate"]] == [1, 2, 3]


# ---------------------------------------------------------------------- Weights & Biases


class Site:
    """What Weights & Biases keeps: rows of runs, which only go up."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, dict[str, float]]] = {}
        self.asked: list[dict[str, Any]] = []
        self.exits: list[int] = []

    def init(self, **asked: Any) -> Any:
        self.asked.append(asked)
        rows, site = self.rows.setdefault(asked["id"], {}), self

        class Run:
            step = max(rows, default=-1) + 1

            def define_metric(self, name: str, step_metric: str) -> None:
                assert (name, step_metric) == ("*", "epoch")

            def log(self, values: dict[str, float], step: int) -> None:
                assert step >= self.step, "Weights & Biases would drop this row"
                Run.step = step
                rows.setdefault(step, {}).update(values)

            def finish(self, exit_code: int) -> None:
                site.exits.append(exit_code)

        return Run()


def test_weights_and_biases_has_each_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = Site(), Site()
    monkeypatch.setitem(sys.modules, "wandb", whole)  # type: ignore[arg-type]
    train(tmp_path / "whole", "wandb")
    first = whole.asked[0]["id"]
    assert list(whole.rows[first]) == [2, 4, 5, 6, 8, 9, 10, 12, 13]
    assert whole.rows[first][13]["epoch"] == 6 and "accuracy/task-03" in whole.rows[first][13]
    assert whole.asked[0]["name"] == "digits ewc seed 0" and whole.exits == [0, 0]
    monkeypatch.setitem(sys.modules, "wandb", pieces)  # type: ignore[arg-type]
    sessions(tmp_path / "pieces", "wandb")
    assert list(pieces.rows.values()) == list(whole.rows.values())
    assert not list((tmp_path / "pieces").rglob("seed-*.json"))  # finished: the next one is another
    assert [asked["id"] for asked in pieces.asked] == list(pieces.rows) * 3 and pieces.exits == [1] * 4 + [0] * 2


def test_begun_anew_with_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before a state was saved, the same run goes on there; another configuration is another run."""
    site = Site()
    monkeypatch.setitem(sys.modules, "wandb", site)  # type: ignore[arg-type]
    for more in ({}, {}, {"width": 3}):
        with pytest.raises(Interrupted):
            train(tmp_path, "wandb", stop=stop_after(1), **more)
        shutil.rmtree(tmp_path / "digits")
    first, second, third = (asked["id"] for asked in site.asked[::2])
    assert first == second != third
    assert list(site.rows[first]) == [2, 4] and list(site.rows[third]) == [2, 4]


def test_after_a_run_without_room_the_others_have_their_logs(
    kept: type[ResultBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_whole = Trainer.epochs

    def full(self: Trainer) -> Any:
        if self.method.importance is not None:
            raise MemoryError("no room")
        return train_whole(self)

    monkeypatch.setattr(Trainer, "epochs", full)
    overrides = SMALL | strengths_of(["ewc"]) | {"epochs": 2, "batch": 64}
    asked = {"tasks": 2, "device": "cpu", "out": tmp_path, "fwt": False, "log": "kept", "overrides": overrides}
    with pytest.raises(DeviceMemoryError, match="does not fit"):
        execute(plan("digits", ["ewc", "finetune"], 1, **asked))
    assert kept.closed == [False, True] and [run.path.parent.name for run in kept.runs] == ["ewc", "finetune"]
