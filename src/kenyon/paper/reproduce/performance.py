"""How well it does: Fig. 5, Supplementary Table 5 and Supplementary Fig. 6."""

from __future__ import annotations

from collections.abc import Sized
from math import isfinite

from kenyon.benchmarks.registry import BENCHMARKS, find_benchmark
from kenyon.paper.reproduce.figure import (
    CIFAR,
    Claim,
    Comparison,
    Figure,
    accuracies,
    claim,
    reproduction,
    result_bars,
    summary,
)
from kenyon.paper.reproduce.runs import Found, Place, Scale, Variant, Wanted
from kenyon.utils.views import Series, lines

COMPARED = ("ewc", "mas", "si", "agscl", "pnc", "er", "cpr-ewc", "cpr-mas", "caf-ewc", "caf-mas")
LEARNERS = {b.name: b.published_learners for b in BENCHMARKS.values() if b.published_learners}
WIDTHS = (0.5, 1.0, 2.0)  # times the published one


def _benchmarks(scale: Scale) -> tuple[str, ...]:
    return scale.benchmarks(*CIFAR, "omniglot", "cub-200", "tiny-imagenet", "core50")


def _everything(scale: Scale) -> list[Wanted]:
    found = []
    for b in _benchmarks(scale):
        known = find_benchmark(b).hyperparameters
        found.append(Wanted(b, tuple(Variant(m) for m in COMPARED if m in known)))
    return found


def _in_a_row(benchmarks: Sized) -> int:
    """Three, but four are two rows of two."""
    return 2 if len(benchmarks) == 4 else min(3, len(benchmarks))


@reproduction("fig5", "all methods on all visual benchmarks", "3 h", _everything)
def fig5(found: Found, place: Place) -> Figure:
    claims: list[Claim] = []
    for benchmark, hads in found.items():
        for base in ("ewc", "mas"):
            ours = f"caf-{base}"
            others = [name for name in hads if not name.startswith("caf-")]
            claims += claim(f"{benchmark}: {ours} beats {base}", hads[ours].result, hads[base].result)
            means = {name: summary(hads[name].result, "aac").mean for name in others}
            best = max((name for name in others if isfinite(means[name])), key=lambda name: means[name], default=base)
            claims += claim(f"{benchmark}: {ours} beats the best other, {best}", hads[ours].result, hads[best].result)
    views = [result_bars(b, hads, "aac") for b, hads in found.items()]
    return Figure("Visual classification", views, _in_a_row(found), accuracies(found), claims)


def _numbers(scale: Scale) -> list[Wanted]:
    return [
        Wanted(b, tuple(Variant("caf-ewc", {"learners": k}, f"K = {k}") for k in _learners(b)))
        for b in scale.benchmarks(*LEARNERS)
    ]


def _learners(benchmark: str) -> tuple[int, ...]:
    return tuple(LEARNERS.get(benchmark, {3: 0.0, 4: 0.0, 5: 0.0, 6: 0.0}))


@reproduction("table5", "the number of learners under one parameter budget", "2 h", _numbers)
def table5(found: Found, place: Place) -> Figure:
    comparisons, views = [], []
    whole = place.scale.name == "paper"
    for benchmark, hads in found.items():
        for k in _learners(benchmark):
            published = LEARNERS.get(benchmark, {}).get(k) if whole else None
            had = hads[f"K = {k}"].result
            comparisons.append(Comparison(f"{benchmark}, K = {k}", summary(had, "aac"), published))
        numbers = _learners(benchmark)
        found_here = [summary(hads[f"K = {k}"].result, "aac") for k in numbers]
        errors = [s.sem if isfinite(s.sem) else 0.0 for s in found_here]
        series = [Series("measured", numbers, [s.mean for s in found_here], error=errors)]
        if whole and benchmark in LEARNERS:
            series.append(Series("published", numbers, [LEARNERS[benchmark][k] for k in numbers], dashed=True))
        views.append(lines(benchmark, "learners", "average accuracy (%)", series))
    return Figure("Number and width of learners", views, _in_a_row(found), comparisons)


def _architectures(scale: Scale) -> list[Wanted]:
    found = []
    for b in scale.benchmarks("s-cifar-100", "r-cifar-100"):
        benchmark = find_benchmark(b)
        variants = [
            Variant("ewc", called="SCL"),
            Variant("discrete", called="Discrete"),
            Variant("icl-ewc", called="ICL"),
            Variant("mcl-ewc", called="MCL"),
            Variant("caf-ewc", called="CAF"),
        ]
        for factor in WIDTHS:
            if factor != 1.0:
                one, five = benchmark.width_for(1), benchmark.width_for(5)
                variants.append(Variant("ewc", {"width": max(1, round(one * factor))}, f"SCL x {factor:g}"))
                variants.append(Variant("caf-ewc", {"width": max(1, round(five * factor))}, f"CAF x {factor:g}"))
        found.append(Wanted(b, tuple(variants)))
    return found


@reproduction("s6", "other ways to use several learners, and other parameter budgets", "10 min", _architectures)
def s6(found: Found, place: Place) -> Figure:
    views, claims = [], []
    names = ("SCL", "Discrete", "ICL", "MCL", "CAF")
    for benchmark, hads in found.items():
        views.append(result_bars(benchmark, {name: hads[name] for name in names}, "aac"))
        for name in names[:-1]:
            claims += claim(f"{benchmark}: CAF beats {name}", hads["CAF"].result, hads[name].result)
    for benchmark, hads in found.items():
        series = []
        for name in ("SCL", "CAF"):
            some = [hads[name if f == 1.0 else f"{name} x {f:g}"].result for f in WIDTHS]
            sizes, means = [r.parameters for r in some], [summary(r, "aac") for r in some]
            errors = [s.sem if isfinite(s.sem) else 0.0 for s in means]
            series.append(Series(name, sizes, [s.mean for s in means], error=errors))
        views.append(lines(f"{benchmark}: widths", "parameters", "average accuracy (%)", series))
        for f in WIDTHS:
            one, five = ("SCL", "CAF") if f == 1.0 else (f"SCL x {f:g}", f"CAF x {f:g}")
            said = f"{benchmark}: CAF beats one learner at {f:g} times the width"
            claims += claim(said, hads[five].result, hads[one].result)
    return Figure("Architectures and budgets", views, len(found), accuracies(found), claims)
