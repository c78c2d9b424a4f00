"""What makes continual learning better: Fig. 4, Supplementary Fig. 4.

Games learned one after another: Fig. 6.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from kenyon.errors import ResultsError
from kenyon.experiments.compare import measures, unmeasured
from kenyon.experiments.results import GameResult
from kenyon.experiments.runner import Plan, missing_runs
from kenyon.experiments.runner import plan as plan_runs
from kenyon.paper.reproduce.figure import CIFAR, Claim, Comparison, Figure, claimed, of_values, reproduction
from kenyon.paper.reproduce.runs import Found, Place, Scale, Variant, Wanted, by_seed, compared, measured
from kenyon.rl.scores import fig6 as fig6_views

THREE = (Variant("ewc", called="SCL"), Variant("mcl-ewc", called="MCL"), Variant("caf-ewc", called="CAF"))


def _three(every_task: bool = False) -> Callable[[Scale], Sequence[Wanted]]:
    return lambda scale: [Wanted(b, THREE, every_task=every_task) for b in scale.benchmarks(*CIFAR)]


def _figure(found: Found, place: Place, analysis: str, title: str, said: Mapping[str, str], sign: int) -> Figure:
    """Views of an analysis, and whether CAF has more (or with sign -1 less) of its values than one learner; `said` of
    each.
    """
    claims: list[Claim] = []
    comparisons: list[Comparison] = []
    for benchmark, variants in measured(found, place, analysis).items():
        for value, claim in said.items():
            each = {name: by_seed(runs, value) for name, runs in variants.items()}
            signed = {name: {seed: sign * v for seed, v in values.items()} for name, values in each.items()}
            for name in ("MCL", "CAF"):
                claims += claimed(f"{benchmark}: {name} {claim} than one learner", signed[name], signed["SCL"])
            comparisons += [
                Comparison(f"{benchmark}, {name}: {value.replace('_', ' ')}", of_values(list(values.values())), None)
                for name, values in each.items()
                if values
            ]
    return Figure(title, compared(found, place, analysis), 3, comparisons, claims)


@reproduction("fig4abc", "how well tasks are told apart in feature space", "6 min", _three())
def fig4abc(found: Found, place: Place) -> Figure:
    title = "Discrepancy of task distributions in feature space"
    said = {
        "mean_error": "has a larger discrimination error, by what heads see,",
        "own_error": "has a larger discrimination error, by each learner's features alone,",
    }
    return _figure(found, place, "discrepancy", title, said, 1)


@reproduction("fig4def", "the loss around the solution, along random directions", "6 min", _three())
def fig4def(found: Found, place: Place) -> Figure:
    title = "Flatness of the loss around the solution"
    said = {
        "sharpness": "lies flatter (its loss rises less)",
        "filter_sharpness": "lies flatter, along directions as long as its own filters,",
    }
    return _figure(found, place, "flatness", title, said, -1)


@reproduction("fig4ghi", "how far parameters moved, and the accuracy reached", "6 min", _three(every_task=True))
def fig4ghi(found: Found, place: Place) -> Figure:
    runs = [run for b in measured(found, place, "change").values() for some in b.values() for run in some]
    value = "total" if all(run["total"] is not None for run in runs) else "displacement"
    title = "Parameter changes and accuracy"
    return _figure(found, place, "change", title, {value: "moves its parameters more"}, 1)


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
def s4(found: Found, place: Place) -> Figure:
    from kenyon.paper.reproduce.figure import accuracies, claim

    claims: list[Claim] = []
    for benchmark, hads in found.items():
        for name, plain in (("EWC + AF-1", "EWC"), ("CAF", "EWC")):
            claims += claim(f"{benchmark}: continually, {name} beats {plain}", hads[name].result, hads[plain].result)
        for name, plain in (("JT + Reg (AF-1)", "JT"), ("JT + Reg (CAF), five learners", "JT, five learners")):
            said = f"{benchmark}: with all tasks at once, {plain} is better than {name} (the paper: as good)"
            claims += claim(said, hads[plain].result, hads[name].result)
    return Figure("Accuracy of every task", compared(found, place, "pertask"), 1, accuracies(found), claims)


METHODS = ("finetune", "ewc", "mas", "cpr-ewc", "cpr-mas", "mcl-ewc", "mcl-mas", "caf-ewc", "caf-mas")
SEEDS = 5
# By scale: the suite, the methods, and what is shortened.
SIZES: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "smoke": ("rl-mini", ("finetune", "ewc", "caf-ewc"), {"steps": 1024, "evaluations": 2, "episodes": 3}),
    "quick": ("rl-mini", METHODS, {}),
    "paper": ("atari", METHODS, {}),
}


@reproduction("fig6", "eight Atari games learned one after another; at smaller scales five tiny games", "days")
def fig6(found: Found, place: Place) -> Figure:
    suite, methods, shortened = SIZES[place.scale.name]
    plan = plan_runs(
        suite, methods, place.scale.trained(SEEDS), overrides=shortened, device=place.device.type, out=place.runs
    )
    if not place.train:
        _check_present(plan, shortened)
    results = place.play(plan)
    found_here = measures(results)
    if not found_here:
        raise ResultsError(" ".join([*unmeasured(results), "More runs (--seeds) may have scored there."]))
    claims: list[Claim] = []
    comparisons = [
        Comparison(f"{suite}, {name}: {measure.upper()}", value)
        for name, mine in found_here.items()
        for measure in ("nar", "np", "ns")
        if (value := getattr(mine, measure)) is not None
    ]
    said = {"nar": "accumulates more reward than", "np": "learns new games better than", "ns": "keeps more than"}
    for measure, more in said.items():
        each = {
            name: _by_seed(results[name], values.runs)
            for name, mine in found_here.items()
            if (values := getattr(mine, measure)) is not None
        }
        pairs = (("caf-ewc", "ewc"), ("caf-mas", "mas"), *([("ewc", "finetune")] if measure == "nar" else []))
        for ours, base in pairs:
            if ours in each and base in each:
                claims += claimed(f"{suite}: {ours} {more} {base}", each[ours], each[base])
    return Figure("Games learned one after another", fig6_views(found_here, plan.games), 4, comparisons, claims)


def _by_seed(result: GameResult, values: tuple[float, ...]) -> dict[int, float]:
    return dict(zip((run.seed for run in result.complete_runs), values, strict=True))


def _check_present(plan: Plan, shortened: Mapping[str, int]) -> None:
    missing = list(dict.fromkeys(cell.config.method for cell in missing_runs(plan.out, plan.points, plan.seeds)))
    if missing:
        words = ["kenyon", "run", plan.points[0].config.benchmark, "--method", ",".join(missing)]
        words += ["--seeds", str(len(plan.seeds))]
        words += [word for name, value in shortened.items() for word in ("--set", f"{name}={value}")]
        raise ResultsError(
            f"Scores of {', '.join(missing)} are missing. This makes them, and so does the same without --no-train:\n"
            f"  {shlex.join([*words, '--out', str(plan.out)])}"
        )
