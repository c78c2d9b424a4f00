"""Progress & Compress against its equations done slowly, and what each of its stages leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.data import Stream
from kenyon.data.tasks import Crop
from kenyon.errors import ConfigError
from kenyon.experiments.training import runs_of
from kenyon.models import Net
from kenyon.training import Trainer, Training
from kenyon.training.engine import Engine
from tests.references import hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import SHORT, assert_same, digit_streams, method, trained

Named = dict[str, Tensor]
Apply = Callable[[Tensor, Tensor, Tensor], Tensor]  # a layer's input, weight and bias
ADAM = Training(epochs=7, batch=64, rate=0.01, patience=1)
SGD = Training(epochs=4, batch=64, rate=0.1, validation=0, optimiser="sgd", schedule="step", drop_epoch=2, carry=True)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, 6),
        nn.Tanh(),
    )


# The layers by hand; a tanh is behind each.
MLP: dict[str, Apply] = {n: lambda h, w, b: h.flatten(1) @ w.T + b for n in ("dense1", "dense2")}
CNN: dict[str, Apply] = {
    "0": lambda h, w, b: F.conv2d(h, w, b, stride=2, padding=1),
    "2": lambda h, w, b: F.conv2d(h, w, b),
    "5": lambda h, w, b: h.flatten(1) @ w.T + b,
}


class Slow:
    """One run in float64: every epoch is one batch of all samples, and there is no dropout."""

    def __init__(
        self,
        layers: dict[str, Apply],
        net: Net,
        first: Tensor,
        stream: Stream,
        training: Training,
        strength: float,
        merge: Callable[[Tensor, Tensor, int], Tensor],
        reinit: bool,
        temperature: float = 1.0,
    ) -> None:
        self.layers, self.net, self.stream, self.training = layers, net, stream, training
        self.strength, self.merge, self.reinit, self.temperature = strength, merge, reinit, temperature
        self.p = self.named(first)
        self.base = [f"{n}.{part}" for n in layers for part in ("weight", "bias")]
        self.anchor = {n: self.p[n].clone() for n in self.base}
        self.fisher = {n: torch.zeros_like(self.p[n]) for n in self.base}

    def named(self, row: Tensor) -> Named:
        views = self.net.layout.views(row.double())
        return {n: (v if "head" in n else v[0]).clone() for n, v in views.items()}

    def knowledge_base(self, x: Tensor, task: int) -> Tensor:
        h = x
        for name, layer in self.layers.items():
            h = torch.tanh(layer(h, self.p[f"{name}.weight"], self.p[f"{name}.bias"]))
        return h @ self.p["head.weight"][task].T + self.p["head.bias"][task]

    def active(self, x: Tensor) -> Tensor:
        p, h, below = self.p, x, x
        for number, (name, layer) in enumerate(self.layers.items()):
            out = layer(h, p[f"active.{name}.weight"], p[f"active.{name}.bias"])
            if number > 0:
                inner = layer(below, p[f"lateral.{name}.V"], p[f"lateral.{name}.c"]).clamp(min=0)
                mixed = torch.einsum("oi,bi...->bo...", p[f"lateral.{name}.U"], inner)
                out = out + p[f"lateral.{name}.a"].view(1, -1, *(1,) * (out.ndim - 2)) * mixed
            h = torch.tanh(out)
            below = torch.tanh(layer(below, self.seen[f"{name}.weight"], self.seen[f"{name}.bias"]))
        return h @ p["active.head.weight"].T + p["active.head.bias"]

    def data(self, task: int, part: str) -> tuple[Tensor, Tensor]:
        split = getattr(self.stream.tasks[task], part)
        return normalised(split, self.stream), split.labels

    def run(self) -> None:
        for task in range(len(self.stream.tasks)):
            scratch = torch.zeros(1, self.net.layout.size)
            assert self.net.columns is not None
            self.net.columns.start_task(scratch, [self.stream.seed], task, 2)
            drawn = self.named(scratch[0])
            new = ("active", "lateral") if self.reinit or task == 0 else ("active.head",)
            self.p |= {n: value for n, value in drawn.items() if n.startswith(new)}
            self.seen = {n: self.p[n].clone() for n in self.base}

            def learn(part: str, task: int = task) -> Tensor:
                x, y = self.data(task, part)
                return F.cross_entropy(self.active(x), y)

            def imitate(part: str, task: int = task) -> Tensor:
                x, _ = self.data(task, part)
                T = self.temperature
                target = (self.active(x) / T).softmax(1)
                loss = (target * (target.log() - (self.knowledge_base(x, task) / T).log_softmax(1))).sum(1).mean()
                loss = T * T * loss
                for n in self.base if task > 0 else ():
                    loss = loss + self.strength / 2 * (self.fisher[n] * (self.p[n] - self.anchor[n]) ** 2).sum()
                return loss

            self.optimise([n for n in self.p if n.startswith(("active", "lateral"))], learn)
            self.optimise([*self.base, "head.weight", "head.bias"], imitate)
            found = self.measured(task)
            self.fisher = {n: self.merge(self.fisher[n], found[n], task) for n in self.base}
            self.anchor = {n: self.p[n].clone() for n in self.base}

    def optimise(self, names: Sequence[str], loss: Callable[[str], Tensor]) -> None:
        t, rate, best_loss, waited, best = self.training, self.training.rate, float("inf"), 0, dict(self.p)
        leaves = [self.p[n].requires_grad_() for n in names]

        def optimizer(rate: float) -> torch.optim.Optimizer:
            if t.optimiser == "sgd":
                return torch.optim.SGD(leaves, lr=rate, momentum=t.momentum)
            return torch.optim.Adam(leaves, lr=rate)

        mover = optimizer(rate)
        for epoch in range(t.epochs):
            if t.schedule == "step" and epoch == t.drop_epoch:
                mover.param_groups[0]["lr"] = rate / t.drop
            mover.zero_grad()
            loss("train").backward()
            mover.step()
            if t.schedule == "plateau":
                validation = float(loss("validation").detach())
                if validation < best_loss:
                    best_loss, waited, best = validation, 0, {n: self.p[n].detach().clone() for n in names}
                else:
                    waited += 1
                    if waited >= t.patience:
                        rate, waited = rate / t.drop, 0
                        mover = optimizer(rate)
        for n in names:
            self.p[n] = self.p[n].detach().clone() if t.schedule == "step" else best[n]

    def measured(self, task: int) -> Named:
        x, y = self.data(task, "train")
        leaves = {n: self.p[n].requires_grad_() for n in self.base}
        total = {n: torch.zeros_like(self.p[n]) for n in self.base}
        for start in range(0, len(y), 20):
            some = slice(start, start + 20)
            loss = F.cross_entropy(self.knowledge_base(x[some], task), y[some])
            for n, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                total[n] += 20 * g**2 / len(y)
        for n in self.base:
            self.p[n].requires_grad_(False)
        return total


def average(old: Tensor, new: Tensor, before: int) -> Tensor:
    return (before * old + new) / (before + 1)


def online(old: Tensor, new: Tensor, before: int) -> Tensor:
    return 0.5 * old + new


@pytest.mark.parametrize(
    ("kind", "training", "options"),
    [
        ("mlp", ADAM, {}),
        ("cnn", ADAM, {}),
        ("mlp", ADAM, {"decay": 0.5, "reinit": False}),
        ("cnn", SGD, {"decay": 0.5}),
        ("mlp", SGD, {"reinit": False}),
        ("mlp", ADAM, {"temperature": 3.0}),
    ],
)
def test_a_training_equals_the_equations_done_slowly(kind: str, training: Training, options: dict[str, Any]) -> None:
    stream = hand_stream([47, 35, 50], seed=5, held_out=13, noise=1000)  # too hard: validation gets worse again
    backbone, layers = (plain_mlp(5, smooth=True), MLP) if kind == "mlp" else (small_cnn(), CNN)
    trainer = make_trainer(method("pnc", lambda_sp=500.0, **options), [stream], training, backbone=backbone)
    merge, reinit = online if "decay" in options else average, options.get("reinit", True)
    softened = options.get("temperature", 1.0)
    slow = Slow(layers, trainer.net, trainer.theta[0].clone(), stream, training, 500.0, merge, reinit, softened)
    slow.run()
    rates: list[float] = []
    trainer.run(lambda t: rates.append(float(t.rate[0])) or False)
    ours = slow.named(trainer.theta[0])
    for name, value in slow.p.items():
        if not name.startswith("seen"):
            close(name, ours[name], value)
    fisher, anchor = trainer.importance[0].double(), trainer.anchor[0].double()
    start = 0
    for name in slow.base:
        size = slow.p[name].numel()
        close(f"fisher of {name}", fisher[start : start + size].view_as(slow.p[name]), slow.fisher[name])
        close(f"anchor of {name}", anchor[start : start + size].view_as(slow.p[name]), slow.anchor[name])
        start += size
    assert min(rates) < training.rate / 2  # the rate did drop in this test


def close(name: str, ours: Tensor, theirs: Tensor) -> None:
    scale = float(theirs.abs().max())
    near = torch.isclose(ours, theirs, rtol=2e-3, atol=2e-4 * scale)
    # Adam makes a step of a gradient that is only rounding: a few numbers may differ, by less than a step.
    assert float(near.double().mean()) > 0.98, name
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=5e-3 * scale + 1e-9, msg=name)


# ---------------------------------------------------------------------- stages


@pytest.mark.parametrize("training", [SHORT, SGD])
def test_each_stage_trains_its_own_part(training: Training) -> None:
    """After every epoch, in the middle of a stage too; momentum that goes on from task to task moves nothing else."""
    streams = [hand_stream([64, 50], seed=s) for s in range(2)]
    trainer = make_trainer(method("pnc"), streams, training)
    before, seen = trainer.theta.clone(), []
    begin = trainer.start_phase

    def begun() -> None:
        nonlocal before
        begin()
        before = trainer.theta.clone()

    def watch(t: Trainer) -> bool:
        if t.position.epoch == 0:
            return False  # the next phase has not begun
        change = t.net.layout.views(t.theta - before)
        seen.append((t.tasks_before, t.stage, frozenset(n.partition(".")[0] for n, c in change.items() if c.any())))
        return False

    trainer.start_phase = begun  # type: ignore[method-assign]
    trainer.run(watch)
    expected = {0: frozenset({"active", "lateral"}), 1: frozenset({"dense1", "dense2", "head"})}
    assert seen == [
        (task, stage, expected[stage]) for task in (0, 1) for stage in (0, 1) for _ in range(training.epochs)
    ]


def test_phases_are_stages_and_records_are_tasks() -> None:
    trainer = make_trainer(method("pnc"), digit_streams([0, 1]), SHORT)
    assert trainer.phases == [(0,), (0,), (1,), (1,)]
    found: list[tuple[int, int, int]] = []
    trainer.run(lambda t: found.append((t.position.phase, t.tasks_before, len(t.position.records))) or False)
    assert [f for f in found if f[0] == 1][-1] == (1, 0, 0)
    assert found[-1] == (4, 2, 2)
    assert [len(run.accuracy) for run in runs_of(trainer)] == [2, 2]


def test_a_run_that_diverges_names_its_task() -> None:
    """In the second stage of the second task: one task is learned, and the other run goes on."""
    streams = digit_streams([0, 1])
    trainer = make_trainer(method("pnc"), streams, SHORT)
    begin = trainer.start_phase

    def begun() -> None:
        begin()
        if trainer.position.phase == 3:
            trainer.net.layout.view(trainer.theta, "dense1.weight")[0].fill_(torch.nan)

    trainer.start_phase = begun  # type: ignore[method-assign]
    trainer.run()
    assert trainer.position.diverged == [[1, 0], None]
    assert [len(run.accuracy) for run in runs_of(trainer)] == [1, 2]
    assert_same(trainer, 1, trained("pnc", streams[1:]))


def test_the_knowledge_base_learns_what_the_column_says() -> None:
    """Without penalty on one task: their predictions come close, and both are right."""
    training = Training(epochs=30, batch=32, rate=1e-2)
    trainer = trained("pnc", digit_streams([0, 1], tasks=1), training, width=16)
    assert float(torch.tensor(trainer.position.records[0]["accuracy"]).min()) > 95
    assert float(trainer.schedule.best_loss.max()) < 0.1  # the divergence, of the validation data


@pytest.mark.parametrize("training", [SHORT, SGD])
def test_a_teacher_asked_beforehand_says_the_same(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is asked in every step; runs have different numbers of samples."""
    streams = [hand_stream(sizes, seed=s, held_out=12, noise=1000) for s, sizes in enumerate(([70, 30], [90, 20]))]
    beforehand = make_trainer(method("pnc"), streams, training)
    beforehand.run()
    assert beforehand.engine.loader.has_teacher and beforehand.engine.loader.teacher_logits is not None
    monkeypatch.setattr(Engine, "_with_teacher", lambda self, samples, loader, theta: samples)
    in_every_step = make_trainer(method("pnc"), streams, training)
    in_every_step.run()
    assert in_every_step.engine.loader.teacher_logits is None
    for run in range(2):
        assert_same(beforehand, run, in_every_step, run)


def test_a_teacher_is_asked_in_every_step_where_images_are_shown_at_random() -> None:
    """What it says depends on what is shown, to both alike."""
    shown = replace(digit_streams([0])[0], augmentation=Crop(1))
    trainer = make_trainer(method("pnc"), [shown], SHORT)
    trainer.run()
    assert trainer.engine.loader.teacher_logits is None and trainer.live == [0]


# ---------------------------------------------------------------------- strengths and settings


def test_strengths_of_runs_differ() -> None:
    streams = digit_streams([0, 0])
    together = make_trainer(method("pnc", lambda_sp=torch.tensor([5.0, 5e6])), streams, SHORT)
    together.run()
    for run, strength in enumerate((5.0, 5e6)):
        alone = make_trainer(method("pnc", lambda_sp=strength), streams[:1], SHORT)
        alone.run()
        assert_same(together, run, alone)
    assert not torch.equal(together.theta[0], together.theta[1])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_is_positive(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature must be a positive number"):
        method("pnc", lambda_sp=1.0, temperature=temperature)


def test_an_importance_is_merged_in_one_way() -> None:
    assert method("pnc", decay=0.5).importance.accumulate == 0.5  # type: ignore[union-attr]
    assert method("pnc", decay=0.5, accumulate="last").importance.accumulate == "last"  # type: ignore[union-attr]
    for decay in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            method("pnc", decay=decay)
    assert trained("pnc", digit_streams([0], tasks=1)).method.importance.accumulate == "average"  # type: ignore[union-attr]
