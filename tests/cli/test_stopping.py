"""Ctrl-C once and twice, SIGTERM, runs that fail: what is saved, what is said, how the program ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kenyon.cli import stopping
from kenyon.experiments import training
from kenyon.experiments.results import Result
from kenyon.training import Trainer
from kenyon.training import checkpoint as keeping
from kenyon.training.checkpoint import read_head
from tests.cli.conftest import Said
from tests.experiments.small import numbers, weights

WORDS = ["run", "-m", "ewc", "--seeds", 1, "--epochs", 3, "--tasks", 2, "--no-fwt", "--set", "batch=64"]
Kenyon = Callable[..., Said]
During = Callable[[Callable[[], None]], None]

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the signals of Unix")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    from kenyon.experiments import run

    out = tmp_path_factory.mktemp("whole")
    result = run("digits", "ewc", 1, tasks=2, fwt=False, device="cpu", out=out, epochs=3, batch=64)["ewc"]
    return numbers(result), weights(out)


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> During:
    """Do something in the first epoch of the second task, in the middle of it."""
    monkeypatch.setattr(keeping, "COPY_EVERY", 0.0)
    monkeypatch.setattr(keeping, "COPY_REST", 0.0)
    step = Trainer.step

    def patch(do: Callable[[], None]) -> None:
        done: list[bool] = []

        def middle(trainer: Trainer) -> None:
            step(trainer)
            if (trainer.position.phase, trainer.position.epoch) == (1, 0) and not done:
                done.append(True)
                do()

        monkeypatch.setattr(Trainer, "step", middle)

    return patch


def reached(out: Path) -> str:
    (path,) = (path for path in out.rglob("state-*.safetensors") if "-before" not in path.name)
    return str(read_head(path)["position"])


def check_goes_on(kenyon: Kenyon, out: Path, whole: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said = kenyon(*WORDS, "--out", out)
    assert said.code == 0 and "continuing at" in said.err
    assert (numbers(Result.load(out / "digits/ewc/result.json")), weights(out)) == whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_short_epoch_is_finished_and_saved(
    kenyon: Kenyon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    during: During,
    whole: object,
    number: int,
    code: int,
) -> None:
    during(lambda: signal.raise_signal(number))
    said = kenyon(*WORDS, "--out", tmp_path)
    assert said.code == code and "Stopped, and saved. The same command continues" in said.err
    assert '"phase": 1, "epoch": 1' in reached(tmp_path)
    check_goes_on(kenyon, tmp_path, whole, monkeypatch)


def test_a_long_epoch_is_not_waited_for(
    kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: During, whole: object
) -> None:
    """SIGTERM in an epoch that would last a minute."""

    def scheduler() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # some say it twice
        time.sleep(60)

    during(scheduler)
    monkeypatch.setattr(stopping, "GRACE", 0.02)
    began = time.monotonic()
    said = kenyon(*WORDS, "--out", tmp_path)
    assert said.code == 143 and "Asked to terminate" in said.err and "Stopped at once" in said.err
    assert time.monotonic() - began < 50
    assert '"phase": 1, "epoch": 0' in reached(tmp_path)  # the task before is learned and tested
    check_goes_on(kenyon, tmp_path, whole, monkeypatch)


def test_twice_stops_at_once(
    kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: During, whole: object
) -> None:
    def impatient() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)

    during(impatient)
    said = kenyon(*WORDS, "--out", tmp_path)
    assert said.code == 130 and "Once more to stop at once" in said.err and "Stopped at once" in said.err
    assert '"phase": 1, "epoch": 0' in reached(tmp_path)
    check_goes_on(kenyon, tmp_path, whole, monkeypatch)


def test_while_a_state_is_saved_it_is_saved(
    kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: During, whole: object
) -> None:
    """A second Ctrl-C, and SIGTERM, come when the first is being obeyed already."""
    during(lambda: signal.raise_signal(signal.SIGINT))
    real = keeping.save_state

    def slow(*what: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        real(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(stopping, "GRACE", 1e-6)
    monkeypatch.setattr(keeping, "save_state", slow)
    said = kenyon(*WORDS, "--out", tmp_path)
    assert said.code == 143 and "Saving. Once more" in said.err and "Stopped, and saved" in said.err
    assert '"phase": 1, "epoch": 1' in reached(tmp_path)
    check_goes_on(kenyon, tmp_path, whole, monkeypatch)


def test_when_a_method_has_just_ended_the_next_does_not_begin(
    kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the last moment of the first of two methods, whose result is kept."""
    finish = Trainer.finish_phase

    def last(trainer: Trainer) -> None:
        finish(trainer)
        if trainer.position.phase == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "finish_phase", last)
    said = kenyon(*WORDS, "--out", tmp_path, "-m", "ewc,mas")
    assert said.code == 143 and "Stopped, and saved" in said.err
    assert (tmp_path / "digits/ewc/result.json").exists() and not list((tmp_path / "digits/mas").iterdir())


def test_before_anything_is_trained(kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while images are read: there is nothing to save, and no reason to stay."""

    def reads_long(*what: object, **more: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(stopping, "GRACE", 0.02)
    monkeypatch.setattr(training, "build_trainer", reads_long)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    said = kenyon(*WORDS, "--out", tmp_path)
    assert said.code == 143 and "Stopped at once" in said.err
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]


def test_what_is_missing_and_the_command_for_it_are_told(
    kenyon: Kenyon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One method that does not fit beside one that does; and one whose runs diverge."""
    from tests.experiments.test_fleets import full_device

    full_device(monkeypatch, 0, (0, 0))
    small = training.Trainer

    class OnlySeveral(small):  # type: ignore[misc, valid-type]
        def _note_failure(self, now: object) -> None:
            if self.members > 1:
                super()._note_failure(now)

    monkeypatch.setattr(training, "Trainer", OnlySeveral)
    words = [*WORDS, "--out", tmp_path / "r", "-m", "icl-ewc,finetune", "--set", "learners=2"]
    said = kenyon(*words)
    assert said.code == 1 and "finetune" in said.out and "does not fit" in said.err
    assert "kenyon run digits --method icl-ewc --seeds 1 --tasks 2 --set epochs=3" in said.err
    said = kenyon(*WORDS, "--out", tmp_path / "d", "-m", "finetune", "--set", "rate=1e20")
    assert "kenyon run digits --method finetune --seeds 1" in said.out and "d-rate-0.01" in said.out
