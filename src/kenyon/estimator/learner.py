"""A classifier that learns tasks one by one, after the conventions of scikit-learn."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from torch import Tensor
from torch.utils.data import RandomSampler

from kenyon.data.tasks import Heads, Split
from kenyon.errors import ResultsError, shown
from kenyon.estimator.errors import (
    InputError,
    InputTypeError,
    NothingLearnedError,
    SettingError,
    flag,
    one_of,
    share,
    whole,
)
from kenyon.estimator.export import Export, export_learner
from kenyon.estimator.inputs import Form, Labels, class_indices, read_samples, shared_classes, task_classes
from kenyon.estimator.knowledge import Knowledge
from kenyon.estimator.learn_task import (
    TaskData,
    check_rebuilds,
    learn_task,
    progress_bar,
    split_validation,
    summary,
)
from kenyon.estimator.persistence import as_damage, read_learner, save_learner
from kenyon.estimator.settings import Backbone, build_backbone, make_setup, takes_tokens
from kenyon.metrics import Array
from kenyon.models import Diversity, Start
from kenyon.utils.clock import since
from kenyon.utils.files import as_path
from kenyon.utils.threads import cpu_threads

UNNAMED = "unnamed"  # the name of a task that is given none


@dataclass(frozen=True)
class Readings:
    """Accuracies on one task, as shares of its samples."""

    named: float  # with the task named (task-incremental)
    inferred: float  # with the task inferred (class-incremental)
    task: float  # samples whose inferred task is right; NaN if tasks share a head


class ContinualLearner(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns task after task and keeps the old ones without their data.

    backbone: a module that maps a batch to feature vectors, or a function that builds one; each task has a head
        of its own. Each of the `learners` has a copy with weights of its own, so choose a narrower one for five
        learners than for one. None: two dense layers of 64 units.
    method: the method against forgetting, by name (`kenyon list methods`).
    learners: number of learners; None: five for methods with several, else one.
    lambda_sp, lambda_af, gamma: strengths of stability protection, active forgetting and the divergence of
        learners; None: see `methods.defaults`.
    options: further settings of the method, by name.
    heads: "task", a head for each task; or "shared", one head for tasks with the same classes (a stream cut by
        time or by domain), whose predictions need no task.
    epochs, batch, rate: of each task, with Adam.
    validation: share of the samples of a task that chooses its best weights and lowers the rate; with 0 the rate
        stays and the last weights are kept.
    standardise: center and scale inputs by the statistics of the first task.
    diversity, gate: of the learners, as in the paper.
    start: initial weights, "drawn" for each learner, or "given" by a pretrained backbone.
    side: size of images from folders, in pixels.
    precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU and float32 on a CPU.
    seed: all random numbers follow from it.
    """

    def __init__(
        self,
        backbone: Backbone = None,
        method: str = "caf-ewc",
        learners: int | None = None,
        *,
        lambda_sp: float | None = None,
        lambda_af: float | None = None,
        gamma: float | None = None,
        options: Mapping[str, Any] | None = None,
        heads: Heads = "task",
        epochs: int = 30,
        batch: int = 32,
        rate: float = 1e-3,
        validation: float = 0.1,
        standardise: bool = True,
        diversity: Diversity = "high",
        gate: bool = False,
        start: Start = "drawn",
        side: int | None = None,
        precision: str = "auto",
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.learners = learners
        self.lambda_sp = lambda_sp
        self.lambda_af = lambda_af
        self.gamma = gamma
        self.options = options
        self.heads = heads
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.validation = validation
        self.standardise = standardise
        self.diversity = diversity
        self.gate = gate
        self.start = start
        self.side = side
        self.precision = precision
        self.seed = seed
        self.device = device
        self.verbose = verbose

    # ------------------------------------------------------------------ learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        task: str | None = None,
        validation: Any = None,
        test: Any = None,
        classes: Sequence[Any] | None = None,
    ) -> Self:
        """Learn one more task.

        X is an array, tensor or table with labels y; or a Dataset, a DataLoader or a folder of images in folders of
        classes, which have labels. `validation` and `test` are (X, y), or a Dataset, ... Test samples are kept to
        measure the effect of later tasks on this one; nothing is learned from them.

        Without `task`, fit means what it means in scikit-learn: learn this task alone, from the start. A learner of
        several tasks refuses that.

        After an error the learner is as it was before.
        """
        with self._intact(), cpu_threads(None):
            started, before = time.perf_counter(), self._before(task)
            data, form = self._task_data(before, task, X, y, validation, test, classes)
            setup = make_setup(self.get_params(deep=False), form, validated=data.validation is not None)
            with progress_bar(data.name, verbose=self.verbose) as watch:
                self.knowledge_ = learn_task(data, setup, before, watch)
        if self.verbose:
            print(summary(self.knowledge_, since(started)), file=sys.stderr)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Sequence[Any] | None = None) -> Self:
        """Learn one more task, named by its number."""
        known = self.knowledge_.names if self.__sklearn_is_fitted__() else []
        free = next(number for number in map(str, count(len(known) + 1)) if number not in known)
        return self.fit(X, y, task=free, classes=classes)

    # ------------------------------------------------------------------ predictions

    def predict(self, X: Any, *, task: str | None = None) -> Labels:
        """Return the most likely class of every sample, of the classes of a task, or of all classes for None."""
        return self._known().predict(self._inputs(X), task)

    def predict_proba(self, X: Any, *, task: str | None = None) -> npt.NDArray[np.float64]:
        """Return the probabilities of the classes of a task (sorted), or of `classes_` for None, with the task
        inferred.
        """
        return self._known().probabilities_of(self._inputs(X), task).numpy()

    def predict_task(self, X: Any) -> Labels:
        """Return the name of the most likely task of every sample."""
        known = self._known()
        if known.net.shared:
            raise SettingError("Tasks that share a head cannot be told apart. With heads='task' each has its own.")
        return known.predict_task(self._inputs(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, task: str | None = None) -> float:
        """Return the accuracy of `predict` as a share, with the task named or inferred."""
        known = self._known()
        inputs, labels = self._tested(X, y, known.classes_of(task))
        predicted = known.predict(inputs, task)
        try:
            return float(accuracy_score(labels, predicted, sample_weight=sample_weight))
        except Exception as error:  # labels and predictions are checked arrays
            raise InputError(f"sample_weight is a number for each sample, or None: {error}") from error

    def readings(self, X: Any, y: Any = None, *, task: str) -> Readings:
        """Return the accuracies on samples of one task, with the task named and inferred."""
        known = self._known()
        inputs, labels = self._tested(X, y, known.classes_of(task))
        named, inferred = (float(np.mean(known.predict(inputs, which) == labels)) for which in (task, None))
        tasks = np.nan if known.net.shared else np.mean(known.predict_task(inputs) == task)
        return Readings(named, inferred, float(tasks))

    # ------------------------------------------------------------------ learned tasks

    @property
    def tasks_(self) -> list[str]:
        """Names of the learned tasks, in their order."""
        return self._known().names

    @property
    def classes_(self) -> Labels:
        """Classes of all tasks, sorted."""
        return self._known().classes

    def accuracy_matrix(self, reading: Literal["named", "inferred"] = "named") -> Array:
        """Return A[t, i], the test accuracy of task i after learning task t, in per cent as in `kenyon.metrics`.

        NaN before task i is learned, and for tasks without test samples.
        """
        known = self._known()
        one_of("reading", reading, ("named", "inferred"))
        matrix = (known.matrix if reading == "named" else known.inferred).copy()
        if np.isnan(matrix).all():
            warnings.warn(
                "No task came with test samples, so nothing was tested: fit(X, y, task=..., test=(X, y)) gives some.",
                stacklevel=2,
            )
        return matrix

    def forgetting(self, reading: Literal["named", "inferred"] = "named") -> dict[str, float]:
        """Return the forgetting of every task but the last: A[i, i] - A[T, i], in points of accuracy.

        Its mean is the negative backward transfer.
        """
        matrix = self.accuracy_matrix(reading)
        return {name: float(matrix[i, i] - matrix[-1, i]) for i, name in enumerate(self.tasks_[:-1])}

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, *, tests: bool = True) -> None:
        """Save everything but the code of the backbone to one file. `tests=False` leaves the test samples out:
        accuracies of these tasks are then NaN after tasks learned later.
        """
        known, parameters = self._known(), self.get_params(deep=False)
        checked = parameters | {"device": known.net.device}  # "auto" may choose another device here
        check_rebuilds(make_setup(checked, known.form, validated=False), known)
        attributes: dict[str, Any] = {}
        if hasattr(self, "n_features_in_"):
            attributes["n_features_in_"] = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            attributes["feature_names_in_"] = self.feature_names_in_.tolist()
        save_learner(as_path("path", path), known, parameters, attributes, tests=tests)

    @classmethod
    def load(cls, path: str | Path, backbone: Backbone = None, *, device: str = "auto") -> Self:
        """Load a learner, with the backbone that it was created with (None for the default)."""
        file = as_path("path", path)
        with as_damage(file):
            saved = read_learner(file)
            unknown = sorted(set(saved.parameters) - set(cls._get_param_names()))
            if unknown:
                raise ResultsError(f"{path} has a parameter {unknown[0]} that this version of Kenyon does not know.")
            learner = cls(backbone, **(saved.parameters | {"device": device}))
            setup = make_setup(learner.get_params(deep=False), saved.form, validated=False)
            learner.knowledge_ = saved.knowledge(setup.net(saved.class_counts))
            setup.check_fixed(learner.knowledge_.fixed)
            for name, value in saved.attributes.items():
                setattr(learner, name, np.array(value, dtype=object) if name == "feature_names_in_" else value)
        return learner

    def export(self, path: str | Path, *, task: str | None = None, examples: Any = None) -> Export:
        """Export `predict_proba`, with the task named or inferred, as a program without Kenyon: .pt2 for
        torch.export, .onnx for ONNX (`kenyon[onnx]`). Before the file is written, its probabilities are compared to
        those of the learner on `examples`, or else on kept samples, or else on random inputs.
        """
        known = self._known()
        backbone = build_backbone(self.backbone, prod(known.form.shape))
        place = None if task is None else known.index_of(task)
        inputs = known.examples() if examples is None else self._inputs(examples)
        return export_learner(as_path("path", path), known, backbone, place, inputs)

    # ------------------------------------------------------------------ arguments of fit and predict

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "knowledge_")

    def _known(self) -> Knowledge:
        if not self.__sklearn_is_fitted__():
            raise NothingLearnedError(
                f"This {type(self).__name__} instance is not fitted yet. Call fit with a task's samples first."
            )
        return self.knowledge_

    def _before(self, task: str | None) -> Knowledge | None:
        """Check the name of the next task; return the knowledge that it resumes from, None for the first."""
        if task is not None and not (isinstance(task, str) and task):
            raise InputTypeError(f"task is a name, such as task='cats', not {shown(task)}.")
        if task == UNNAMED:
            raise InputError(f"'{UNNAMED}' stands for a task without a name. Choose another.")
        if not self.__sklearn_is_fitted__():
            return None
        known = self.knowledge_
        if task is None:
            if known.names == [UNNAMED]:
                return None
            raise InputError(
                f"This learner knows {', '.join(known.names)}, and fit without a task would start over. Name the new "
                "task (task=...), or begin with sklearn.base.clone(learner)."
            )
        if task in known.names:
            raise InputError(
                f"Task '{task}' was learned already, and its data are gone. Give the new samples a name of their own "
                "(task=...); they get a head of their own."
            )
        return known

    def _task_data(
        self, before: Knowledge | None, task: str | None, X: Any, y: Any, validation: Any, test: Any, classes: Any
    ) -> tuple[TaskData, Form]:
        """Read and check the arguments of `fit`."""
        inputs, labels = self._samples(X, y, before)
        if before and before.net.shared:
            present = shared_classes(before.classes, classes)
        else:
            present = task_classes(labels, classes, known=before.classes if before else None)
        form = before.form if before else Form.of(inputs, standardise=flag("standardise", self.standardise))
        indices = class_indices(labels, present, "Training")
        train = Split(form.check(inputs), torch.arange(len(inputs)), indices)
        held_out = self._split(validation, present, form, "Validation")
        tests = self._split(test, present, form, "Test")
        if held_out is None:
            part, seed = share("validation", self.validation), whole("seed", self.seed, 0)
            trained, validated = split_validation(indices, part, seed, len(before.names) if before else 0)
            held_out = Split(inputs, validated, indices[validated]) if len(validated) else None
            train = Split(inputs, trained, indices[trained])
        return TaskData(UNNAMED if task is None else task, present, train, held_out, tests), form

    def _samples(self, X: Any, y: Any, before: Knowledge | None) -> tuple[Tensor, Labels]:
        """Read samples with labels; the first ones, if nothing is known before."""
        tokens = before.form.kind == "tokens" if before else takes_tokens(build_backbone(self.backbone, 1))
        inputs, labels = read_samples(self, X, y, first=before is None, tokens=tokens, side=self.side)
        if labels is None:
            raise InputError("This requires y to be passed, but the target y is None: give the samples' labels.")
        return inputs, labels

    def _split(self, data: Any, classes: Labels, form: Form, what: str) -> Split | None:
        """Read validation or test samples."""
        if data is None:
            return None
        inputs, labels = read_samples(self, data, first=False, tokens=form.kind == "tokens", side=self.side)
        if labels is None:
            raise InputError(f"{what} samples need labels: give them as (X, y).")
        return Split(form.check(inputs), torch.arange(len(inputs)), class_indices(labels, classes, what))

    def _tested(self, X: Any, y: Any, classes: Labels) -> tuple[Tensor, Labels]:
        """Read samples to predict, with labels among the classes."""
        known = self._known()
        inputs, labels = self._samples(X, y, known)
        class_indices(labels, classes, "Test")
        return known.form.check(inputs), labels

    def _inputs(self, X: Any) -> Tensor:
        """Read samples to predict, without labels."""
        form = self._known().form
        if isinstance(getattr(X, "sampler", None), RandomSampler):
            raise InputError(
                "This loader shuffles, and predictions could not be assigned to samples. Set shuffle=False."
            )
        return form.check(read_samples(self, X, first=False, tokens=form.kind == "tokens", side=self.side)[0])

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Restore all attributes after an error."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise
