"""Methods on small games, by the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.golden.cases.registry import add
from tests.golden.values import Bits, Values
from tests.golden.workbench import Bench, command, last_json, noise, saved


def published(bench: Bench) -> Values:
    """All settings but the length are those that a user gets."""
    asked = ["--steps", 1024, "--games", "gap,reach", "--seeds", 1, "--out", bench.folder, "--device", bench.device]
    command("run", "rl-mini", "--method", "caf-ewc", *asked)
    return saved(bench.folder)


GAMES = {"copies": 4, "horizon": 16, "minibatches": 4, "epochs": 2, "evaluations": 2, "episodes": 2}
GAMES |= {"importance_rollouts": 2, "importance_steps": 4, "longest": 60}


def games(bench: Bench, methods: str, steps: int = 256, seeds: str = "2", **settings: Any) -> Values:
    pairs = [word for name, value in (GAMES | settings).items() for word in ("--set", f"{name}={value}")]
    asked = ["--games", "catch,dodge", "--steps", steps, "--seeds", seeds, "--out", bench.folder, *pairs]
    said = last_json(command("run", "rl-mini", "--method", methods, "--device", bench.device, *asked, "--json"))
    found = saved(bench.folder)
    for name, told in said["methods"].items():
        for measure in ("nar", "np", "ns"):
            found[f"{name}: {measure}"] = told[measure]["runs"] if told[measure] else []
    return found


for name in ("ewc", "mas", "ewc-af1", "cpr-mas", "mcl-ewc", "caf-ewc", "caf-mas"):
    add(f"rl-mini/{name}", partial(games, methods=f"finetune,{name}"), quick=name == "caf-ewc")
for name in ("si", "rwalk"):  # for which nothing is published on games
    add(f"rl-mini/{name}", partial(games, methods=name, lambda_sp=10))
add("rl-mini, set/a grid", partial(games, methods="ewc", lambda_sp="10,1000"))
add("rl-mini, set/as published", published)
add("rl-mini, set/drawn actions", partial(games, methods="finetune", acting="drawn"))
add("rl-mini, set/anchors of each", partial(games, methods="ewc", anchors="each"))
add("rl-mini, set/anchors of the last", partial(games, methods="mas", anchors="last", penalties_from=1))
add("rl-mini, set/three learners", partial(games, methods="caf-ewc", learners=3, gate="true", gamma=1))


def played(bench: Bench) -> Values:
    """A saved policy acts."""
    from kenyon.experiments.policy import policy_of
    from kenyon.rl import find_suite

    games(bench, "ewc", seeds="1")
    policy = policy_of(bench.folder / "rl-mini" / "ewc", seed=0, game="dodge")
    shape = find_suite("rl-mini").shape
    seen = (127 + 127 * noise(20, *shape)).astype(np.uint8)
    return {"probabilities": policy.probabilities(seen), "actions": Bits(policy.act(seen).tolist())}


add("rl-mini, set/policy", played)
