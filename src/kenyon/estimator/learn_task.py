"""How to learn: the estimator's parameters as a method, a training regime and a network.

What a learner tells while it learns, if asked to: a bar on a terminal, and a line when a task is learned.

One task learned: from its samples and what was known before to what is known after, and nothing in between.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import accumulate, chain
from math import prod
from numbers import Real
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from kenyon.backends.torch.module import split_backbone
from kenyon.data.tasks import Heads, Split, Stream, Task
from kenyon.errors import shown
from kenyon.estimator.errors import SettingError, as_setting_errors, as_token_errors
from kenyon.estimator.inputs import Form, Labels
from kenyon.estimator.knowledge import Knowledge, Met, go_on, past
from kenyon.estimator.settings import (
    build_method,
    build_training,
    default_backbone,
    flag,
    learners_of,
    one_of,
    single_precision,
    whole,
)
from kenyon.methods import Method
from kenyon.metrics import Array
from kenyon.models import Diversity, Net, Start
from kenyon.models.initial import seeded
from kenyon.random import Purpose, key, shuffled
from kenyon.training import Trainer, Training
from kenyon.training.device import choose_device
from kenyon.training.trainer import Watcher
from kenyon.utils.text import printable
from kenyon.utils.threads import cpu_threads

PRECISIONS = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
# From the first task on.
FIXED = ("method", "learners", "heads", "standardise", "diversity", "gate", "start", "seed", "frozen")

Backbone = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True, eq=False)
class Plan:
    backbone: nn.Module
    form: Form
    method: Method
    training: Training
    fixed: dict[str, Any]  # the values of FIXED
    options: Mapping[str, Any]  # of `Net`

    @property
    def seed(self) -> int:
        return int(self.fixed["seed"])

    @property
    def members(self) -> int:
        """How many networks learn independently."""
        return int(self.fixed["learners"]) if self.method.apart else 1

    @single_precision()
    def net(self, class_counts: Sequence[int]) -> Net:
        method, K = self.method, self.fixed["learners"] // self.members

        def build(learned: dict[str, tuple[int, ...]], dtype: torch.dtype | None) -> Net:
            place = (self.backbone, self.form.shape, class_counts)
            options = {**self.options, "learned": learned, "dtype": dtype}
            return Net(*place, learners=K, active_column=method.active_column, **options)

        with as_setting_errors():
            bare = build({}, self.options["dtype"])
            learned = method.learned(bare)
            return build(learned, bare.dtype) if learned else bare

    def trainer(self, stream: Stream) -> Trainer:
        net = self.net(stream.class_counts)
        with as_setting_errors():
            return Trainer(net, [stream], self.method, self.training, members=self.members)

    def check_against(self, fixed: Mapping[str, Any]) -> None:
        """That nothing has changed that other tasks were learned with."""
        for name, was in fixed.items():
            if self.fixed[name] == was:
                continue
            if name == "frozen":
                raise SettingError(
                    "The backbone's frozen weights or constants have other values than when the tasks before were "
                    "learned. Give the backbone with the same ones, or begin with a new learner."
                )
            raise SettingError(
                f"{name} was {was!r} when the tasks before were learned; now it is {shown(self.fixed[name])}. "
                "Set it back with set_params, or begin with a new learner."
            )


@single_precision()
def built(backbone: Backbone, features: int) -> nn.Module:
    """The backbone as a module, whatever it was given as; `features`: numbers of a sample."""
    if isinstance(backbone, nn.Module):
        return backbone
    if backbone is None:
        backbone = partial(default_backbone, features)
    module = None
    if callable(backbone) and _takes_nothing(backbone):
        module = seeded(backbone, 0)  # PyTorch's own generator shall not notice
    if not isinstance(module, nn.Module):
        raise SettingError(
            "backbone must be a torch.nn.Module, or a function without arguments that builds one, not "
            f"{type(backbone if module is None else module).__name__}."
        )
    return module


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments, as far as it tells."""
    try:
        signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        pass  # it does not tell
    return True


def frozen_parts(backbone: nn.Module) -> int:
    """A checksum of what all learners share and nothing changes."""
    found = 0
    for name, value in sorted(split_backbone(backbone).constants.items()):
        data = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found = zlib.crc32(data, zlib.crc32(name.encode(), found))
    return found


def make_plan(parameters: Mapping[str, Any], form: Form, *, validated: bool) -> Plan:
    """From the parameters of the estimator; `validated`: see `build_training`."""
    values, given = dict(parameters), parameters["backbone"]
    backbone = built(given, prod(form.shape))
    words = {
        "precision": PRECISIONS,
        "heads": get_args(Heads),
        "diversity": get_args(Diversity),
        "start": get_args(Start),
    }
    for name, known in words.items():
        values[name] = one_of(name, values[name], known)
    for name in ("standardise", "gate"):
        values[name] = flag(name, values[name])
    values["seed"] = whole("seed", values["seed"], 0)
    with as_setting_errors():
        strengths = {name: values[name] for name in ("lambda_sp", "lambda_af", "gamma")}
        method = build_method(values["method"], strengths, values["options"])
        values["learners"] = learners_of(values["method"], method, values["learners"])
        share = values["validation"] if validated else None
        training = build_training(values["epochs"], values["batch"], values["rate"], share)
        options = {
            "diversity": values["diversity"],
            "gate": values["gate"],
            "shared_head": values["heads"] == "shared",
            "start": values["start"],
            "draw": None if isinstance(given, nn.Module) else given,
            "device": choose_device(values["device"]),
            "dtype": PRECISIONS[values["precision"]],
            "input_dtype": form.input_dtype,
            "in_place": form.kind == "bytes",
        }
        values["frozen"] = frozen_parts(backbone)
    return Plan(backbone, form, method, training, {name: values[name] for name in FIXED}, options)


@contextmanager
def telling(name: str, *, verbose: bool) -> Iterator[Watcher | None]:
    """On standard error. Gives what the training loop calls after every epoch."""
    if not verbose:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal:  # bars that are disabled end in an empty line, in older versions of Rich
        yield None
        return
    columns = TextColumn("{task.description}", style="bold", markup=False), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(printable(name), total=None)

        def watch(trainer: Trainer) -> bool:
            at, stages, epochs = trainer.position, len(trainer.method.stages), trainer.training.epochs
            done = (at.phase - (len(trainer.phases) - stages)) * epochs + at.epoch
            bars.update(bar, total=stages * epochs, completed=done)
            return False

        yield watch


def summary(known: Knowledge, seconds: float) -> str:
    """The task learned last, and what the tests say of all so far."""
    task, labels = known.stream.tasks[-1], known.labels[-1]
    line = f"{printable(task.name)}: {len(labels)} classes, {seconds:.1f} s"
    tested = ~np.isnan(known.matrix[-1])
    if tested.any():
        named, inferred = (float(np.mean(row[-1][tested])) for row in (known.matrix, known.inferred))
        line += f"; {int(tested.sum())} tasks tested: {named:.1f} % right with the task named, {inferred:.1f} without"
    return line


@dataclass(frozen=True, eq=False)
class Lesson:
    """A task's samples where they lie, with labels counted from 0 within it. Parts may share a pool."""

    name: str
    labels: Labels  # the classes, sorted
    train: Split
    validation: Split | None
    test: Split | None


@single_precision()
def learn(lesson: Lesson, plan: Plan, before: Knowledge | None, watch: Watcher | None) -> Knowledge:
    if before is not None:
        plan.check_against(before.fixed)
    trainer = plan.trainer(_stream(lesson, plan, before))
    try:
        return _learned(trainer, lesson, plan, before, watch)
    finally:
        trainer.close()


def _learned(
    trainer: Trainer, lesson: Lesson, plan: Plan, before: Knowledge | None, watch: Watcher | None
) -> Knowledge:
    if before is not None:
        _check(before.net, trainer.net, before.net.backbone_names, trainer.net.backbone_names)
        go_on(trainer, before.tensors, before.net.layout, len(before.stream.tasks))
    with cpu_threads(1 if trainer.net.small else None), as_setting_errors(), as_token_errors():
        at = trainer.run(watch)
    if not trainer.live:
        where = at.diverged[0]
        assert where is not None
        raise SettingError(
            f"Learning task '{lesson.name}', the loss was no longer finite in epoch {where[1] + 1}. "
            f"{trainer.why_diverged(0)}What was learned before is as it was. Choose a smaller rate than "
            f"{plan.training.rate:g}, or smaller strengths."
        )
    after = Knowledge(
        trainer.net,
        _kept(trainer),
        (*(before.labels if before else ()), lesson.labels),
        plan.form,
        trainer.tensors(),
        _grown(before.matrix if before else None, at.records[-1]["accuracy"][0]),
        np.zeros((0, 0)),
        plan.fixed,
    )
    return replace(after, inferred=_grown(before.inferred if before else None, _inferred(after)))


def check_known(plan: Plan, known: Knowledge) -> None:
    """That the plan is of the learner that knows this, and would make its network again."""
    plan.check_against(known.fixed)
    now = plan.net([len(labels) for labels in known.labels])
    _check(known.net, now, known.net.layout.segments, now.layout.segments)


def _check(before: Net, now: Net, *names: Iterable[str]) -> None:
    """That the learners are what they were, in the parts of these names."""
    for name in dict.fromkeys(chain(*names)):
        was, is_ = (net.layout.segments.get(name) for net in (before, now))
        if was is None or is_ is None or was.shape != is_.shape:
            shapes = [None if part is None else part.shape[1:] for part in (was, is_)]
            raise SettingError(
                f"The backbone is another than that of the tasks before: {name} was {shapes[0]} and is {shapes[1]}. "
                "Give the backbone that they were learned with, or begin with a new learner."
            )


def held_out(labels: Tensor, share: float, seed: int, task: int) -> tuple[Tensor, Tensor]:
    """Places of samples to learn from and to validate with: a random share, at least one, but never a class's last.

    Nothing is held out where every class has but one sample.
    """
    if not isinstance(share, (int, float, Real)) or not 0 <= share < 1:
        raise SettingError(f"validation is a share of at least 0 and below 1, not {shown(share)}.")
    order = shuffled(torch.tensor([key(seed, Purpose.ORDER, -1, task)]), torch.tensor([len(labels)]), len(labels))[0]
    spare = np.ones(len(labels), dtype=bool)
    spare[np.unique(labels[order].numpy(), return_index=True)[1]] = False  # the first of every class
    wanted = max(1, round(share * len(labels))) if share > 0 else 0
    apart = torch.from_numpy(spare & (np.cumsum(spare) <= wanted))
    return order[~apart], order[apart]


def _stream(lesson: Lesson, plan: Plan, before: Knowledge | None) -> Stream:
    """The tasks before and the new one, over one pool: where there is but one, it is not copied."""
    none = torch.zeros(0, dtype=torch.long)
    parts = [part or Split(lesson.train.pool, none, none) for part in (lesson.train, lesson.validation, lesson.test)]
    pools: dict[int, Tensor] = {} if before is None or not len(before.pool) else {id(before.pool): before.pool}
    for part in parts:
        assert isinstance(part.pool, Tensor)
        pools[id(part.pool)] = part.pool
    starts = dict(zip(pools, accumulate(map(len, pools.values()), initial=0), strict=False))
    pool = lesson.train.pool if len(pools) == 1 else torch.cat(list(pools.values()))
    splits = [Split(pool, part.index + starts[id(part.pool)], part.labels) for part in parts]
    assert isinstance(pool, Tensor)
    tasks = [] if before is None else [_over(task, pool) for task in before.stream.tasks]
    new = Met(lesson.name, tuple(map(str, lesson.labels)), *splits)
    return Stream("arriving", plan.seed, (*tasks, new), plan.form.mean, plan.form.std, heads=plan.fixed["heads"])


def _over(task: Task, pool: Tensor, places: Tensor | None = None) -> Met:
    """The same task over another pool, in which what lay at i lies at places[i] (as it was, if None)."""

    def moved(split: Split) -> Split:
        return Split(pool, split.index if places is None else places[split.index], split.labels)

    return Met(task.name, task.classes, moved(task.train), moved(task.validation), moved(task.test))


def _kept(trainer: Trainer) -> Stream:
    """The tasks learned, over a pool of nothing but what is kept of them."""
    stream = trainer.streams[0]
    tasks = [past(trainer, task) for task in range(len(stream.tasks))]
    used = torch.cat([split.index for task in tasks for split in (task.train, task.test)])
    assert isinstance(stream.pool, Tensor)
    places = torch.zeros(len(stream.pool), dtype=torch.long)
    places[used] = torch.arange(len(used))
    pool = stream.pool[used]
    return replace(stream, tasks=tuple(_over(task, pool, places) for task in tasks))


def _inferred(known: Knowledge) -> list[float]:
    """The accuracy of every task in per cent where the task is not told; NaN without test samples."""
    return [inferred_accuracy(known, task) for task in range(len(known.names))]


def inferred_accuracy(known: Knowledge, task: int) -> float:
    test = known.stream.tasks[task].test
    if not len(test):
        return float("nan")
    said = known.likeliest(test.images, None)
    return 100 * float(np.mean(said == known.labels[task][test.labels.numpy()]))


def _grown(matrix: Array | None, row: Sequence[float]) -> Array:
    """One row more, and one column of tasks that rows before have not met."""
    T = len(row)
    grown = np.full((T, T), np.nan)
    if matrix is not None:
        grown[: T - 1, : T - 1] = matrix
    grown[T - 1] = row
    return grown
