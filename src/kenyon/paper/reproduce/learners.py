"""Several learners and their modulations: Fig. 3, Supplementary Fig. 5 and 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from kenyon.metrics import Summary
from kenyon.paper.reproduce.figure import (
    CIFAR,
    MEASURES,
    PLASTICITY,
    Claim,
    Comparison,
    Figure,
    accuracies,
    claim,
    of_values,
    reproduction,
    result_bars,
    summary,
)
from kenyon.paper.reproduce.runs import Found, Had, Place, Scale, Variant, Wanted
from kenyon.paper.theory import fig3b_data
from kenyon.report.theory_figure import draw_fig3b
from kenyon.utils.views import Series, View, heatmap, lines, scatter

NO_FORGETTING, NO_DIVERGENCE = {"lambda_af": 0.0}, {"gamma": 0.0}
WORDS = {"low": "low", "medium": "medium", "high": "high"}


def modulated(diversity: str) -> tuple[Variant, ...]:
    """Learners alone, with either modulation, and with both."""
    innate = {} if diversity == "high" else {"diversity": diversity}
    return (
        Variant("mcl-ewc", innate, "MCL"),
        Variant("caf-ewc", {**innate, **NO_DIVERGENCE}, "MCL + AF-1"),
        Variant("caf-ewc", {**innate, **NO_FORGETTING}, "MCL + AF-S"),
        Variant("caf-ewc", innate, "CAF"),
    )


@reproduction("fig3b", "the target distribution of a learner by its forgetting rate: theory, no runs", "none")
def fig3b(found: Found, place: Place) -> Figure:
    data = fig3b_data()
    theta, likely, strengths = data["theta"], data["predictive"], data["lambdas"]
    best = likely["best"]
    targets = [Series(f"β = {one['beta']:g}", theta, one["density"]) for one in data["targets"]]
    views = [
        lines("Target distribution p(θ | A, B, β)", "θ", "density", targets),
        lines("The new task's probability", "β", "log p(B | A, β)", [
            Series("log p(B | A, β)", likely["beta"], likely["log_probability"]),
        ], f"Largest at β = {best['beta']:.3g}."),
        lines("The penalties' strengths", "β", "strength", [
            Series(f"{how.upper()[:2]}-{how[-1]}: {name}", strengths["beta"], values, dashed=how == "af2")
            for how in ("af1", "af2")
            for name, values in strengths[how].items()
        ]),
    ]  # fmt: skip
    gain = Summary(best["gain"], 0.0, (best["gain"],))
    claims = [Claim("some forgetting makes a new task more probable than none", gain)]
    return Figure("Learners differ by their forgetting rate", views, claims=claims, draw=partial(draw_fig3b, data))


def _expertise(had: Had, title: str, most: float) -> View:
    """Of the first run: which learner is which means nothing across runs. Colours run from -most to most."""
    relative = had.result.expertise[0].T  # (K, T)
    tasks, learners = [str(t + 1) for t in range(relative.shape[1])], [str(k + 1) for k in range(len(relative))]
    view = heatmap(title, "task", "learner", tasks, learners, relative, scale="diverging", digits=1)
    return view | {"range": [-most, most]}


def _spread(had: Had) -> dict[int, float]:
    """How far apart the learners of a run are on a task, on average: the deviation of their accuracies."""
    return {run.seed: float(np.std(np.array(run.own_accuracy), axis=1).mean()) for run in had.result.complete_runs}


def _expertise_wanted(
    benchmarks: tuple[str, ...], diversities: tuple[str, ...]
) -> Callable[[Scale], Sequence[Wanted]]:
    variants = tuple(
        Variant(v.method, v.settings, f"{v.name}, {WORDS[d]} diversity") for d in diversities for v in modulated(d)
    )
    return lambda scale: [Wanted(b, variants) for b in scale.benchmarks(*benchmarks)]


def _expertise_figure(found: Found, title: str) -> Figure:
    every = [had.result.expertise[0] for hads in found.values() for had in hads.values()]
    most = max(1.0, *(float(np.abs(one).max()) for one in every))  # one scale for all: they are compared
    views = [_expertise(had, f"{b}: {name}", most) for b, hads in found.items() for name, had in hads.items()]
    comparisons = [
        Comparison(f"{b}, {name}: spread of the learners (%)", of_values(list(_spread(had).values())), None)
        for b, hads in found.items()
        for name, had in hads.items()
    ]
    return Figure(title, views, 2, comparisons)


@reproduction(
    "fig3d",
    "what each learner is good at, by modulation and innate diversity",
    "4 min",
    _expertise_wanted(("r-cifar-100",), ("low", "high")),
)
def fig3d(found: Found, place: Place) -> Figure:
    return _expertise_figure(found, "Learners' expertise across tasks")


@reproduction(
    "s5",
    "what each learner is good at, on the other benchmarks",
    "10 min",
    _expertise_wanted(("s-cifar-100", "r-cifar-10-100"), ("high",)),
)
def s5(found: Found, place: Place) -> Figure:
    return _expertise_figure(found, "Learners' expertise across tasks, further benchmarks")


def _modulated_wanted(diversity: str) -> Callable[[Scale], Sequence[Wanted]]:
    return lambda scale: [Wanted(scale.benchmark("r-cifar-100"), modulated(diversity), seeds=10)]


def _modulations(found: Found, diversity: str) -> Figure:
    """Accuracy against diversity of predictions, a mark a variant."""
    views: list[View] = []
    claims: list[Claim] = []
    for benchmark, hads in found.items():
        for measure, axis in (("cosine", "cosine distance"), ("euclidean", "Euclidean distance")):
            marks = []
            for name, had in hads.items():
                x, y = summary(had.result, measure), summary(had.result, "aac")
                marks.append(Series(name, [x.mean], [y.mean], x_error=[x.sem], y_error=[y.sem]))
            title = f"{benchmark}, {diversity} innate diversity"
            views.append(scatter(title, f"{axis} of predictions", "average accuracy (%)", marks))
        views.append(result_bars(f"{benchmark}, {diversity} innate diversity", hads, "aac"))
        plain = hads["MCL"].result
        for name in ("MCL + AF-1", "MCL + AF-S", "CAF"):
            claims += claim(f"{benchmark}, {diversity} innate diversity: {name} beats MCL", hads[name].result, plain)
        for name in ("MCL + AF-1", "MCL + AF-S"):
            said = f"{benchmark}, {diversity} innate diversity: both modulations beat {name}"
            claims += claim(said, hads["CAF"].result, hads[name].result)
    title = f"Modulations with {diversity} innate diversity"
    return Figure(title, views, 3, accuracies(found), claims)


@reproduction(
    "fig3e", "modulations of learners that are born alike: accuracy by diversity", "5 min", _modulated_wanted("low")
)
def fig3e(found: Found, place: Place) -> Figure:
    return _modulations(found, "low")


@reproduction(
    "fig3f",
    "modulations of learners that are born different: accuracy by diversity",
    "5 min",
    _modulated_wanted("high"),
)
def fig3f(found: Found, place: Place) -> Figure:
    return _modulations(found, "high")


def _innate(scale: Scale) -> list[Wanted]:
    variants = [Variant("ewc", called="SCL")]
    for method, called in (("mcl-ewc", "MCL"), ("caf-ewc", "CAF")):
        for diversity in ("low", "medium", "high"):
            innate = {} if diversity == "high" else {"diversity": diversity}
            variants.append(Variant(method, innate, f"{called}-{diversity[0].upper()}"))
    return [Wanted(b, tuple(variants), fwt=True) for b in scale.benchmarks(*CIFAR)]


@reproduction("s7", "one learner and five with low, medium and high innate diversity", "16 min", _innate)
def s7(found: Found, place: Place) -> Figure:
    views = [result_bars(b, hads, measure) for b, hads in found.items() for measure in MEASURES]
    claims: list[Claim] = []
    for benchmark, hads in found.items():
        for d in "LMH":
            claims += claim(f"{benchmark}: CAF-{d} beats MCL-{d}", hads[f"CAF-{d}"].result, hads[f"MCL-{d}"].result)
        for name in ("MCL-H", "CAF-H"):
            claims += claim(f"{benchmark}: {name} beats one learner", hads[name].result, hads["SCL"].result)
            said = f"{benchmark}: {name} learns a task better than one learner"
            claims += claim(said, hads[name].result, hads["SCL"].result, "learned")
            said = f"{benchmark}: {name} has more forward transfer than one learner"
            claims += claim(said, hads[name].result, hads["SCL"].result, "fwt")
            said = f"{benchmark}: {name} forgets less than one learner"
            claims += claim(said, hads[name].result, hads["SCL"].result, "bwt")
    title = "Innate diversity and knowledge transfer"
    return Figure(title, views, len(MEASURES), accuracies(found), claims, (PLASTICITY,))
