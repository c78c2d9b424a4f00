"""A training that was saved and continued is the training that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kenyon.methods import METHODS
from kenyon.models import digits_mlp
from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.checkpoint import load_state, save_state
from tests.references import hand_stream, make_trainer
from tests.training.fleets import assert_same, method

FORMS = [*((name, {}) for name in METHODS), ("ewc-af2", {"af2_first": "waits"})]


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[" ".join((name, *form)) for name, form in FORMS])
def test_a_saved_training_goes_on_as_if_nothing_had_happened(name: str, form: dict[str, str], tmp_path: Path) -> None:
    """At every moment a watcher is asked: after each epoch, and after each task."""
    training = Training(epochs=4, batch=32, rate=0.02, patience=2)
    streams = [hand_stream(sizes, seed=s, held_out=12, noise=1000) for s, sizes in enumerate(([40, 30], [50, 20]))]
    whole = make_trainer(method(name, **form), streams, training)
    moments: list[tuple[int, int]] = []
    waiting: list[bool] = []

    def watch(t: Trainer) -> bool:
        moments.append((t.position.phase, t.position.epoch))
        waiting.append(bool(t.schedule.waited.any()))
        return False

    whole.run(watch)
    some = slice(1, None, 3) if len(moments) > 5 else slice(1, None, 2)
    assert any(waiting[some]) or name.startswith("joint")  # at some moment below, the rate is about to drop
    for moment in moments[some]:
        begun = make_trainer(method(name, **form), streams, training)
        path = tmp_path / f"{moment[0]}-{moment[1]}.safetensors"

        def stop(t: Trainer, moment: tuple[int, int] = moment) -> bool:
            return (t.position.phase, t.position.epoch) == moment

        if moment[0] < len(whole.phases):
            with pytest.raises(Interrupted):
                begun.run(stop)
        else:
            begun.run(stop)
        save_state(path, begun.tensors(), begun.position, "me")
        continued = make_trainer(method(name, **form), streams, training)
        continued.theta.zero_()  # nothing of its own may matter
        continued.position = load_state(path, continued.tensors(), "me")
        continued.run()
        for run in range(2):
            assert_same(continued, run, whole, run)


def test_dropout_differs_between_steps_and_epochs_but_not_between_trainings() -> None:
    stream = [hand_stream([32], seed=0)]
    one, two = (make_trainer(method("finetune"), stream, Training(epochs=2, batch=32)) for _ in range(2))
    keys: list[int] = []
    for trainer in (one, two):
        trainer.run(lambda t: keys.append(int(t.engine.draws.keys[0])) or False)
    assert keys[:2] == keys[3:5] and keys[0] != keys[1]
    assert digits_mlp(4).drop2.p > 0
    assert_same(one, 0, two, 0)
