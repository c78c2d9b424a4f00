"""The plain losses train an ordinary module step by step as the engine trains its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.data import Stream
from kenyon.methods import Method
from kenyon.methods.active_forgetting import ExpandedNetwork
from kenyon.methods.importance import fisher_exact, fisher_published, mas
from kenyon.methods.path_importance import si
from kenyon.methods.penalties.weights import ActiveForgetting1, ActiveForgetting2, Divergence, StabilityProtection
from kenyon.regularizers import AF1, AF2, AFS, Collaborative, Protection
from kenyon.training import Trainer, Training
from tests.references import hand_stream, make_trainer, normalised, plain_mlp

WIDTH, RATE = 5, 0.01
STREAM = hand_stream([47, 35, 20], seed=4, classes=[2, 3, 2], noise=250)
TRAINING = Training(epochs=2, batch=16, rate=RATE, optimiser="sgd", schedule="step", validation=0, drop_epoch=9)
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


@dataclass
class Own:
    """A loop of one's own: a module, the losses that are used, and an optimiser a task."""

    model: Collaborative
    protection: Protection
    af1: AF1 | None = None
    af2: AF2 | None = None
    afs: AFS | None = None
    task: int = 0
    optimizer: torch.optim.Optimizer = field(init=False)
    expanded_optimizer: torch.optim.Optimizer | None = None

    def begin_task(self, task: int) -> None:
        self.task = task
        learned = [p for loss in (self.af1, self.afs) if loss is not None for p in loss.parameters()]
        for loss in (self.af1, self.afs):
            if loss is not None:
                loss.begin_task()
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *learned], RATE, momentum=0.9)
        self.protection.track(self.optimizer)
        if self.af2 is not None:
            self.expanded_optimizer = torch.optim.SGD(self.af2.network.parameters(), RATE, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        logits, own = self.model(x, self.task, own=True)
        loss = F.cross_entropy(logits, y) + self.protection()
        if self.afs is not None:
            loss = loss + self.afs(own)
        if self.task > 0 and self.af1 is not None:
            loss = loss + self.af1(self.model.heads[self.task])
        if self.task > 0 and self.af2 is not None:
            loss = loss + self.af2()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def expanded_step(self, x: Tensor, y: Tensor) -> None:
        assert self.af2 is not None and self.expanded_optimizer is not None
        self.expanded_optimizer.zero_grad()
        F.cross_entropy(self.af2.network(x, self.task), y).backward()
        self.expanded_optimizer.step()

    def predict(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0], self.task), batch[1]


def loaded(trainer: Trainer) -> Collaborative:
    """The engine's first run as a module."""
    net = trainer.net
    heads = [nn.Linear(net.features, count) for count in net.class_counts]
    model = Collaborative([plain_mlp(WIDTH, smooth=True) for _ in range(net.learners)], heads)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(in_row(trainer, trainer.theta, name))
    return model


def in_row(trainer: Trainer, rows: Tensor, name: str) -> Tensor:
    """A parameter of the module in the engine's rows (R, P), or (R, Pp)."""
    kind, number, rest = name.split(".", 2)
    if kind == "backbones":
        return trainer.net.layout.view(rows, rest)[0, int(number)]
    count = trainer.net.class_counts[int(number)]
    return trainer.net.layout.view(rows, f"head.{rest}")[0, int(number), :count]


def batch_of(trainer: Trainer, stream: Stream) -> tuple[Tensor, Tensor]:
    """What the engine's loader shows next."""
    loader, split = trainer.engine.loader, stream.tasks[trainer.position.phase].train
    index = loader.index[0, loader.step][0][loader.valid[0, loader.step][0] > 0]
    where = [(split.index == i).nonzero().item() for i in index]
    return normalised(split, stream)[where].float(), split.labels[where]


def task_batches(stream: Stream, task: int) -> list[tuple[Tensor, Tensor]]:
    """The training data in its order, in batches of a size that is not that of any importance."""
    split = stream.tasks[task].train
    return list(zip(normalised(split, stream).float().split(7), split.labels.split(7), strict=True))


@dataclass(frozen=True)
class Case:
    method: Method
    learners: int
    own: Callable[[Collaborative], Own]


def protected(model: Collaborative, importance: str, strength: float) -> Protection:
    return Protection(model, importance, strength=strength, exclude="heads")


def af1_and_afs(form: str) -> Case:
    def own(model: Collaborative) -> Own:
        forgetting = AF1(model, strength=0.03, adaptive=True, exclude="heads")
        learning = AFS(3, strength=0.4, adaptive=True, form=form)  # type: ignore[arg-type]
        return Own(model, protected(model, "ewc", 1e4), af1=forgetting, afs=learning)

    divergence = Divergence(0.4, True, form)  # type: ignore[arg-type]
    penalties = (StabilityProtection(1e4), ActiveForgetting1(0.03, True), divergence)
    return Case(Method(fisher_published(), penalties, multi=True), 3, own)


CASES = {
    "ewc": Case(
        Method(fisher_published(), (StabilityProtection(1e4),)), 1, lambda m: Own(m, protected(m, "ewc", 1e4))
    ),
    "ewc-exact": Case(
        Method(fisher_exact(), (StabilityProtection(1000.0),)), 2, lambda m: Own(m, protected(m, "ewc-exact", 1000.0))
    ),
    "mas": Case(Method(mas(), (StabilityProtection(50.0),)), 2, lambda m: Own(m, protected(m, "mas", 50.0))),
    "si": Case(
        Method(si(), (StabilityProtection(100.0, factor=1.0),)), 2, lambda m: Own(m, protected(m, "si", 100.0))
    ),
    "uniform": Case(
        Method(fisher_published(), (StabilityProtection(1e4), ActiveForgetting1(0.03), Divergence(0.4)), multi=True),
        3,
        lambda m: Own(
            m,
            protected(m, "ewc", 1e4),
            af1=AF1(m, strength=0.03, exclude="heads"),
            afs=AFS(3, strength=0.4),
        ),
    ),
    "adaptive": af1_and_afs("published"),
    "adaptive, the paper's divergence": af1_and_afs("paper"),
    "af2": Case(
        Method(
            fisher_published(),
            (StabilityProtection(1e4), ActiveForgetting2(1e4)),
            mechanisms=(ExpandedNetwork(),),
        ),
        1,
        lambda m: Own(m, protected(m, "ewc", 1e4), af2=AF2(m, strength=1e4, exclude="heads")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_training_alongside_the_engine(name: str) -> None:
    """Three tasks: the whole loss and all weights after every step, importances and anchors after every task."""
    case = CASES[name]
    backbone = plain_mlp(WIDTH, smooth=True)
    trainer = make_trainer(case.method, [STREAM], TRAINING, backbone=backbone, learners=case.learners)
    own = case.own(loaded(trainer))
    steps = 0

    def same(rows: Tensor, mine: dict[str, Tensor]) -> None:
        for parameter, value in mine.items():
            torch.testing.assert_close(value, in_row(trainer, rows, parameter), **CLOSE, msg=parameter)

    begin, step, finish = trainer._start_task, trainer.step, trainer.finish_phase

    def begin_task() -> None:
        begin()
        own.begin_task(trainer.position.phase)
        for kind, loss in (("af1", own.af1), ("afs", own.afs)):
            if loss is not None and loss.learned is not None:
                loss.learned.data.copy_(trainer.net.layout.view(trainer.theta, kind)[0])

    def both_step() -> None:
        nonlocal steps
        x, y = batch_of(trainer, STREAM)
        penalties = sum(trainer.penalties.values(), torch.zeros(1))
        mine = own.step(x, y)
        step()
        torch.testing.assert_close(mine, (trainer.engine.loss + penalties)[0], **CLOSE)
        same(trainer.theta, {n: p.detach() for n, p in own.model.named_parameters()})
        for kind, loss in (("af1", own.af1), ("afs", own.afs)):
            if loss is not None and loss.learned is not None:
                torch.testing.assert_close(
                    loss.learned.detach(), trainer.net.layout.view(trainer.theta, kind)[0], **CLOSE
                )
        steps += 1

    def both_finish() -> None:
        finish()
        task = own.task
        own.protection.consolidate(task_batches(STREAM, task), own.predict)
        same(trainer.importance, own.protection.importance)
        same(trainer.anchor, own.protection.anchor)

    trainer._start_task = begin_task  # type: ignore[method-assign]
    trainer.step = both_step  # type: ignore[method-assign]
    trainer.finish_phase = both_finish  # type: ignore[method-assign]
    if own.af2 is not None:
        alongside_expanded(trainer, own, same)
    trainer.run()
    assert steps == 2 * (3 + 3 + 2)


def alongside_expanded(trainer: Trainer, own: Own, same: Callable[[Tensor, dict[str, Tensor]], None]) -> None:
    assert own.af2 is not None
    forgetting, hook = own.af2, trainer.mechanisms[0]
    step, before = hook._expanded_step, hook.before_epoch  # type: ignore[attr-defined]

    def both_step() -> None:
        own.expanded_step(*batch_of(trainer, STREAM))
        step()

    def before_epoch() -> None:
        before()
        forgetting.measure(task_batches(STREAM, own.task), own.predict)
        same(hook.theta, {n: p.detach() for n, p in forgetting.network.named_parameters()})  # type: ignore[attr-defined]
        same(hook.importance, forgetting.importance)  # type: ignore[attr-defined]

    hook._expanded_step, hook.before_epoch = both_step, before_epoch  # type: ignore[attr-defined, method-assign]
