"""Fig. 2 and 3, Supplementary Fig. 1 to 3, 5 and 7: active forgetting and several learners, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from kenyon.experiments.results import value_text
from kenyon.metrics import Summary
from kenyon.paper.reproduce.figure import (
    CIFAR,
    MEASURES,
    PLASTICITY,
    Claim,
    Comparison,
    Figure,
    Place,
    Results,
    Scale,
    Variant,
    VariantResult,
    Wanted,
    accuracies,
    claim,
    of_values,
    reproduction,
    result_bars,
    summary,
)
from kenyon.paper.theory import fig3b_data
from kenyon.report.theory_figure import draw_fig3b
from kenyon.utils.views import Series, View, heatmap, lines, scatter

STRENGTHS = (0.2, 0.4, 1.0, 2.0)  # of stability protection, times the chosen one
DECAYS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of active forgetting, likewise
CELL = 3  # runs of a grid point


def _with_forgetting(base: str) -> Callable[[Scale], Sequence[Wanted]]:
    names = {base: base.upper(), f"{base}-af1": f"{base.upper()} + AF-1", f"{base}-af2": f"{base.upper()} + AF-2"}
    variants = tuple(Variant(method, called=called) for method, called in names.items())
    return lambda scale: [Wanted(b, variants, fwt=True) for b in scale.benchmarks(*CIFAR)]


def _forgetting_helps(results: Results, base: str) -> Figure:
    claims: list[Claim] = []
    for benchmark, variants in results.items():
        plain = variants[base].result
        for kind in ("AF-1", "AF-2"):
            forgetting = variants[f"{base} + {kind}"].result
            text = f"{benchmark}: {kind} on {base} raises"
            claims += claim(f"{text} the average accuracy", forgetting, plain)
            claims += claim(f"{text} the accuracy of a task just learned", forgetting, plain, "learned")
            claims += claim(f"{text} forward transfer", forgetting, plain, "fwt")
            claims += claim(f"{text} backward transfer (the paper: or keeps it)", forgetting, plain, "bwt")
    views = [result_bars(b, variants, measure) for b, variants in results.items() for measure in MEASURES]
    title = f"Active forgetting on {base}: overall, plasticity, stability"
    return Figure(title, views, len(MEASURES), accuracies(results), claims, (PLASTICITY, *_unequal(results)))


def _unequal(results: Results) -> list[str]:
    """Notes on benchmarks where the compared methods have different strengths of stability protection."""
    notes = []
    for benchmark, variants in results.items():
        strengths = {name: one.result.config["hyper"]["lambda_sp"] for name, one in variants.items()}
        if len(set(strengths.values())) > 1:
            each = ", ".join(f"{name} {value_text(strength)}" for name, strength in strengths.items())
            notes.append(f"λSP on {benchmark}: {each}. What differs between these may come of that.")
    return notes


@reproduction(
    "fig2c", "active forgetting on EWC: accuracy, forward and backward transfer", "8 min", _with_forgetting("ewc")
)
def fig2c(results: Results, place: Place) -> Figure:
    return _forgetting_helps(results, "EWC")


@reproduction(
    "s1", "active forgetting on MAS: accuracy, forward and backward transfer", "8 min", _with_forgetting("mas")
)
def s1(results: Results, place: Place) -> Figure:
    return _forgetting_helps(results, "MAS")


def _seen(scale: Scale) -> list[Wanted]:
    variants = (Variant("ewc", called="EWC"), Variant("ewc-af1", called="EWC + AF-1"))
    return [Wanted(scale.benchmark("s-cifar-100", convolutions=True), variants, seeds=1)]


@reproduction(
    "fig2d", "where EWC looks in images of the latest task, with and without active forgetting", "1 min", _seen
)
def fig2d(results: Results, place: Place) -> Figure:
    from kenyon.paper.reproduce.runs import compared

    return Figure("What predictions of the latest task rest on (Grad-CAM)", compared(results, place, "gradcam"), 1)


# ------------------------------------------------------------------ hyper-parameters


def _grid(scale: Scale, benchmark: str, method: str) -> dict[tuple[float, float], dict[str, Any]]:
    """Return settings by (strength, decay), as factors of the chosen ones."""
    from kenyon.benchmarks.registry import find_benchmark

    chosen = find_benchmark(benchmark).hyperparameters[method]
    sp, af = float(chosen["lambda_sp"]), float(chosen["lambda_af"])
    places = product(STRENGTHS, DECAYS)
    return {(s, a): {"lambda_sp": _rounded(sp * s), "lambda_af": _rounded(af * a)} for s, a in places}


def _rounded(strength: float) -> float:
    """Round to six digits: 1e-05 and not 9.999999999999999e-06, which would be a folder of its own."""
    return float(f"{strength:.6g}")


def _cell(s: float, a: float) -> str:
    return f"{value_text(s)} x {value_text(a)}"


def _grids(benchmarks: tuple[str, ...], methods: tuple[str, ...]) -> Callable[[Scale], Sequence[Wanted]]:
    def wanted(scale: Scale) -> Sequence[Wanted]:
        found = []
        for b in scale.benchmarks(*benchmarks):
            variants = [Variant("ewc")]
            for method in methods:
                cells = _grid(scale, b, method).items()
                variants += [Variant(method, settings, f"{method} {_cell(*place)}") for place, settings in cells]
            found.append(Wanted(b, tuple(variants), seeds=CELL))
        return found

    return wanted


def _alike(variants: dict[str, VariantResult]) -> dict[str, VariantResult]:
    """Restrict variants to the seeds that all of them have, since they are compared."""
    seeds = set.intersection(*({run.seed for run in one.result.runs} for one in variants.values()))
    return {name: replace(one, result=one.result.restricted(sorted(seeds))) for name, one in variants.items()}


def _best(variants: dict[str, VariantResult], names: list[str]) -> VariantResult:
    return max((variants[name] for name in names), key=lambda one: summary(one.result, "aac").mean)


@reproduction(
    "s2",
    "AF-1 with its own strength alone, and with both strengths chosen together",
    "12 min",
    _grids(CIFAR[:2], ("ewc-af1",)),
)
def s2(results: Results, place: Place) -> Figure:
    views, comparisons, claims = [], [], []
    for benchmark, every in results.items():
        variants, cells = _alike(every), _grid(place.scale, benchmark, "ewc-af1")
        alone = _best(variants, [f"ewc-af1 {_cell(s, a)}" for s, a in cells if s == 1.0])
        both = _best(variants, [f"ewc-af1 {_cell(s, a)}" for s, a in cells])
        shown = {"EWC": variants["ewc"], "AF-1, λAF chosen": alone, "AF-1, both chosen": both}
        views.append(result_bars(benchmark, shown, "aac"))
        comparisons += [
            Comparison(f"{benchmark}, {name}", summary(one.result, "aac"), None) for name, one in shown.items()
        ]
        claims += claim(f"{benchmark}: choosing both strengths beats choosing λAF alone", both.result, alone.result)
        claims += claim(f"{benchmark}: AF-1 with λAF chosen alone beats EWC", alone.result, variants["ewc"].result)
    note = "The best cell is chosen on the runs that are shown, as in the paper: its accuracy is a little optimistic."
    return Figure("Choosing the strengths of AF-1", views, len(views), comparisons, claims, (note,))


@reproduction(
    "s3",
    "a grid of both strengths of EWC with AF-1 and AF-2, over all tasks and over the first five",
    "20 min",
    _grids(("r-cifar-100",), ("ewc-af1", "ewc-af2")),
)
def s3(results: Results, place: Place) -> Figure:
    views, claims, comparisons, notes = [], [], [], list[str]()
    for benchmark, every in results.items():
        variants = _alike(every)
        for method in ("ewc-af1", "ewc-af2"):
            cells = _grid(place.scale, benchmark, method)
            grid = {cell: variants[f"{method} {_cell(*cell)}"].result for cell in cells}
            tasks = int(variants["ewc"].result.config["tasks"])
            for last in sorted({tasks, min(5, tasks)}, reverse=True):
                rows = [[_accuracy_after(grid[s, a].accuracy, last) for a in DECAYS] for s in STRENGTHS]
                title = f"{benchmark}, {method}: " + ("all tasks" if last == tasks else f"the first {last} tasks")
                names = [[f"x {value_text(v)}" for v in values] for values in (DECAYS, STRENGTHS)]
                views.append(heatmap(title, "λAF", "λSP", names[0], names[1], rows, digits=1))
            best = _best(variants, [f"{method} {_cell(*cell)}" for cell in cells])
            comparisons.append(Comparison(f"{benchmark}, best {method}", summary(best.result, "aac"), None))
            plain = variants["ewc"].result
            near = [summary(grid[1.0, a], "aac").mean > summary(plain, "aac").mean for a in DECAYS]
            claims += claim(f"{benchmark}: the best cell of {method} beats EWC", best.result, plain)
            notes.append(f"{method}: better than EWC at {sum(near)} of {len(near)} decades of λAF, λSP as chosen.")
        comparisons.append(Comparison(f"{benchmark}, EWC", summary(variants["ewc"].result, "aac"), None))
    return Figure("Grids of both strengths", views, 2, comparisons, claims, notes)


def _accuracy_after(matrices: Any, last: int) -> float:
    """Mean accuracy of the first `last` tasks right after the last of them, over runs (R, T, T)."""
    return float(matrices[:, last - 1, :last].mean())


NO_FORGETTING, NO_DIVERGENCE = {"lambda_af": 0.0}, {"gamma": 0.0}


def modulated(diversity: str) -> tuple[Variant, ...]:
    """Variants of several learners: without modulation, with either, and with both."""
    innate = {} if diversity == "high" else {"diversity": diversity}
    return (
        Variant("mcl-ewc", innate, "MCL"),
        Variant("caf-ewc", {**innate, **NO_DIVERGENCE}, "MCL + AF-1"),
        Variant("caf-ewc", {**innate, **NO_FORGETTING}, "MCL + AF-S"),
        Variant("caf-ewc", innate, "CAF"),
    )


@reproduction("fig3b", "the target distribution of a learner by its forgetting rate: theory, no runs", "none")
def fig3b(results: Results, place: Place) -> Figure:
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


def _expertise(one: VariantResult, title: str, most: float) -> View:
    """Expertise in the first run, since learners have no identity across runs. Colors run from -most to most."""
    relative = one.result.expertise[0].T  # (K, T)
    tasks, learners = [str(t + 1) for t in range(relative.shape[1])], [str(k + 1) for k in range(len(relative))]
    view = heatmap(title, "task", "learner", tasks, learners, relative, scale="diverging", digits=1)
    return view | {"range": [-most, most]}


def _spread(one: VariantResult) -> dict[int, float]:
    """Standard deviation of the learners' accuracies of a task, mean over tasks, by seed."""
    return {run.seed: float(np.std(np.array(run.own_accuracy), axis=1).mean()) for run in one.result.complete_runs}


def _expertise_wanted(
    benchmarks: tuple[str, ...], diversities: tuple[str, ...]
) -> Callable[[Scale], Sequence[Wanted]]:
    variants = tuple(
        Variant(v.method, v.settings, f"{v.name}, {d} diversity") for d in diversities for v in modulated(d)
    )
    return lambda scale: [Wanted(b, variants) for b in scale.benchmarks(*benchmarks)]


def _expertise_figure(results: Results, title: str) -> Figure:
    every = [one.result.expertise[0] for variants in results.values() for one in variants.values()]
    most = max(1.0, *(float(np.abs(one).max()) for one in every))  # one scale for all: they are compared
    views = [
        _expertise(one, f"{b}: {name}", most) for b, variants in results.items() for name, one in variants.items()
    ]
    comparisons = [
        Comparison(f"{b}, {name}: spread of the learners (%)", of_values(list(_spread(one).values())), None)
        for b, variants in results.items()
        for name, one in variants.items()
    ]
    return Figure(title, views, 2, comparisons)


@reproduction(
    "fig3d",
    "what each learner is good at, by modulation and innate diversity",
    "4 min",
    _expertise_wanted(("r-cifar-100",), ("low", "high")),
)
def fig3d(results: Results, place: Place) -> Figure:
    return _expertise_figure(results, "Learners' expertise across tasks")


@reproduction(
    "s5",
    "what each learner is good at, on the other benchmarks",
    "10 min",
    _expertise_wanted(("s-cifar-100", "r-cifar-10-100"), ("high",)),
)
def s5(results: Results, place: Place) -> Figure:
    return _expertise_figure(results, "Learners' expertise across tasks, further benchmarks")


def _modulated_wanted(diversity: str) -> Callable[[Scale], Sequence[Wanted]]:
    return lambda scale: [Wanted(scale.benchmark("r-cifar-100"), modulated(diversity), seeds=10)]


def _modulations(results: Results, diversity: str) -> Figure:
    """Accuracy against diversity of predictions, a mark per variant."""
    views: list[View] = []
    claims: list[Claim] = []
    for benchmark, variants in results.items():
        for measure, axis in (("cosine", "cosine distance"), ("euclidean", "Euclidean distance")):
            marks = []
            for name, one in variants.items():
                x, y = summary(one.result, measure), summary(one.result, "aac")
                marks.append(Series(name, [x.mean], [y.mean], x_error=[x.sem], y_error=[y.sem]))
            title = f"{benchmark}, {diversity} innate diversity"
            views.append(scatter(title, f"{axis} of predictions", "average accuracy (%)", marks))
        views.append(result_bars(f"{benchmark}, {diversity} innate diversity", variants, "aac"))
        plain = variants["MCL"].result
        for name in ("MCL + AF-1", "MCL + AF-S", "CAF"):
            text = f"{benchmark}, {diversity} innate diversity: {name} beats MCL"
            claims += claim(text, variants[name].result, plain)
        for name in ("MCL + AF-1", "MCL + AF-S"):
            text = f"{benchmark}, {diversity} innate diversity: both modulations beat {name}"
            claims += claim(text, variants["CAF"].result, variants[name].result)
    title = f"Modulations with {diversity} innate diversity"
    return Figure(title, views, 3, accuracies(results), claims)


@reproduction(
    "fig3e", "modulations of learners that are born alike: accuracy by diversity", "5 min", _modulated_wanted("low")
)
def fig3e(results: Results, place: Place) -> Figure:
    return _modulations(results, "low")


@reproduction(
    "fig3f",
    "modulations of learners that are born different: accuracy by diversity",
    "5 min",
    _modulated_wanted("high"),
)
def fig3f(results: Results, place: Place) -> Figure:
    return _modulations(results, "high")


def _innate(scale: Scale) -> list[Wanted]:
    variants = [Variant("ewc", called="SCL")]
    for method, called in (("mcl-ewc", "MCL"), ("caf-ewc", "CAF")):
        for diversity in ("low", "medium", "high"):
            innate = {} if diversity == "high" else {"diversity": diversity}
            variants.append(Variant(method, innate, f"{called}-{diversity[0].upper()}"))
    return [Wanted(b, tuple(variants), fwt=True) for b in scale.benchmarks(*CIFAR)]


@reproduction("s7", "one learner and five with low, medium and high innate diversity", "16 min", _innate)
def s7(results: Results, place: Place) -> Figure:
    views = [result_bars(b, variants, measure) for b, variants in results.items() for measure in MEASURES]
    claims: list[Claim] = []
    for benchmark, variants in results.items():
        for d in "LMH":
            caf, mcl = variants[f"CAF-{d}"].result, variants[f"MCL-{d}"].result
            claims += claim(f"{benchmark}: CAF-{d} beats MCL-{d}", caf, mcl)
        for name in ("MCL-H", "CAF-H"):
            several, one = variants[name].result, variants["SCL"].result
            text = f"{benchmark}: {name}"
            claims += claim(f"{text} beats one learner", several, one)
            claims += claim(f"{text} learns a task better than one learner", several, one, "learned")
            claims += claim(f"{text} has more forward transfer than one learner", several, one, "fwt")
            claims += claim(f"{text} forgets less than one learner", several, one, "bwt")
    title = "Innate diversity and knowledge transfer"
    return Figure(title, views, len(MEASURES), accuracies(results), claims, (PLASTICITY,))
