"""Analyses of accuracies, diversity, expertise and parameter changes.

- `per_task`: the accuracy of every task, in the end and just learned (Supplementary Fig. 4).
- `diversity`: how much the learners' predictions differ (Fig. 3e, f). Cos = 1 - mean_{i != j} p_i.p_j / (|p_i| |p_j|)
  and Euc = mean_{i != j} |p_i - p_j|, of the probabilities p_i that the learners give alone, means over a task's test
  samples.
- `learners_expertise`: a learner's accuracy minus the learners' mean (Fig. 3d).
- `change`: how far the weights moved, against the accuracy that was reached (Fig. 4g-i). The figure relates "total
  parameter changes and average accuracy of all tasks", a point per run. The text does not say how changes are
  totalled. Here, over the weights that all tasks share (only one task moves a head): `total` is the sum over tasks of
  |theta_t - theta_{t-1}|, with theta_0 the first weights; it needs the weights after every task
  (`kenyon run --keep-every-task`). `displacement` is |theta_T - theta_0|; it needs the final weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.experiments.results import Result, Run
from kenyon.methods import find_method
from kenyon.metrics import Array, average_accuracy, expertise
from kenyon.paper.analyses.analysis import (
    Analysis,
    Case,
    Compared,
    NoSettings,
    Runs,
    Values,
    bar_of,
    count_text,
    mean_line,
    places,
    stacked,
)
from kenyon.paper.analyses.model import Model
from kenyon.utils.views import Series, View, bars, heatmap, lines, scatter


@dataclass(frozen=True)
class Change:
    """Distances that the weights shared by all tasks have moved."""

    displacement: float
    per_task: Array | None  # (T,) |theta_t - theta_{t-1}|; None without the weights after every task
    total: float | None  # their sum
    weights: int  # number of shared weights


def change(model: Model, after: Sequence[Tensor] | None = None) -> Change:
    """Return how far the weights of a model moved (Fig. 4g-i).

    `after`: the weights (M, P) after every task, including the last, of a model that has no results folder.
    """
    first = model.initial()
    displacement = distance(model, first, model.rows)
    shared = model.net.layout.protected * len(model.rows)
    if after is None and not _kept(model):
        return Change(displacement, None, None, shared)
    steps, before = [], first
    for task in model.tasks:
        now = after[task].to(first) if after is not None else model.after(task + 1)
        steps.append(distance(model, before, now))
        before = now
    per_task = torch.tensor(steps, dtype=torch.float64)
    return Change(displacement, per_task.numpy(), float(per_task.sum()), shared)


def distance(model: Model, one: Tensor, other: Tensor) -> float:
    """Euclidean distance over the weights that all tasks share."""
    shared = slice(0, model.net.layout.protected)
    return float((one[:, shared] - other[:, shared]).double().norm())


def _kept(model: Model) -> bool:
    """True if the weights after every task were saved with the final ones."""
    return model.saved is not None and model.saved.has_every_task(model.seed)


@dataclass(frozen=True)
class PerTask:
    """Accuracies by position in the order of the run; the task at a position differs between seeds."""

    final: Array  # (T,) per cent
    learned: Array | None  # (T,) just learned; None if tasks were not learned one after another


def per_task(run: Run) -> PerTask:
    """Return the last row and the diagonal of a run's accuracy matrix."""
    matrix = run.matrix
    return PerTask(matrix[-1], np.diagonal(matrix).copy() if len(matrix) == matrix.shape[1] else None)


def final_accuracy(model: Model) -> Array:
    """Test a model on all tasks; (T,) per cent."""
    return model.evaluation.accuracy[0].double().numpy()


@dataclass(frozen=True)
class Diversity:
    """Distances between the learners' predictions, by task."""

    cosine: Array  # (T,)
    euclidean: Array  # (T,)


@dataclass(frozen=True)
class Expertise:
    """Accuracies of single learners relative to their mean, by task."""

    relative: Array  # (T, K) accuracy minus the mean of the learners, in per cent
    accuracy: Array  # (T, K) of each learner alone
    together: Array  # (T,) of all


def diversity(model: Model) -> Diversity:
    """Measure the diversity of a model's learners on its test data (Fig. 3e, f)."""
    _several(model.learners)
    found = model.evaluation
    return Diversity(found.cosine[0].double().numpy(), found.euclidean[0].double().numpy())


def learners_expertise(model: Model) -> Expertise:
    """Measure the expertise of a model's learners on its test data (Fig. 3d)."""
    _several(model.learners)
    found = model.evaluation
    own = found.own_accuracy[0].double().numpy()
    return Expertise(expertise(own), own, found.accuracy[0].double().numpy())


def saved_diversity(run: Run) -> Diversity:
    """Return the diversity that was measured at the end of the run."""
    return Diversity(np.array(run.cosine), np.array(run.euclidean))


def saved_expertise(run: Run) -> Expertise:
    """Return the expertise that was measured at the end of the run."""
    own = np.array(run.own_accuracy)
    return Expertise(expertise(own), own, run.matrix[-1])


def _several(learners: int) -> None:
    if learners < 2:
        raise ConfigError("Diversity and expertise need several learners, and this model has one. Analyse another.")


def _measure_diversity(case: Case, settings: NoSettings) -> Values:
    found = saved_diversity(case.run)
    means = {"mean_cosine": float(found.cosine.mean()), "mean_euclidean": float(found.euclidean.mean())}
    return asdict(found) | means


def _measure_expertise(case: Case, settings: NoSettings) -> Values:
    found = saved_expertise(case.run)
    return asdict(found) | {"tasks": case.run.tasks, "spread": float(found.relative.std(axis=1).mean())}


def _measure_change(case: Case, settings: NoSettings) -> Values:
    return asdict(change(case.model)) | {"accuracy": average_accuracy(case.run.matrix)}


def _measure_pertask(case: Case, settings: NoSettings) -> Values:
    return asdict(per_task(case.run)) | {"tasks": case.run.tasks}


def _several_learners(result: Result) -> str | None:
    return None if result.config["architecture"]["learners"] > 1 else "it has one learner"


def _one_way(result: Result) -> str | None:
    restart = find_method(result.method).schedule == "restart"
    return "every task starts from new weights, so that changes do not add up" if restart else None


def _draw_pertask(label: str, runs: Runs) -> View:
    final = stacked(runs, "final")
    series = [mean_line("in the end", places(final.shape[1]), final)]
    if all(run["learned"] is not None for run in runs):
        series.append(mean_line("just learned", places(final.shape[1]), stacked(runs, "learned")))
    title = f"{label}: accuracy of every task, {count_text(runs)}"
    return lines(title, "task, in the order of learning", "accuracy (%)", series, "Bands: standard error over runs.")


def _compare_pertask(benchmark: str, results: Compared) -> View:
    series = []
    for label, runs in results.items():
        final = stacked(runs, "final")
        series.append(mean_line(label, places(final.shape[1]), final))
    title = f"{benchmark}: accuracy of every task in the end"
    return lines(title, "task, in the order of learning", "accuracy (%)", series, "Bands: standard error over runs.")


def _draw_diversity(label: str, runs: Runs) -> View:
    cosine, euclidean = stacked(runs, "cosine"), stacked(runs, "euclidean")
    x = places(cosine.shape[1])
    series = [mean_line("Euc", x, euclidean), mean_line("Cos", x, cosine)]
    title = f"{label}: diversity of the learners' predictions, {count_text(runs)}"
    note = "Means over pairs of learners and test samples, after the last task."
    return lines(title, "task, in the order of learning", "distance between predictions", series, note)


def _compare_diversity(benchmark: str, results: Compared) -> View:
    found = [
        bar_of(f"{label}, {short}" if len(results) > 1 else short, [run[name] for run in runs])
        for short, name in (("Cos", "mean_cosine"), ("Euc", "mean_euclidean"))
        for label, runs in results.items()
    ]
    title = f"{benchmark}: diversity of the learners' predictions"
    return bars(title, "distance between predictions", found, "Means over tasks; points are runs.")


def _draw_expertise(label: str, runs: Runs) -> View:
    first = runs[0]
    values = np.array(first["relative"]).T  # learners down
    return heatmap(
        f"{label}: expertise of the learners, seed {first['seed']}",
        "task, in the order of learning",
        "learner",
        [str(t) for t in places(values.shape[1])],
        [str(k) for k in places(len(values))],
        values,
        "Accuracy minus the learners' mean (%). One run: which learner is which means nothing across runs.",
        scale="diverging",
        digits=1,
    )


def _draw_change(label: str, runs: Runs) -> View:
    return _changes(f"{label}: change of the weights and accuracy", {label: runs})


def _compare_change(benchmark: str, results: Compared) -> View:
    return _changes(f"{benchmark}: change of the weights and accuracy", results)


def _changes(title: str, results: Compared) -> View:
    """Accuracy against the total change if it is known for all runs, otherwise against the displacement."""
    known = all(run["total"] is not None for runs in results.values() for run in runs)
    name = "total" if known else "displacement"
    axis = "total change, sum over tasks of |θ(t) - θ(t-1)|" if known else "displacement |θ(T) - θ(0)|"
    series = [
        Series(
            label,
            [run[name] for run in runs],
            [run["accuracy"] for run in runs],
            labels=[f"seed {run['seed']}" for run in runs],
        )
        for label, runs in results.items()
    ]
    note = "Weights that all tasks share. Each point is a run." + (
        "" if known else " The total needs `kenyon run --keep-every-task`."
    )
    return scatter(title, axis, "average accuracy of all tasks (%)", series, note)


PERTASK = Analysis(
    "pertask",
    "accuracy of every task, in the end and just learned",
    _measure_pertask,
    _draw_pertask,
    _compare_pertask,
    weights=False,
)
DIVERSITY = Analysis(
    "diversity",
    "how much the learners' predictions differ",
    _measure_diversity,
    _draw_diversity,
    _compare_diversity,
    _several_learners,
    scalars=("mean_cosine", "mean_euclidean"),
    weights=False,
)
EXPERTISE = Analysis(
    "expertise",
    "what each learner is good at",
    _measure_expertise,
    _draw_expertise,
    None,
    _several_learners,
    scalars=("spread",),
    weights=False,
)
CHANGE = Analysis(
    "change",
    "how far the weights moved, beside the accuracy",
    _measure_change,
    _draw_change,
    _compare_change,
    _one_way,
    scalars=("displacement", "total", "accuracy"),
)
