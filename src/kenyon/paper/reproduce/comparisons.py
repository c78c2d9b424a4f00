"""Fig. 4 to 6, Supplementary Fig. 4 and 6, Supplementary Table 5: mechanisms, benchmarks, budgets and games."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence, Sized
from math import isfinite
from typing import TYPE_CHECKING

from kenyon.errors import ResultsError
from kenyon.paper.reproduce.figure import (
    CIFAR,
    Claim,
    Comparison,
    Figure,
    Place,
    Results,
    Scale,
    Variant,
    Wanted,
    accuracies,
    claim,
    claimed,
    of_values,
    reproduction,
    result_bars,
    summary,
)
from kenyon.utils.views import Series, lines

if TYPE_CHECKING:
    from kenyon.experiments.results import GameResult
    from kenyon.experiments.runner import Plan

THREE = (Variant("ewc", called="SCL"), Variant("mcl-ewc", called="MCL"), Variant("caf-ewc", called="CAF"))


def _three(every_task: bool = False) -> Callable[[Scale], Sequence[Wanted]]:
    return lambda scale: [Wanted(b, THREE, every_task=every_task) for b in scale.benchmarks(*CIFAR)]


def _figure(results: Results, place: Place, analysis: str, title: str, texts: Mapping[str, str], sign: int) -> Figure:
    """Views of an analysis, with claims that its values are larger (sign -1: smaller) than those of one learner.

    `texts`: by value, the text of its claim.
    """
    from kenyon.paper.reproduce.runs import compared, measured, values_by_seed

    claims: list[Claim] = []
    comparisons: list[Comparison] = []
    for benchmark, variants in measured(results, place, analysis).items():
        for value, text in texts.items():
            each = {name: values_by_seed(runs, value) for name, runs in variants.items()}
            signed = {name: {seed: sign * v for seed, v in values.items()} for name, values in each.items()}
            for name in ("MCL", "CAF"):
                claims += claimed(f"{benchmark}: {name} {text} than one learner", signed[name], signed["SCL"])
            comparisons += [
                Comparison(f"{benchmark}, {name}: {value.replace('_', ' ')}", of_values(list(values.values())), None)
                for name, values in each.items()
                if values
            ]
    return Figure(title, compared(results, place, analysis), 3, comparisons, claims)


@reproduction("fig4abc", "how well tasks are told apart in feature space", "6 min", _three())
def fig4abc(results: Results, place: Place) -> Figure:
    title = "Discrepancy of task distributions in feature space"
    texts = {
        "mean_error": "has a larger discrimination error, by what heads see,",
        "own_error": "has a larger discrimination error, by each learner's features alone,",
    }
    return _figure(results, place, "discrepancy", title, texts, 1)


@reproduction("fig4def", "the loss around the solution, along random directions", "6 min", _three())
def fig4def(results: Results, place: Place) -> Figure:
    title = "Flatness of the loss around the solution"
    texts = {
        "sharpness": "lies flatter (its loss rises less)",
        "filter_sharpness": "lies flatter, along directions as long as its own filters,",
    }
    return _figure(results, place, "flatness", title, texts, -1)


@reproduction("fig4ghi", "how far parameters moved, and the accuracy reached", "6 min", _three(every_task=True))
def fig4ghi(results: Results, place: Place) -> Figure:
    from kenyon.paper.reproduce.runs import measured

    runs = [run for b in measured(results, place, "change").values() for some in b.values() for run in some]
    value = "total" if all(run["total"] is not None for run in runs) else "displacement"
    title = "Parameter changes and accuracy"
    return _figure(results, place, "change", title, {value: "moves its parameters more"}, 1)


def _task_by_task(scale: Scale) -> list[Wanted]:
    names = {
        "ewc": "EWC",
        "ewc-af1": "EWC + AF-1",
        "mcl-ewc": "MCL",
        "caf-ewc": "CAF",
        "joint": "JT",
        "joint-af1": "JT + Reg (AF-1)",
        "joint-mcl": "JT, five learners",
        "joint-caf": "JT + Reg (CAF), five learners",
    }
    variants = tuple(Variant(method, called=called) for method, called in names.items())
    return [Wanted(b, variants) for b in scale.benchmarks("s-cifar-100", "r-cifar-100")]


@reproduction("s4", "accuracy of every task, learned continually and all at once", "10 min", _task_by_task)
def s4(results: Results, place: Place) -> Figure:
    from kenyon.paper.reproduce.runs import compared

    claims: list[Claim] = []
    for benchmark, variants in results.items():
        for name, plain in (("EWC + AF-1", "EWC"), ("CAF", "EWC")):
            text = f"{benchmark}: continually, {name} beats {plain}"
            claims += claim(text, variants[name].result, variants[plain].result)
        for name, plain in (("JT + Reg (AF-1)", "JT"), ("JT + Reg (CAF), five learners", "JT, five learners")):
            text = f"{benchmark}: with all tasks at once, {plain} is better than {name} (the paper: as good)"
            claims += claim(text, variants[plain].result, variants[name].result)
    return Figure("Accuracy of every task", compared(results, place, "pertask"), 1, accuracies(results), claims)


METHODS = ("finetune", "ewc", "mas", "cpr-ewc", "cpr-mas", "mcl-ewc", "mcl-mas", "caf-ewc", "caf-mas")
SEEDS = 5
# By scale: the suite, the methods, and settings that shorten it.
SIZES: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "smoke": ("rl-mini", ("finetune", "ewc", "caf-ewc"), {"steps": 1024, "evaluations": 2, "episodes": 3}),
    "quick": ("rl-mini", METHODS, {}),
    "paper": ("atari", METHODS, {}),
}


@reproduction("fig6", "eight Atari games learned one after another; at smaller scales five tiny games", "days")
def fig6(results: Results, place: Place) -> Figure:
    from kenyon.experiments.compare import measures, unmeasured
    from kenyon.experiments.runner import execute
    from kenyon.experiments.runner import plan as plan_runs
    from kenyon.rl.scores import fig6 as charts

    suite, methods, shortened = SIZES[place.scale.name]
    plan = plan_runs(
        suite, methods, place.scale.trained(SEEDS), overrides=shortened, device=place.device.type, out=place.runs
    )
    if not place.train:
        _check_present(plan, shortened)
    scores = (place.play or execute)(plan)
    found_here = measures(scores)
    if not found_here:
        raise ResultsError(" ".join([*unmeasured(scores), "More runs (--seeds) may have scored there."]))
    claims: list[Claim] = []
    comparisons = [
        Comparison(f"{suite}, {name}: {measure.upper()}", value)
        for name, rates in found_here.items()
        for measure in ("nar", "np", "ns")
        if (value := getattr(rates, measure)) is not None
    ]
    texts = {"nar": "accumulates more reward than", "np": "learns new games better than", "ns": "keeps more than"}
    for measure, more in texts.items():
        each = {
            name: _by_seed(scores[name], values.runs)
            for name, rates in found_here.items()
            if (values := getattr(rates, measure)) is not None
        }
        pairs = (("caf-ewc", "ewc"), ("caf-mas", "mas"), *([("ewc", "finetune")] if measure == "nar" else []))
        for ours, base in pairs:
            if ours in each and base in each:
                claims += claimed(f"{suite}: {ours} {more} {base}", each[ours], each[base])
    return Figure("Games learned one after another", charts(found_here, plan.games), 4, comparisons, claims)


def _by_seed(result: GameResult, values: tuple[float, ...]) -> dict[int, float]:
    return dict(zip((run.seed for run in result.complete_runs), values, strict=True))


def _check_present(plan: Plan, shortened: Mapping[str, int]) -> None:
    from kenyon.experiments.runner import missing_runs

    missing = list(dict.fromkeys(cell.config.method for cell in missing_runs(plan.out, plan.points, plan.seeds)))
    if missing:
        words = ["kenyon", "run", plan.points[0].config.benchmark, "--method", ",".join(missing)]
        words += ["--seeds", str(len(plan.seeds))]
        words += [word for name, value in shortened.items() for word in ("--set", f"{name}={value}")]
        raise ResultsError(
            f"Scores of {', '.join(missing)} are missing. This makes them, and so does the same without --no-train:\n"
            f"  {shlex.join([*words, '--out', str(plan.out)])}"
        )


COMPARED = ("ewc", "mas", "si", "agscl", "pnc", "er", "cpr-ewc", "cpr-mas", "caf-ewc", "caf-mas")
WIDTHS = (0.5, 1.0, 2.0)  # times the published one


def _benchmarks(scale: Scale) -> tuple[str, ...]:
    return scale.benchmarks(*CIFAR, "omniglot", "cub-200", "tiny-imagenet", "core50")


def _everything(scale: Scale) -> list[Wanted]:
    from kenyon.benchmarks.registry import find_benchmark

    wanted = []
    for b in _benchmarks(scale):
        known = find_benchmark(b).hyperparameters
        wanted.append(Wanted(b, tuple(Variant(m) for m in COMPARED if m in known)))
    return wanted


def _in_a_row(benchmarks: Sized) -> int:
    """Views per row: three at most, and two of four."""
    return 2 if len(benchmarks) == 4 else min(3, len(benchmarks))


@reproduction("fig5", "all methods on all visual benchmarks", "3 h", _everything)
def fig5(results: Results, place: Place) -> Figure:
    claims: list[Claim] = []
    for benchmark, variants in results.items():
        for base in ("ewc", "mas"):
            ours = f"caf-{base}"
            others = [name for name in variants if not name.startswith("caf-")]
            claims += claim(f"{benchmark}: {ours} beats {base}", variants[ours].result, variants[base].result)
            means = {name: summary(variants[name].result, "aac").mean for name in others}
            best = max((name for name in others if isfinite(means[name])), key=lambda name: means[name], default=base)
            text = f"{benchmark}: {ours} beats the best other, {best}"
            claims += claim(text, variants[ours].result, variants[best].result)
    views = [result_bars(b, variants, "aac") for b, variants in results.items()]
    return Figure("Visual classification", views, _in_a_row(results), accuracies(results), claims)


def _published() -> Mapping[str, Mapping[int, float]]:
    """Return published accuracies, benchmark -> number of learners -> per cent."""
    from kenyon.benchmarks.registry import BENCHMARKS

    return {b.name: b.published_learners for b in BENCHMARKS.values() if b.published_learners}


def _numbers(scale: Scale) -> list[Wanted]:
    return [
        Wanted(b, tuple(Variant("caf-ewc", {"learners": k}, f"K = {k}") for k in _learners(b)))
        for b in scale.benchmarks(*_published())
    ]


def _learners(benchmark: str) -> tuple[int, ...]:
    return tuple(_published().get(benchmark, (3, 4, 5, 6)))


@reproduction("table5", "the number of learners under one parameter budget", "2 h", _numbers)
def table5(results: Results, place: Place) -> Figure:
    comparisons, views = [], []
    known = _published() if place.scale.name == "paper" else {}
    for benchmark, variants in results.items():
        for k in _learners(benchmark):
            one = variants[f"K = {k}"].result
            comparisons.append(
                Comparison(f"{benchmark}, K = {k}", summary(one, "aac"), known.get(benchmark, {}).get(k))
            )
        numbers = _learners(benchmark)
        found_here = [summary(variants[f"K = {k}"].result, "aac") for k in numbers]
        errors = [s.sem if isfinite(s.sem) else 0.0 for s in found_here]
        series = [Series("measured", numbers, [s.mean for s in found_here], error=errors)]
        if benchmark in known:
            series.append(Series("published", numbers, [known[benchmark][k] for k in numbers], dashed=True))
        views.append(lines(benchmark, "learners", "average accuracy (%)", series))
    return Figure("Number and width of learners", views, _in_a_row(results), comparisons)


def _architectures(scale: Scale) -> list[Wanted]:
    from kenyon.benchmarks.registry import find_benchmark

    wanted = []
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
        wanted.append(Wanted(b, tuple(variants)))
    return wanted


@reproduction("s6", "other ways to use several learners, and other parameter budgets", "10 min", _architectures)
def s6(results: Results, place: Place) -> Figure:
    views, claims = [], []
    names = ("SCL", "Discrete", "ICL", "MCL", "CAF")
    for benchmark, variants in results.items():
        views.append(result_bars(benchmark, {name: variants[name] for name in names}, "aac"))
        for name in names[:-1]:
            claims += claim(f"{benchmark}: CAF beats {name}", variants["CAF"].result, variants[name].result)
    for benchmark, variants in results.items():
        series = []
        for name in ("SCL", "CAF"):
            some = [variants[name if f == 1.0 else f"{name} x {f:g}"].result for f in WIDTHS]
            sizes, means = [r.parameters for r in some], [summary(r, "aac") for r in some]
            errors = [s.sem if isfinite(s.sem) else 0.0 for s in means]
            series.append(Series(name, sizes, [s.mean for s in means], error=errors))
        views.append(lines(f"{benchmark}: widths", "parameters", "average accuracy (%)", series))
        for f in WIDTHS:
            one, five = ("SCL", "CAF") if f == 1.0 else (f"SCL x {f:g}", f"CAF x {f:g}")
            text = f"{benchmark}: CAF beats one learner at {f:g} times the width"
            claims += claim(text, variants[five].result, variants[one].result)
    return Figure("Architectures and budgets", views, len(results), accuracies(results), claims)
