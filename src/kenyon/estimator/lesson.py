"""One task learned: from its samples and what was known before to what is known after, and nothing in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import shown
from kenyon.estimator.errors import SettingError, as_setting_errors, as_token_errors
from kenyon.estimator.growing import Met, go_on, past
from kenyon.estimator.knowledge import Knowledge
from kenyon.estimator.labels import Labels
from kenyon.estimator.plan import Plan
from kenyon.estimator.settings import single_precision
from kenyon.metrics import Array
from kenyon.nets import Net
from kenyon.random import Purpose, key, shuffled
from kenyon.streams.task import Split, Stream, Task
from kenyon.threads import cpu_threads
from kenyon.train import Trainer
from kenyon.train.loop import Watcher


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
