"""The estimator: a learner to which tasks come one by one, after the conventions of scikit-learn."""

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
from torch.utils.data import DataLoader, RandomSampler

from kenyon.data.tasks import Heads, Split
from kenyon.errors import ResultsError, shown
from kenyon.estimator.errors import InputError, InputTypeError, NothingLearnedError, SettingError
from kenyon.estimator.export import Export, export_learner
from kenyon.estimator.inputs import Form, Labels, arrived, classes_of, counted, same_classes
from kenyon.estimator.knowledge import Knowledge
from kenyon.estimator.learn_task import (
    Backbone,
    Lesson,
    built,
    check_known,
    held_out,
    learn,
    make_plan,
    summary,
    telling,
)
from kenyon.estimator.persistence import as_damage, read_learner, save_learner
from kenyon.estimator.settings import flag, one_of, takes_tokens, whole
from kenyon.metrics import Array
from kenyon.models import Diversity, Start
from kenyon.utils.clock import since
from kenyon.utils.files import as_path
from kenyon.utils.threads import cpu_threads

ONLY = "unnamed"  # what a task is called that got no name


@dataclass(frozen=True)
class Readings:
    """How well one task is done, as shares of its samples."""

    named: float  # right where the task is named (task-incremental)
    inferred: float  # right where it is inferred (class-incremental)
    task: float  # samples whose task is found; NaN where tasks share a head


class ContinualLearner(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns task after task and keeps the old ones, without keeping their data.

    backbone: a module that maps a batch to feature vectors, or a function that builds one; every task gets a head of
        its own behind it. Each of the `learners` has a backbone of its own, so take a narrower one for five than for
        one. None: two dense layers of 64 units.
    method: how it is kept from forgetting, by name (`kenyon list methods`).
    learners: None: five for methods of several learners, else one.
    lambda_sp, lambda_af, gamma: strengths of stability protection, active forgetting and the learners' divergence;
        None: see `methods.defaults`. options: whatever else the method takes, by name.
    heads: every "task" has one of its own; or all tasks have the same classes and a head that is "shared" (a stream
        cut by time or by domain), and nobody has to name or find the task.
    epochs, batch, rate: of every task; Adam. validation: the share of a task's samples that is held out to choose
        its best weights and to lower the rate; with 0 the rate stays and the last weights are kept.
    standardise: centre and scale inputs as the first task's are.
    diversity, gate: of the learners, as in the paper. start: first weights are "drawn" for every learner, or those
        "given" in the backbone, if it is pretrained.
    side: to which images are scaled that come from folders, in pixels.
    precision: auto is bfloat16 on a GPU and float32 on a CPU.
    seed: everything random follows from it.
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
        """Learn one task more.

        X: an array, tensor or table with labels y; or a Dataset, a DataLoader or a folder of images in folders of
        classes, which bring their own. `validation` and `test` are the same, as one thing: (X, y), or a Dataset, ...
        Test samples are kept, to see what later tasks do to this one; nothing is learned from them.

        Without `task` it means what scikit-learn means by it: a learner of this task alone, begun anew. A learner of
        several tasks refuses that.

        Whatever goes wrong, what was learned before stays as it was.
        """
        with self._intact(), cpu_threads(None):
            begun, before = time.perf_counter(), self._before(task)
            lesson, form = self._lesson(before, task, X, y, validation, test, classes)
            plan = make_plan(self.get_params(deep=False), form, validated=lesson.validation is not None)
            with telling(lesson.name, verbose=self.verbose) as watch:
                self.knowledge_ = learn(lesson, plan, before, watch)
        if self.verbose:
            print(summary(self.knowledge_, since(begun)), file=sys.stderr)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Sequence[Any] | None = None) -> Self:
        """Learn one task more, named by its number: what arrives together is a task."""
        known = self.knowledge_.names if self.__sklearn_is_fitted__() else []
        free = next(number for number in map(str, count(len(known) + 1)) if number not in known)
        return self.fit(X, y, task=free, classes=classes)

    # ------------------------------------------------------------------ answering

    def predict(self, X: Any, *, task: str | None = None) -> Labels:
        """The likeliest class of every sample: among those of the task, or, without one, among all."""
        return self._known().likeliest(self._inputs(X), task)

    def predict_proba(self, X: Any, *, task: str | None = None) -> npt.NDArray[np.float64]:
        """The probabilities of the task's classes (sorted), or, without one, of `classes_`: see `inferring`."""
        return self._known().probabilities_of(self._inputs(X), task).numpy()

    def predict_task(self, X: Any) -> Labels:
        """The name of the task that every sample most likely belongs to."""
        known = self._known()
        if known.net.shared:
            raise SettingError("Tasks that share a head cannot be told apart. With heads='task' each has its own.")
        return known.likeliest_task(self._inputs(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, task: str | None = None) -> float:
        """The share of samples that `predict` has right, with the task named or without it."""
        known = self._known()
        inputs, labels = self._tested(X, y, known.classes_of(task))
        found = known.likeliest(inputs, task)
        try:
            return float(accuracy_score(labels, found, sample_weight=sample_weight))
        except Exception as error:  # labels and answers are arrays of Kenyon's own
            raise InputError(f"sample_weight is a number for each sample, or None: {error}") from error

    def readings(self, X: Any, y: Any = None, *, task: str) -> Readings:
        """Both readings of samples of one task: with the task named, and with the task inferred."""
        known = self._known()
        inputs, labels = self._tested(X, y, known.classes_of(task))
        named, inferred = (float(np.mean(known.likeliest(inputs, which) == labels)) for which in (task, None))
        found = np.nan if known.net.shared else np.mean(known.likeliest_task(inputs) == task)
        return Readings(named, inferred, float(found))

    # ------------------------------------------------------------------ looking back

    @property
    def tasks_(self) -> list[str]:
        """The names of the tasks learned, in their order."""
        return self._known().names

    @property
    def classes_(self) -> Labels:
        """The classes of all tasks, sorted."""
        return self._known().classes

    def accuracy_matrix(self, reading: Literal["named", "inferred"] = "named") -> Array:
        """A[t, i], the test accuracy of task i after task t was learned, in per cent as in `kenyon.metrics`.

        NaN for tasks not met yet, and for those that came without test samples.
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
        """What has become of every task but the last since it was learned: A[i, i] - A[T, i], in points of accuracy.

        Their mean is the backward transfer with the opposite sign.
        """
        matrix = self.accuracy_matrix(reading)
        return {name: float(matrix[i, i] - matrix[-1, i]) for i, name in enumerate(self.tasks_[:-1])}

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, *, tests: bool = True) -> None:
        """Everything but the backbone's code, as one file (see `saving`). `tests=False` leaves the test samples out:
        of tasks learned later, rows of the accuracy matrix then have no numbers for the tasks before.
        """
        known, parameters = self._known(), self.get_params(deep=False)
        checked = parameters | {"device": known.net.device}  # another machine may have others
        check_known(make_plan(checked, known.form, validated=False), known)
        attributes: dict[str, Any] = {}
        if hasattr(self, "n_features_in_"):
            attributes["n_features_in_"] = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            attributes["feature_names_in_"] = self.feature_names_in_.tolist()
        save_learner(as_path("path", path), known, parameters, attributes, tests=tests)

    @classmethod
    def load(cls, path: str | Path, backbone: Backbone = None, *, device: str = "auto") -> Self:
        """The learner that was saved, with the backbone it was made with (None if it had none of its own)."""
        file = as_path("path", path)
        with as_damage(file):
            saved = read_learner(file)
            unknown = sorted(set(saved.parameters) - set(cls._get_param_names()))
            if unknown:
                raise ResultsError(f"{path} has a parameter {unknown[0]} that this version of Kenyon does not know.")
            learner = cls(backbone, **(saved.parameters | {"device": device}))
            plan = make_plan(learner.get_params(deep=False), saved.form, validated=False)
            learner.knowledge_ = saved.knowledge(plan.net(saved.class_counts))
            plan.check_against(learner.knowledge_.fixed)
            for name, value in saved.attributes.items():
                setattr(learner, name, np.array(value, dtype=object) if isinstance(value, list) else value)
        return learner

    def export(self, path: str | Path, *, task: str | None = None, examples: Any = None) -> Export:
        """`predict_proba`, with the task named or inferred, as a program without Kenyon: .pt2 for torch.export, .onnx
        for ONNX (`kenyon[onnx]`). Its answers to `examples` (else to kept samples, else to made-up ones) are held
        against the learner's before the file is written.
        """
        known = self._known()
        backbone = built(self.backbone, prod(known.form.shape))
        place = None if task is None else known.place(task)
        inputs = known.examples() if examples is None else self._inputs(examples)
        return export_learner(as_path("path", path), known, backbone, place, inputs)

    # ------------------------------------------------------------------ inside

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "knowledge_")

    def _known(self) -> Knowledge:
        if not self.__sklearn_is_fitted__():
            raise NothingLearnedError(
                f"This {type(self).__name__} instance is not fitted yet. Call fit with a task's samples first."
            )
        return self.knowledge_

    def _before(self, task: str | None) -> Knowledge | None:
        """What the next task goes on from; None where it is the first."""
        if task is not None and (not isinstance(task, str) or not task):
            raise InputTypeError(f"task is a name, such as task='cats', not {shown(task)}.")
        if task == ONLY:
            raise InputError(f"'{ONLY}' stands for a task without a name. Choose another.")
        if not self.__sklearn_is_fitted__():
            return None
        known = self.knowledge_
        if task is None:
            if known.names == [ONLY]:
                return None
            raise InputError(
                f"This learner knows {', '.join(known.names)}, and fit without a task would begin anew. Name the new "
                "task (task=...), or begin with sklearn.base.clone(learner)."
            )
        if task in known.names:
            raise InputError(
                f"Task '{task}' was learned already, and its data are gone. Give the new samples a name of their own "
                "(task=...); they get a head of their own."
            )
        return known

    def _lesson(
        self, before: Knowledge | None, task: str | None, X: Any, y: Any, validation: Any, test: Any, classes: Any
    ) -> tuple[Lesson, Form]:
        """The arguments of `fit`, read and checked."""
        inputs, found = self._samples(X, y, before)
        if before and before.net.shared:
            labels = same_classes(before.classes, classes)
        else:
            labels = classes_of(found, classes, known=before.classes if before else None)
        form = before.form if before else Form.of(inputs, standardise=flag("standardise", self.standardise))
        counts = counted(found, labels, "Training")
        train = Split(form.check(inputs), torch.arange(len(inputs)), counts)
        held = self._part(validation, labels, form, "Validation")
        tests = self._part(test, labels, form, "Test")
        if held is None:
            stays, apart = held_out(
                counts, self.validation, whole("seed", self.seed, 0), len(before.names) if before else 0
            )
            held = Split(inputs, apart, counts[apart]) if len(apart) else None
            train = Split(inputs, stays, counts[stays])
        return Lesson(ONLY if task is None else task, labels, train, held, tests), form

    def _samples(self, X: Any, y: Any, before: Knowledge | None) -> tuple[Tensor, Labels]:
        """With labels; those of the first task, where nothing is known before."""
        tokens = before.form.kind == "tokens" if before else takes_tokens(built(self.backbone, 1))
        inputs, labels = arrived(self, X, y, first=before is None, tokens=tokens, side=self.side)
        if labels is None:
            raise InputError("This requires y to be passed, but the target y is None: give the samples' labels.")
        return inputs, labels

    def _tested(self, X: Any, y: Any, classes: Labels) -> tuple[Tensor, Labels]:
        """In the form of those learned, with labels among the classes."""
        known = self._known()
        inputs, labels = self._samples(X, y, known)
        counted(labels, classes, "Test")
        return known.form.check(inputs), labels

    def _inputs(self, X: Any) -> Tensor:
        """Alone, in the form of those learned."""
        form = self._known().form
        if isinstance(X, DataLoader) and isinstance(X.sampler, RandomSampler):
            raise InputError("This loader shuffles, and nobody could tell which answer is whose. Set shuffle=False.")
        return form.check(arrived(self, X, first=False, tokens=form.kind == "tokens", side=self.side)[0])

    def _part(self, data: Any, classes: Labels, form: Form, what: str) -> Split | None:
        if data is None:
            return None
        inputs, labels = arrived(self, data, first=False, tokens=form.kind == "tokens", side=self.side)
        if labels is None:
            raise InputError(f"{what} samples need labels: give them as (X, y).")
        return Split(form.check(inputs), torch.arange(len(inputs)), counted(labels, classes, what))

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Whatever goes wrong inside, all is as it was."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise
