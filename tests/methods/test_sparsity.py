"""AGS-CL: the proximal step, what is held at zero, which nodes begin anew, and what earlier tasks notice of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor, nn

from kenyon.data.tasks import Crop
from kenyon.errors import ConfigError
from kenyon.methods.agscl import GroupSparsity, _Sparsity, shrunk
from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.checkpoint import load_state, save_state
from tests.references import hand_stream, make_trainer, plain_mlp
from tests.training.fleets import assert_same, method

# Both regimes: Adam with the best weights restored, and SGD whose momentum and last weights go on.
PLATEAU = Training(epochs=6, batch=16, rate=0.02, patience=2)
STEP = Training(
    epochs=6, batch=16, rate=0.05, optimiser="sgd", schedule="step", drop_epoch=4, carry=True, validation=0.0
)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Conv2d(8, 10, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 12),
        nn.ReLU(),
        nn.Dropout(0.5),
    )


def sparse(training: Training, seeds: tuple[int, ...] = (0,), tasks: int = 3, **options: Any) -> Trainer:
    """Trained so that some nodes of every layer are important and some are not."""
    hyper = {"lambda_sp": 5.0, "mu": 5.0 if training is PLATEAU else 2.0, "rho": 0.5} | options.pop("hyper", {})
    streams = [hand_stream([48] * tasks, seed=seed, held_out=12, noise=300) for seed in seeds]
    return make_trainer(method("agscl", **hyper), streams, training, **({"width": 12} | options))


def hooks(trainer: Trainer) -> _Sparsity:
    (mine,) = trainer.mechanisms
    assert isinstance(mine, _Sparsity)
    return mine


def logits(trainer: Trainer, task: int) -> Tensor:
    """Of every run for its test images of a task; the arithmetic of one thread."""
    found = []
    for run, stream in enumerate(trainer.fleet.streams):
        images = trainer.fleet.images(run, stream.tasks[task].test.index)
        heads = torch.tensor([task])
        row = trainer.theta[run]
        if trainer.net.small:
            found.append(trainer.net.forward(row.unsqueeze(0), images.unsqueeze(0), heads).logits[0])
        else:
            found.append(trainer.net.forward(row, images, heads).logits)
    return torch.stack(found)


# ---------------------------------------------------------------------- the proximal step


@pytest.mark.parametrize(
    ("group", "home", "distance", "expected"),
    [
        ((3.0, 4.0), (0.0, 0.0), 1.0, (2.4, 3.2)),  # length 5, by 1: 4/5 remain
        ((3.0, 4.0), (0.0, 0.0), 5.0, (0.0, 0.0)),
        ((3.0, 4.0), (0.0, 0.0), 7.0, (0.0, 0.0)),
        ((3.0, 4.0), (0.0, 0.0), 0.0, (3.0, 4.0)),
        ((4.0, 5.0), (1.0, 1.0), 2.5, (2.5, 3.0)),  # half way
        ((4.0, 5.0), (1.0, 1.0), 6.0, (1.0, 1.0)),  # frozen
        ((0.0, 0.0), (0.0, 0.0), 0.0, (0.0, 0.0)),
        ((1.0, 1.0), (1.0, 1.0), 2.0, (1.0, 1.0)),
    ],
)
def test_the_proximal_step_by_hand(
    group: tuple[float, ...], home: tuple[float, ...], distance: float, expected: tuple[float, ...]
) -> None:
    moved = shrunk(torch.tensor([group]), torch.tensor([home]), torch.tensor([distance]))
    torch.testing.assert_close(moved, torch.tensor([expected]))
    if distance >= 5 or distance == 0:
        assert torch.equal(moved, torch.tensor([expected]))  # not nearly: exactly


numbers = st.floats(-10, 10, width=32)
vectors = st.lists(numbers, min_size=4, max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors, vectors, st.floats(0, 20), vectors)
def test_the_proximal_step_minimises_what_it_should(
    group: Tensor, home: Tensor, distance: float, other: Tensor
) -> None:
    def objective(w: Tensor) -> float:
        return float((w - group).square().sum() / 2 + distance * (w - home).norm())

    moved = shrunk(group, home, torch.tensor(distance, dtype=torch.float64))
    for rival in (other, group, home, moved + 1e-3 * other):
        assert objective(moved) <= objective(rival) + 1e-9
    before, after = (group - home).norm(), (moved - home).norm()
    assert after <= before
    assert torch.isclose(after, (before - distance).clamp(min=0), atol=1e-9)


@pytest.mark.parametrize("training", [PLATEAU, STEP])
def test_an_epoch_ends_with_the_step_of_its_rate(training: Training) -> None:
    """Of idle nodes by rate * mu towards zero, of important ones by rate * lambda * Omega towards home."""
    trainer = sparse(training, hyper={"eta": 0.5})
    mine, nodes, seen = hooks(trainer), hooks(trainer).nodes, 0
    plain = mine.after_epoch

    def checked() -> None:
        nonlocal seen
        start, rate = trainer.theta.clone(), float(trainer.rate[0])
        plain()
        for layer, omega in zip(nodes.layers, nodes.per_layer(mine.importance), strict=True):
            old, new, home = (nodes.groups(rows, layer)[0, 0] for rows in (start, trainer.theta, mine.home))
            for node, importance in enumerate(omega[0, 0].tolist()):
                by = rate * (5.0 * importance if importance > 0 else float(mine.mu[0]))
                assert importance > 0 or not home[node].any()
                far = float((old[node] - home[node]).norm())
                left = float((new[node] - home[node]).norm())
                assert left == pytest.approx(max(0.0, far - by), abs=1e-5)
                seen += importance > 0
        assert torch.equal(trainer.theta[:, trainer.net.layout.protected :], start[:, trainer.net.layout.protected :])

    mine.after_epoch = checked  # type: ignore[method-assign]
    trainer.run()
    assert seen > 50


# ---------------------------------------------------------------------- what is held, and what is renewed


@pytest.mark.parametrize("training", [PLATEAU, STEP])
@pytest.mark.parametrize("backbone", [None, convolutional()])
def test_held_weights_are_zero_after_every_step(training: Training, backbone: nn.Module | None) -> None:
    trainer = sparse(training, seeds=(0, 1), backbone=backbone)
    mine, plain = hooks(trainer), trainer.step
    held = []

    def checked() -> None:
        plain()
        held.append(int((~mine.free).sum()))
        assert not trainer.theta[~mine.free].any()

    trainer.step = checked  # type: ignore[method-assign]
    trainer.run()
    assert held[0] == 0 and held[-1] > 0
    assert not trainer.theta[~mine.free].any()


@pytest.mark.parametrize("training", [PLATEAU, STEP])
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("backbone", [None, convolutional()])
def test_renewal_is_not_noticed_by_any_task(training: Training, learners: int, backbone: nn.Module | None) -> None:
    trainer = sparse(training, backbone=backbone, learners=learners, hyper={"mu": 12.0})
    mine, plain = hooks(trainer), hooks(trainer).finish_task
    changed = []

    def checked() -> None:
        before, start = [logits(trainer, t) for t in range(trainer.task + 1)], trainer.theta.clone()
        plain()
        for t, expected in enumerate(before):
            torch.testing.assert_close(logits(trainer, t), expected, rtol=1e-5, atol=1e-5)
        changed.append(not torch.equal(trainer.theta, start))

    mine.finish_task = checked  # type: ignore[method-assign]
    trainer.run()
    assert any(changed)


# Momentum that is carried on would still move the head of the task before.
@pytest.mark.parametrize("training", [PLATEAU, replace(STEP, carry=False)])
@pytest.mark.parametrize("backbone", [None, convolutional()])
def test_nothing_is_forgotten_where_important_nodes_are_frozen(
    training: Training, backbone: nn.Module | None
) -> None:
    """Whatever idle nodes learn of the second task, the first one's predictions stay, to the last bit."""
    trainer = sparse(training, tasks=2, backbone=backbone, hyper={"lambda_sp": 1e9})
    found: list[Tensor] = []
    trainer.run(lambda t: found.append(logits(t, 0)) or False)
    first_end = training.epochs  # the watcher's call after the first task
    for later in found[first_end + 1 :]:
        assert torch.equal(later, found[first_end])
    assert not torch.equal(found[0], found[first_end])


@examples(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 100))
def test_idle_nodes_reach_no_important_node(seed: int, size: float) -> None:
    """Anything may stand in the groups of idle nodes: important nodes compute the same."""
    trainer = trained_once()
    mine, nodes = hooks(trainer), hooks(trainer).nodes
    rows, generator = trainer.theta.clone(), torch.Generator().manual_seed(seed)
    important = nodes.per_layer(mine.importance > 0)
    for layer, now in zip(nodes.layers, important, strict=True):
        groups = nodes.groups(rows, layer)
        noise = size * torch.randn(groups.shape, generator=generator)
        nodes.put(rows, layer, torch.where(now.unsqueeze(3), groups, noise))
    images = torch.rand(5, 1, 8, 8, generator=generator)

    def activity(theta: Tensor) -> Tensor:
        params = {name: trainer.net.layout.view(theta[0], name) for name in trainer.net.backbone_names}
        return nodes.activations(params, images, None)

    there = (mine.importance > 0)[0]
    assert there.any() and not there.all()
    torch.testing.assert_close(activity(rows)[there], activity(trainer.theta)[there], rtol=1e-5, atol=1e-6)


_trained: list[Trainer] = []


def trained_once() -> Trainer:
    if not _trained:
        trainer = sparse(PLATEAU, tasks=2, backbone=plain_mlp(12))
        trainer.run()
        _trained.append(trainer)
    return _trained[0]


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.5, 1.0])
def test_a_share_of_the_idle_nodes_is_renewed(rho: float) -> None:
    trainer = sparse(PLATEAU, seeds=(0, 1), hyper={"rho": rho}, learners=2)
    mine, nodes = hooks(trainer), hooks(trainer).nodes
    for idle in (0, 1, 3, 10, 12):
        important = [torch.ones(2, 2, layer.size, dtype=torch.bool) for layer in nodes.layers]
        important[0][:, :, :idle] = False
        chosen = nodes.per_layer(mine._renewed(important))
        counts = {0.0: 0, 0.3: -(-idle * 3 // 10), 0.5: -(-idle // 2), 1.0: idle}
        assert (chosen[0].sum(2) == counts[rho]).all()
        assert not chosen[0][:, :, idle:].any() and not chosen[1].any()
        if rho == 0.5 and idle == 12:
            assert not torch.equal(chosen[0][0], chosen[0][1])  # every run draws its own


def test_renewed_nodes_have_first_weights_and_others_keep_theirs() -> None:
    trainer = sparse(PLATEAU, tasks=1, hyper={"rho": 0.5})
    mine, nodes = hooks(trainer), hooks(trainer).nodes
    ends: list[Tensor] = []
    plain = mine.finish_task

    def kept() -> None:
        ends.append(trainer.theta.clone())
        plain()

    mine.finish_task = kept  # type: ignore[method-assign]
    trainer.run()
    important = nodes.per_layer(mine.importance > 0)
    renewed, fresh = nodes.per_layer(mine._renewed(important)), mine._fresh()
    position = trainer.position
    assert position.phase == 1  # the draws of the task before are what `_renewed` would give at phase 0
    position.phase = 0
    renewed, fresh = nodes.per_layer(mine._renewed(important)), mine._fresh()
    assert not torch.equal(fresh, trainer.net.initial([0]))
    some = 0
    for layer, now, new in zip(nodes.layers, important, renewed, strict=True):
        groups, before, drawn = (nodes.groups(rows, layer)[0, 0] for rows in (trainer.theta, ends[0], fresh))
        assert torch.equal(groups[new[0, 0]], drawn[new[0, 0]])
        rest = ~new[0, 0]
        assert ((groups[rest] == before[rest]) | (groups[rest] == 0)).all()
        assert torch.equal(nodes.groups(mine.home, layer)[0, 0][now[0, 0]], groups[now[0, 0]])
        assert not nodes.groups(mine.home, layer)[0, 0][~now[0, 0]].any()
        some += int(new.sum())
    assert some > 0


# ---------------------------------------------------------------------- runs, resuming, settings


def test_strengths_may_differ_between_runs() -> None:
    hyper = {"lambda_sp": [0.5, 50.0], "mu": [1.0, 8.0], "rho": [0.1, 0.8], "eta": [0.5, 0.9]}
    both = sparse(PLATEAU, seeds=(0, 1), hyper={n: torch.tensor(v) for n, v in hyper.items()})
    both.run()
    for run in range(2):
        alone = sparse(PLATEAU, seeds=(run,), hyper={n: v[run] for n, v in hyper.items()})
        alone.run()
        assert_same(both, run, alone)


@pytest.mark.parametrize("training", [PLATEAU, STEP])
def test_a_training_goes_on_within_a_task_and_between_tasks(training: Training, tmp_path: Path) -> None:
    whole = sparse(training, seeds=(0, 1))
    whole.run()
    for moment in ((0, 4), (1, 0), (1, 3), (2, 5)):
        begun = sparse(training, seeds=(0, 1))
        with pytest.raises(Interrupted):
            begun.run(lambda t, moment=moment: (t.position.phase, t.position.epoch) == moment)
        save_state(tmp_path / "state", begun.tensors(), begun.position, "me")
        continued = sparse(training, seeds=(0, 1))
        continued.position = load_state(tmp_path / "state", continued.tensors(), "me")
        continued.run()
        for run in range(2):
            assert_same(continued, run, whole, run)
    mine = hooks(whole)
    assert not mine.free.all() and (mine.importance > 0).any() and (mine.importance == 0).any()


def test_activations_are_measured_on_images_as_training_shows_them() -> None:
    """Every run with windows of its own, whoever is beside it."""
    plain = [hand_stream([40, 30], seed=seed) for seed in range(2)]
    shown = [replace(stream, augmentation=Crop(2)) for stream in plain]
    whole, alone, still = (
        make_trainer(method("agscl"), streams, STEP, backbone=convolutional())
        for streams in (shown, shown[1:], plain)
    )
    for trainer in (whole, alone, still):
        trainer.enter_phase()
    found = [trainer.activations(hooks(trainer).nodes) for trainer in (whole, alone, still)]
    assert torch.equal(found[0][1], found[1][0]) and not torch.equal(found[0][1], found[2][1])
    for trainer in (whole, alone):
        trainer.run()
    assert_same(whole, 1, alone)


def test_importance_fades_and_grows() -> None:
    """Omega <- eta Omega + mean activation."""
    trainer = sparse(replace(PLATEAU, epochs=2), hyper={"eta": 0.25})
    mine, plain = hooks(trainer), trainer.activations
    found: list[Tensor] = []

    def kept(nodes: Any) -> Tensor:
        found.append(plain(nodes))
        return found[-1]

    trainer.activations = kept  # type: ignore[method-assign]
    trainer.run()
    torch.testing.assert_close(mine.importance, 0.25 * (0.25 * found[0] + found[1]) + found[2])


@pytest.mark.parametrize(
    "wrong", [{"rho": 1.5}, {"rho": -0.1}, {"mu": -1.0}, {"eta": 2.0}, {"lambda_sp": float("nan")}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GroupSparsity(**({"lambda_sp": 1.0, "mu": 1.0, "rho": 0.5} | wrong))


def test_a_share_of_many_nodes() -> None:
    """0.3 of 100 is a little more than 30 in float32."""
    trainer = sparse(PLATEAU, hyper={"rho": 0.3}, width=100)
    mine = hooks(trainer)
    nothing = mine.nodes.per_layer(torch.zeros_like(mine.importance, dtype=torch.bool))
    assert int(mine.nodes.per_layer(mine._renewed(nothing))[0].sum()) == 30


@pytest.mark.parametrize("moment", [(1, 0), (1, 3), (2, 5)])
def test_what_is_held_at_zero_is_held_after_a_restart(moment: tuple[int, int], tmp_path: Path) -> None:
    whole, begun, again = (sparse(PLATEAU, seeds=(0, 1), backbone=convolutional()) for _ in range(3))
    whole.run()
    with pytest.raises(Interrupted):
        begun.run(lambda now: (now.position.phase, now.position.epoch) == moment)
    save_state(tmp_path / "state", begun.tensors(), begun.position, "me")
    again.position = load_state(tmp_path / "state", again.tensors(), "me")
    again.run()
    assert_same(again, 0, whole, 0)
