"""Games learned one after another: Fig. 6."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from kenyon.errors import ResultsError
from kenyon.experiments.runner import missing_of
from kenyon.reproduce.figure import Claim, Comparison, Figure, claimed
from kenyon.reproduce.registry import reproduction
from kenyon.reproduce.wanted import Found, Place
from kenyon.rl.pictures import fig6 as fig6_views
from kenyon.rl.results import GameResult, measures, unmeasured
from kenyon.rl.runner import GamesPlan, plan_games

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
    plan = plan_games(
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


def _check_present(plan: GamesPlan, shortened: Mapping[str, int]) -> None:
    missing = list(dict.fromkeys(cell.config.method for cell in missing_of(plan.out, plan.points, plan.seeds)))
    if missing:
        words = ["kenyon", "run", plan.points[0].config.benchmark, "--method", ",".join(missing)]
        words += ["--seeds", str(len(plan.seeds))]
        words += [word for name, value in shortened.items() for word in ("--set", f"{name}={value}")]
        raise ResultsError(
            f"Scores of {', '.join(missing)} are missing. This makes them, and so does the same without --no-train:\n"
            f"  {shlex.join([*words, '--out', str(plan.out)])}"
        )
