"""The state of a learner between tasks, and its predictions, with the task given or inferred.

To infer the task of a sample, every head predicts, and the most confident one counts most. A head of C classes has
the confidence c = (max p - 1/C) / (1 - 1/C): 0 if all classes are equally likely, 1 if one is certain, for any C.
Tasks are weighted by confidence,

    P(task t) = c_t / sum over tasks of c,    P(class) = sum over tasks t that have it of P(task t) p_t(class),

so that with one task the probabilities are those of its head. Heads are never trained on samples of other tasks, and
nothing makes them unsure there: expect a far lower accuracy than with the task given. Largest logits, energies,
entropies and the agreement of learners separate the tasks of digits no better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from kenyon.data.tasks import Split, Stream, Task
from kenyon.errors import unknown
from kenyon.estimator.errors import InputError, as_token_errors
from kenyon.metrics import Array
from kenyon.models import Net
from kenyon.training.batches import Fleet
from kenyon.training.device import Lanes, Runs, on_device
from kenyon.training.evaluation import chunk_of
from kenyon.utils.threads import cpu_threads, single_precision

if TYPE_CHECKING:
    from kenyon.estimator.inputs import Form, Labels

ROUND = 32  # small networks see multiples of it, so that predictions do not depend on the number of samples


@dataclass(frozen=True, eq=False)
class PastTask(Task):
    """A learned task, of whose data any part may be gone."""

    def __post_init__(self) -> None: ...


def task_weights(heads: Sequence[Tensor]) -> Tensor:
    """Return P(task), (N, T), for the probabilities of the heads, (N, C_t) each."""
    chances = [1 / p.shape[1] for p in heads]
    confidences = [(p.amax(1) - chance) / (1 - chance) for p, chance in zip(heads, chances, strict=True)]
    confidence = torch.stack(confidences, dim=1).clamp(min=1e-9)  # equal weights if no head is confident
    return confidence / confidence.sum(1, keepdim=True)


def across_tasks(heads: Sequence[Tensor], labels: Sequence[Labels], classes: Labels) -> Tensor:
    """Return P(class), (N, C), for all classes of all tasks."""
    weights = task_weights(heads)
    total = torch.zeros(len(weights), len(classes), dtype=weights.dtype)
    for task, (p, task_labels) in enumerate(zip(heads, labels, strict=True)):
        columns = torch.from_numpy(np.searchsorted(classes, task_labels))
        total.index_add_(1, columns, weights[:, task : task + 1] * p)
    return total


@dataclass(frozen=True, eq=False)
class Knowledge:
    net: Net
    stream: Stream  # the learned tasks: their test samples, and the training samples that the method keeps
    labels: tuple[Labels, ...]  # the classes of each task, sorted
    form: Form
    tensors: dict[str, Tensor]  # the state of training, from which the next task resumes
    matrix: Array  # (T, T) accuracy of task i after task t with the task named, per cent; NaN without test samples
    inferred: Array  # (T, T) the same with the task inferred
    fixed: dict[str, Any]  # parameters that can no longer change

    @property
    def pool(self) -> Tensor:
        """The kept samples."""
        return cast(Tensor, self.stream.pool)

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.stream.tasks]

    @property
    def classes(self) -> Labels:
        return np.unique(np.concatenate(self.labels))

    def classes_of(self, task: str | None) -> Labels:
        """Return the classes of a task, or of all tasks for None; sorted."""
        return self.classes if task is None else self.labels[self.index_of(task)]

    def index_of(self, task: str) -> int:
        if not isinstance(task, str) or task not in self.names:
            raise InputError(str(unknown("task", task, self.names)))
        return self.names.index(task)

    def rows(self, task: int) -> Tensor:
        """Return the parameters (M, P) of the networks of a task: M = 1, or the number of independent networks."""
        learners = self.tensors.get("learners")  # (R, T, P) if every task has a network of its own
        return self.tensors["theta"] if learners is None else learners[:, task].contiguous()

    @property
    def distinct(self) -> list[int]:
        """Tasks with different predictions: the first alone if all share a network and a head."""
        return [0] if self.net.shared and "learners" not in self.tensors else list(range(len(self.names)))

    # ------------------------------------------------------------------ predictions

    def across_tasks(self, inputs: Tensor) -> Tensor:
        """Return the probabilities of all classes, (N, C), with the task inferred."""
        labels = [self.labels[task] for task in self.distinct]
        return across_tasks(self.probabilities(inputs, self.distinct), labels, self.classes)

    def probabilities_of(self, inputs: Tensor, task: str | None) -> Tensor:
        """Return the probabilities, (N, C), of the classes of a task, or of all classes for None."""
        return self.across_tasks(inputs) if task is None else self.probabilities(inputs, [self.index_of(task)])[0]

    def predict(self, inputs: Tensor, task: str | None) -> Labels:
        """Return the most likely class of every sample, (N,)."""
        return self.classes_of(task)[self.probabilities_of(inputs, task).argmax(1).numpy()]

    def predict_task(self, inputs: Tensor) -> Labels:
        """Return the name of the most likely task of every sample, (N,)."""
        weights = task_weights(self.probabilities(inputs, self.distinct))
        return np.array(self.names)[weights.argmax(1).numpy()]

    def inferred_accuracy(self, task: int) -> float:
        """Return the test accuracy of a task in per cent, with the task inferred; NaN without test samples."""
        test = self.stream.tasks[task].test
        if not len(test):
            return float("nan")
        predicted = self.predict(test.images, None)
        return 100 * float(np.mean(predicted == self.labels[task][test.labels.numpy()]))

    @single_precision()
    def examples(self, most: int = 8) -> Tensor:
        """Return a few inputs: kept samples, or random ones if there are none."""
        form, pool = self.form, self.pool
        if len(pool):
            return pool[:: max(1, len(pool) // most)][:most]
        if form.kind == "tokens":  # every embedding has a token 0
            return torch.zeros(most, *form.shape, dtype=torch.int64)
        drawn = torch.randn(most, *form.shape, generator=torch.Generator().manual_seed(0))
        if form.kind == "bytes":
            return (drawn * 50 + 128).clamp(0, 255).to(torch.uint8)
        along = (-1, *(1,) * (len(form.shape) - 1))
        mean, std = form.mean or (0.0,), form.std or (1.0,)
        return drawn * torch.tensor(std).view(along) + torch.tensor(mean).view(along)

    @torch.no_grad()
    @single_precision()
    @cpu_threads(None)
    def probabilities(self, inputs: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """Return the probabilities of the heads of some tasks, (N, C) each, in double precision."""
        if "learners" in self.tensors and len(tasks) > 1:
            return [self.probabilities(inputs, [task])[0] for task in tasks]
        net, theta = self.net, self.rows(tasks[0])
        M, N, execute, chunk = len(theta), len(inputs), net.executor, chunk_of(net.input_shape)
        heads = torch.tensor([net.head_of(task) for task in tasks], device=net.device)
        none = torch.zeros(0, dtype=torch.long)
        empty = Split(inputs, none, none)
        stream = replace(self.stream, tasks=(PastTask("queried", ("any",), empty, empty, empty),))
        logits = torch.zeros(M, len(tasks), N, max(net.class_counts), dtype=torch.float64, device=net.device)
        with on_device(net.device), as_token_errors():
            channels, frame, refer = execute.input_channels, execute.frame, not net.small
            fleet = Fleet([stream] * M, net.device, channels, frame=frame, by_reference=refer)

            def work(run: Runs) -> None:
                for start in range(0, N, chunk):
                    count = min(chunk, N - start)
                    size = -(-count // ROUND) * ROUND if net.small else count
                    index = torch.arange(start, start + size, device=net.device).clamp(max=N - 1)
                    places = index.expand(M, -1).contiguous() if isinstance(run, slice) else index
                    out = net.every_head(theta[run], fleet.images(run, places), heads)
                    logits[run, :, start : start + count] = out[..., :count, :].double()

            Lanes(net.device, M, together=net.together, threads=execute.threads).each(range(M), work)
        mean = logits.softmax(-1).mean(0).cpu()  # (n, N, C)
        parts = [p[:, : len(self.labels[task])] for p, task in zip(mean, tasks, strict=True)]
        return [part / part.sum(1, keepdim=True) for part in parts]
