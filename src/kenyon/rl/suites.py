"""The suites of games as benchmarks: a network, a training regime and hyper-parameters for each.

Atari: Supplementary Section 2.3 for EWC, MAS, CPR and CAF. It has no values for learners without active forgetting
(lambda_SP is that of EWC or MAS), nor for AF-1 on a single learner (lambda_AF is that of CAF); SI and RWalk need
theirs from `--set`. The Fisher information is summed over games, one anchor a game, and AF-S has equal weights, as
published.
atari-sticky: the values of Atari; none were chosen for it. rl-mini: ours. Settings of PPO (eight tried) and lambda_SP
(of three values each) were chosen on seeds 100 to 102, which no reported number uses; the other strengths are those
of Atari.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import torch

from kenyon.benchmarks.registry import nearest_width
from kenyon.errors import unknown
from kenyon.methods import Method
from kenyon.models import Backbone, Net, atari_cnn, small_games_mlp
from kenyon.rl.environment import SUITES, Suite, find_suite
from kenyon.rl.ppo import Ppo

Values = dict[str, float | str]


@dataclass(frozen=True)
class SuiteBenchmark:
    """A suite of games as a benchmark: network, training regime and hyper-parameters."""

    name: str  # of the suite
    backbone: Callable[[Suite], Backbone]
    width: int  # of a single learner; several learners share its number of parameters
    training: Ppo
    hyperparameters: Mapping[str, Mapping[str, Any]]  # method -> name -> value
    widths: Mapping[int, int] = field(default_factory=dict)  # learners -> width, where the published one is another
    module: str | None = None  # that registers the suite when it is imported

    @property
    def available(self) -> bool:
        """True if the suite's games are installed."""
        return self.name in SUITES or (self.module is not None and find_spec(self.module) is not None)

    @property
    def suite(self) -> Suite:
        if self.name not in SUITES and self.module is not None and self.available:
            import_module(self.module)
        return find_suite(self.name)

    def net(
        self,
        games: tuple[str, ...],
        width: int,
        learners: int,
        method: Method | None = None,
        *,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> Net:
        """Return the network for some games, with the parameters that a method learns. `options`: those of `Net`."""
        suite = self.suite
        counts = [suite.actions[game] for game in games]
        with torch.device("meta"):  # only its shape is wanted: every run draws weights of its own
            backbone = self.backbone(suite)(width, learners)

        def build(learned: dict[str, tuple[int, ...]]) -> Net:
            return Net(
                backbone,
                suite.shape,
                counts,
                learners=learners,
                learned=learned,
                values=True,
                device=device,
                in_place=False,
                **options,
            )

        bare = build({})
        return bare if method is None else build(method.learned(bare))

    def parameters(self, width: int, learners: int) -> int:
        return self.net(self.suite.games, width, learners).parameter_count

    def width_for(self, learners: int) -> int:
        """Return the width at which this number of learners has about as many parameters as a single one."""
        if learners == 1 or learners in self.widths:
            return self.widths.get(learners, self.width)
        budget = self.parameters(self.width, 1)
        return nearest_width(lambda width: self.parameters(width, learners), self.width, budget)


def _family(ewc: float, mas: float, cpr: float, af: float, gamma: float) -> dict[str, Values]:
    on_ewc: Values = {"lambda_sp": ewc, "accumulate": "sum"}
    on_mas: Values = {"lambda_sp": mas}
    active: Values = {"lambda_af": af, "gamma": gamma, "afs": "uniform"}
    return {
        "ewc": on_ewc,
        "mas": on_mas,
        "cpr-ewc": on_ewc | {"lambda_cpr": cpr},
        "cpr-mas": on_mas | {"lambda_cpr": cpr},
        "ewc-af1": on_ewc | {"lambda_af": af},
        "mas-af1": on_mas | {"lambda_af": af},
        "mcl-ewc": on_ewc,
        "mcl-mas": on_mas,
        "caf-ewc": on_ewc | active,
        "caf-mas": on_mas | active,
    }


def small_mlp(suite: Suite) -> Backbone:
    return partial(small_games_mlp, pixels=prod(suite.shape))


ATARI = SuiteBenchmark(
    "atari",
    lambda suite: atari_cnn,
    width=128,
    training=Ppo(),
    hyperparameters=_family(ewc=1e5, mas=10, cpr=0.05, af=1e-5, gamma=0.01),
    widths={5: 32},
    module="kenyon.rl.atari",
)
SUITE_BENCHMARKS: dict[str, SuiteBenchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        ATARI,
        replace(ATARI, name="atari-sticky"),
        SuiteBenchmark(
            "rl-mini",
            small_mlp,
            width=24,
            training=Ppo(
                steps=24_576,
                copies=32,
                horizon=16,
                epochs=4,
                minibatches=2,
                discount=0.95,
                gae=0.9,
                entropy=0.01,
                rate=1e-2,
                evaluations=5,
                importance_rollouts=10,
                importance_steps=16,
            ),
            hyperparameters=_family(ewc=1e3, mas=1e-3, cpr=0.05, af=1e-5, gamma=0.01),
            module="kenyon.rl.mini",
        ),
    )
}


def find_suite_benchmark(name: str) -> SuiteBenchmark:
    if name not in SUITE_BENCHMARKS:
        raise unknown("suite of games", name, SUITE_BENCHMARKS)
    return SUITE_BENCHMARKS[name]
