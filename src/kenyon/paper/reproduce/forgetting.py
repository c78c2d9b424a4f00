"""Active forgetting with stability protection: Fig. 2, Supplementary Fig. 1 to 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from kenyon.benchmarks.registry import find_benchmark
from kenyon.experiments.results import value_text
from kenyon.paper.reproduce.figure import (
    CIFAR,
    MEASURES,
    PLASTICITY,
    Claim,
    Comparison,
    Figure,
    accuracies,
    claim,
    reproduction,
    result_bars,
    summary,
)
from kenyon.paper.reproduce.runs import Found, Had, Place, Scale, Variant, Wanted, compared
from kenyon.utils.views import heatmap

STRENGTHS = (0.2, 0.4, 1.0, 2.0)  # of stability protection, times the chosen one
DECAYS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of active forgetting, likewise
CELL = 3  # runs of a cell


def _with_forgetting(base: str) -> Callable[[Scale], Sequence[Wanted]]:
    names = {base: base.upper(), f"{base}-af1": f"{base.upper()} + AF-1", f"{base}-af2": f"{base.upper()} + AF-2"}
    variants = tuple(Variant(method, called=called) for method, called in names.items())
    return lambda scale: [Wanted(b, variants, fwt=True) for b in scale.benchmarks(*CIFAR)]


def _forgetting_helps(found: Found, base: str) -> Figure:
    claims: list[Claim] = []
    for benchmark, hads in found.items():
        plain = hads[base].result
        for kind in ("AF-1", "AF-2"):
            forgetting = hads[f"{base} + {kind}"].result
            said = f"{benchmark}: {kind} on {base} raises"
            claims += claim(f"{said} the average accuracy", forgetting, plain)
            claims += claim(f"{said} the accuracy of a task just learned", forgetting, plain, "learned")
            claims += claim(f"{said} forward transfer", forgetting, plain, "fwt")
            claims += claim(f"{said} backward transfer (the paper: or keeps it)", forgetting, plain, "bwt")
    views = [result_bars(b, hads, measure) for b, hads in found.items() for measure in MEASURES]
    title = f"Active forgetting on {base}: overall, plasticity, stability"
    return Figure(title, views, len(MEASURES), accuracies(found), claims, (PLASTICITY, *_unequal(found)))


def _unequal(found: Found) -> list[str]:
    """Where the methods that are compared do not protect old tasks alike."""
    told = []
    for benchmark, hads in found.items():
        strengths = {name: had.result.config["hyper"]["lambda_sp"] for name, had in hads.items()}
        if len(set(strengths.values())) > 1:
            each = ", ".join(f"{name} {value_text(strength)}" for name, strength in strengths.items())
            told.append(f"λSP on {benchmark}: {each}. What differs between these may come of that.")
    return told


@reproduction(
    "fig2c", "active forgetting on EWC: accuracy, forward and backward transfer", "8 min", _with_forgetting("ewc")
)
def fig2c(found: Found, place: Place) -> Figure:
    return _forgetting_helps(found, "EWC")


@reproduction(
    "s1", "active forgetting on MAS: accuracy, forward and backward transfer", "8 min", _with_forgetting("mas")
)
def s1(found: Found, place: Place) -> Figure:
    return _forgetting_helps(found, "MAS")


def _seen(scale: Scale) -> list[Wanted]:
    variants = (Variant("ewc", called="EWC"), Variant("ewc-af1", called="EWC + AF-1"))
    return [Wanted(scale.benchmark("s-cifar-100", convolutions=True), variants, seeds=1)]


@reproduction(
    "fig2d", "where EWC looks in images of the latest task, with and without active forgetting", "1 min", _seen
)
def fig2d(found: Found, place: Place) -> Figure:
    return Figure("What predictions of the latest task rest on (Grad-CAM)", compared(found, place, "gradcam"), 1)


# ------------------------------------------------------------------ hyper-parameters


def _grid(scale: Scale, benchmark: str, method: str) -> dict[tuple[float, float], dict[str, Any]]:
    """Settings by (strength, decay), both times the chosen ones."""
    chosen = find_benchmark(benchmark).hyperparameters[method]
    sp, af = float(chosen["lambda_sp"]), float(chosen["lambda_af"])
    places = product(STRENGTHS, DECAYS)
    return {(s, a): {"lambda_sp": _rounded(sp * s), "lambda_af": _rounded(af * a)} for s, a in places}


def _rounded(strength: float) -> float:
    """As it is written: 1e-05 and not 9.999999999999999e-06, which would name a folder of its own."""
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


def _alike(hads: dict[str, Had]) -> dict[str, Had]:
    """With the runs that all have: cells are compared, and none shall win by its seeds."""
    seeds = set.intersection(*({run.seed for run in had.result.runs} for had in hads.values()))
    return {name: replace(had, result=had.result.restricted(sorted(seeds))) for name, had in hads.items()}


def _best(hads: dict[str, Had], names: list[str]) -> Had:
    return max((hads[name] for name in names), key=lambda had: summary(had.result, "aac").mean)


@reproduction(
    "s2",
    "AF-1 with its own strength alone, and with both strengths chosen together",
    "12 min",
    _grids(CIFAR[:2], ("ewc-af1",)),
)
def s2(found: Found, place: Place) -> Figure:
    views, comparisons, claims = [], [], []
    for benchmark, some in found.items():
        hads, cells = _alike(some), _grid(place.scale, benchmark, "ewc-af1")
        alone = _best(hads, [f"ewc-af1 {_cell(s, a)}" for s, a in cells if s == 1.0])
        both = _best(hads, [f"ewc-af1 {_cell(s, a)}" for s, a in cells])
        shown = {"EWC": hads["ewc"], "AF-1, λAF chosen": alone, "AF-1, both chosen": both}
        views.append(result_bars(benchmark, shown, "aac"))
        comparisons += [
            Comparison(f"{benchmark}, {name}", summary(had.result, "aac"), None) for name, had in shown.items()
        ]
        claims += claim(f"{benchmark}: choosing both strengths beats choosing λAF alone", both.result, alone.result)
        claims += claim(f"{benchmark}: AF-1 with λAF chosen alone beats EWC", alone.result, hads["ewc"].result)
    note = "The best cell is chosen on the runs that are shown, as in the paper: its accuracy is a little optimistic."
    return Figure("Choosing the strengths of AF-1", views, len(views), comparisons, claims, (note,))


@reproduction(
    "s3",
    "a grid of both strengths of EWC with AF-1 and AF-2, over all tasks and over the first five",
    "20 min",
    _grids(("r-cifar-100",), ("ewc-af1", "ewc-af2")),
)
def s3(found: Found, place: Place) -> Figure:
    views, claims, comparisons, notes = [], [], [], list[str]()
    for benchmark, some in found.items():
        hads = _alike(some)
        for method in ("ewc-af1", "ewc-af2"):
            cells = _grid(place.scale, benchmark, method)
            results = {cell: hads[f"{method} {_cell(*cell)}"].result for cell in cells}
            tasks = int(hads["ewc"].result.config["tasks"])
            for last in sorted({tasks, min(5, tasks)}, reverse=True):
                rows = [[_accuracy_after(results[s, a].accuracy, last) for a in DECAYS] for s in STRENGTHS]
                title = f"{benchmark}, {method}: " + ("all tasks" if last == tasks else f"the first {last} tasks")
                names = [[f"x {value_text(v)}" for v in values] for values in (DECAYS, STRENGTHS)]
                views.append(heatmap(title, "λAF", "λSP", names[0], names[1], rows, digits=1))
            best = _best(hads, [f"{method} {_cell(*cell)}" for cell in cells])
            comparisons.append(Comparison(f"{benchmark}, best {method}", summary(best.result, "aac"), None))
            near = [summary(results[1.0, a], "aac").mean > summary(hads["ewc"].result, "aac").mean for a in DECAYS]
            claims += claim(f"{benchmark}: the best cell of {method} beats EWC", best.result, hads["ewc"].result)
            notes.append(f"{method}: better than EWC at {sum(near)} of {len(near)} decades of λAF, λSP as chosen.")
        comparisons.append(Comparison(f"{benchmark}, EWC", summary(hads["ewc"].result, "aac"), None))
    return Figure("Grids of both strengths", views, 2, comparisons, claims, notes)


def _accuracy_after(matrices: Any, last: int) -> float:
    """Mean accuracy of the first tasks right after the last of them, over runs (R, T, T)."""
    return float(matrices[:, last - 1, :last].mean())
