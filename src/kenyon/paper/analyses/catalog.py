"""The analyses by name: what each measures of a run, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from kenyon.benchmarks.registry import find_benchmark, make
from kenyon.data import Source
from kenyon.errors import ConfigError, unknown
from kenyon.experiments.results import Result, Run
from kenyon.methods import find_method
from kenyon.metrics import average_accuracy
from kenyon.paper.analyses import drawing as drawn
from kenyon.paper.analyses.discrepancy import DiscrepancySettings, discrepancy
from kenyon.paper.analyses.flatness import FlatnessSettings, flatness
from kenyon.paper.analyses.gradcam import GradCamSettings, as_text, find_layer, grad_cam, picture
from kenyon.paper.analyses.model import Model
from kenyon.paper.analyses.outcomes import change, per_task, saved_diversity, saved_expertise
from kenyon.utils.views import View

Values = dict[str, Any]  # what was measured of a run, ready for JSON


@dataclass(frozen=True)
class NoSettings:
    pass


@dataclass(frozen=True, eq=False)
class Case:
    """One run of a result. Its weights and data are read when an analysis asks for them."""

    folder: Path
    result: Result
    run: Run
    source: Callable[[], Source]
    device: torch.device

    @cached_property
    def model(self) -> Model:
        return Model.of_result(self.folder, self.run.seed, self.source(), self.device)


@dataclass(frozen=True)
class Analysis:
    """One of the analyses by name: how it measures a run, and how it is drawn."""

    name: str
    about: str
    measure: Callable[[Case, Any], Values]
    view: Callable[[str, Sequence[Values]], View]  # (label, runs in the order of their seeds)
    compare: Callable[[str, Mapping[str, Sequence[Values]]], View] | None  # (benchmark, by label)
    why_not: Callable[[Result], str | None] = lambda result: None  # what a result lacks for it
    settings: Any = field(default_factory=NoSettings)
    scalars: tuple[str, ...] = ()  # values that are one number a run
    weights: bool = True  # whether it needs them
    runs: int | None = None  # only the first so many


def _measure_diversity(case: Case, settings: NoSettings) -> Values:
    found = saved_diversity(case.run)
    means = {"mean_cosine": float(found.cosine.mean()), "mean_euclidean": float(found.euclidean.mean())}
    return asdict(found) | means


def _measure_expertise(case: Case, settings: NoSettings) -> Values:
    found = saved_expertise(case.run)
    return asdict(found) | {"tasks": case.run.tasks, "spread": float(found.relative.std(axis=1).mean())}


def _measure_discrepancy(case: Case, settings: DiscrepancySettings) -> Values:
    return asdict(discrepancy(case.model, settings)) | {"tasks": case.run.tasks}


def _measure_flatness(case: Case, settings: FlatnessSettings) -> Values:
    """Along lines of filters' own lengths as well: which of two solutions is flatter can depend on it."""
    by_filter = flatness(case.model, replace(settings, scale="filter", reach=0.0))
    found = asdict(flatness(case.model, settings))
    return found | {"scale": settings.scale, "filter_sharpness": by_filter.sharpness}


def _measure_change(case: Case, settings: NoSettings) -> Values:
    return asdict(change(case.model)) | {"accuracy": average_accuracy(case.run.matrix)}


def _measure_pertask(case: Case, settings: NoSettings) -> Values:
    return asdict(per_task(case.run)) | {"tasks": case.run.tasks}


def _measure_gradcam(case: Case, settings: GradCamSettings) -> Values:
    found = grad_cam(case.model, settings)
    return {
        "layer": found.layer,
        "task": case.run.tasks[found.task],
        "labels": found.labels,
        "predictions": found.predictions,
        "maps": found.maps,
        "own_maps": found.own_maps if len(found.own_maps) > 1 else [],
        "images": [as_text(picture(image)) for image in found.images],
    }


def _several_learners(result: Result) -> str | None:
    return None if result.config["architecture"]["learners"] > 1 else "it has one learner"


def _common_features(result: Result) -> str | None:
    if result.config["tasks"] < 2:
        return "it has one task"
    return "it has a network for every task" if find_method(result.method).schedule == "discrete" else None


def _convolutions(result: Result) -> str | None:
    bench = find_benchmark(result.benchmark)
    try:
        find_layer(make(bench.backbone, bench.width, 1, "drawn")["backbone"])
    except ConfigError:
        return "its network has no convolution"
    return None


def _one_way(result: Result) -> str | None:
    restart = find_method(result.method).schedule == "restart"
    return "every task begins anew, so that nothing goes on changing" if restart else None


ANALYSES: dict[str, Analysis] = {
    a.name: a
    for a in (
        Analysis(
            "pertask",
            "accuracy of every task, in the end and just learned",
            _measure_pertask,
            drawn.pertask,
            drawn.pertask_compared,
            weights=False,
        ),
        Analysis(
            "diversity",
            "how much the learners' predictions differ",
            _measure_diversity,
            drawn.diversity,
            drawn.diversity_compared,
            _several_learners,
            scalars=("mean_cosine", "mean_euclidean"),
            weights=False,
        ),
        Analysis(
            "expertise",
            "what each learner is good at",
            _measure_expertise,
            drawn.expertise,
            None,
            _several_learners,
            scalars=("spread",),
            weights=False,
        ),
        Analysis(
            "discrepancy",
            "how well one dense layer tells tasks apart by their features",
            _measure_discrepancy,
            drawn.discrepancy,
            drawn.discrepancy_compared,
            _common_features,
            DiscrepancySettings(),
            ("mean_error", "own_error"),
        ),
        Analysis(
            "flatness",
            "the loss along random directions",
            _measure_flatness,
            drawn.flatness,
            drawn.flatness_compared,
            settings=FlatnessSettings(),
            scalars=("loss", "sharpness", "worst", "filter_sharpness"),
        ),
        Analysis(
            "change",
            "how far the weights moved, beside the accuracy",
            _measure_change,
            drawn.change,
            drawn.change_compared,
            _one_way,
            scalars=("displacement", "total", "accuracy"),
        ),
        Analysis(
            "gradcam",
            "where in images of the latest task the network sees their class",
            _measure_gradcam,
            drawn.gradcam,
            drawn.gradcam_compared,
            _convolutions,
            GradCamSettings(),
            runs=1,
        ),
    )
}


def find_analysis(name: str) -> Analysis:
    """The analysis of that name; otherwise an error that names the nearest ones."""
    if name not in ANALYSES:
        raise unknown("analysis", name, [*ANALYSES, "all"])
    return ANALYSES[name]
