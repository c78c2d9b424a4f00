"""The active column of Progress & Compress, made ready for every task."""

from __future__ import annotations

from dataclasses import dataclass

from kenyon.hooks import Hooks, Work
from kenyon.importance import GradientImportance


@dataclass(frozen=True)
class ActiveColumn:
    """A second column in the network's rows (`nets.columns`): it learns a task first and is then imitated.

    reinit: the column and its adaptors begin every task anew; else they go on from the task before. Its head is new
    in any case.
    """

    reinit: bool = True

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        return ()

    def attach(self, work: Work) -> Hooks:
        return _Column(work, self.reinit)


class _Column(Hooks):
    every_epoch = False

    def __init__(self, work: Work, reinit: bool) -> None:
        self.work, self.reinit = work, reinit

    def begin_task(self) -> None:
        work, columns = self.work, self.work.net.columns
        assert columns is not None
        classes = work.net.class_counts[work.net.head_of(work.task)]
        columns.begin(work.theta, work.seeds, work.task, classes, anew=self.reinit)
