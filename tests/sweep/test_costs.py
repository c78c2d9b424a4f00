"""The cost model: against its equation, and what it should have learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kenyon.experiments.config import configure
from kenyon.experiments.results import Result
from kenyon.experiments.store import result_files
from kenyon.sweep.costs import KINDS, SLOPES, START, Costs, Seen, Work, seen_in

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"


def work(benchmark: str = "digits", method: str = "ewc", runs: int = 1, epochs: int = 100, learners: int = 1) -> Work:
    return Work(benchmark, method, runs, epochs, learners, 16)


def test_without_any_knowledge_more_work_costs_more() -> None:
    few, many, long = Costs([work(), work(runs=10), work(runs=10, epochs=1000)]).seconds
    assert few < many < long == pytest.approx(10 * many)


def test_it_is_the_posterior_mean_of_its_equation() -> None:
    """Against a least-squares problem in which every prior is one more observation."""
    random = np.random.default_rng(0)
    seen = [
        Seen(work(b, m, int(r), int(e)), d, float(s))
        for b, m, r, e, d, s in zip(
            random.choice(["a", "b"], 12),
            random.choice(["x", "y", "z"], 12),
            random.integers(1, 20, 12),
            random.integers(10, 500, 12),
            random.choice(["gpu", "cpu"], 12),
            random.uniform(1, 100, 12),
            strict=True,
        )
    ]
    asked = work("a", "new", 3, 50)
    costs = Costs([asked], seen, "gpu")
    columns = [("benchmark", "a"), ("benchmark", "b"), ("device", "cpu"), ("device", "gpu")]
    columns += [("method", "new"), ("method", "x"), ("method", "y"), ("method", "z")]

    def row(w: Work, device: str) -> list[float]:
        of = {"benchmark": w.benchmark, "method": w.method, "device": device}
        return [1.0, *np.log([w.runs and getattr(w, name) for name in SLOPES]), *(of[k] == n for k, n in columns)]

    priors = [START, *SLOPES.values(), *((0.0, KINDS[kind]) for kind, _ in columns)]
    A = [np.array(row(s.work, s.device)) / costs.noise for s in seen]
    y = [np.log(s.seconds) / costs.noise for s in seen]
    for number, (mean, spread) in enumerate(priors):
        A.append(np.eye(len(priors))[number] / spread)
        y.append(mean / spread)
    best = np.linalg.lstsq(np.array(A), np.array(y), rcond=None)[0]
    # The noise of the last fit is one step ahead of it; five steps are close to where they lead.
    assert np.log(costs.seconds[0]) == pytest.approx(row(asked, "gpu") @ best, abs=0.02)


def test_it_learns_how_times_grow_and_what_is_alike() -> None:
    def truth(w: Work) -> float:
        return (
            0.1
            * w.epochs
            * w.runs**0.5
            * (3.0 if w.benchmark == "large" else 0.2)
            * (2.0 if w.method == "caf" else 1.0)
        )

    noise = np.random.default_rng(1)
    seen = [
        Seen(w, "gpu", truth(w) * float(np.exp(noise.normal(0, 0.05))))
        for b in ("large", "small")
        for m in ("ewc", "caf", "si")
        for r in (1, 4, 16)
        if (w := work(b, m, r, 200)) and (b, m) != ("large", "caf")
    ]
    asked = [work("large", "caf", 16, 400), work("large", "ewc", 64, 200), work("large", "new", 4, 200)]
    costs = Costs(asked, seen)
    known, larger, new = costs.seconds
    assert known == pytest.approx(truth(asked[0]), rel=0.2)  # of the method elsewhere, and of others here
    assert larger == pytest.approx(truth(asked[1]), rel=0.2)
    assert 0.5 < new / truth(work("large", "ewc", 4, 200)) < 2
    draws = costs.draws(400)
    assert draws.shape == (400, 3)
    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    assert low[0] < truth(asked[0]) < high[0]
    assert high[2] / low[2] > 3 * high[1] / low[1]  # it knows what it does not know


def test_it_reads_results() -> None:
    results = [result for path in result_files(H200) if not (result := Result.load(path)).point]
    seen = [one for result in results for one in seen_in(result)]
    caf = next(s for s in seen if (s.work.benchmark, s.work.method) == ("r-cifar-100", "caf-ewc"))
    assert caf.work == Work("r-cifar-100", "caf-ewc", 5, 2000, 5, 9) and "H200" in caf.device and caf.seconds > 10
    left_out = [s for s in seen if s.work != caf.work]
    (predicted,) = Costs([caf.work], left_out).seconds
    assert 0.5 < predicted / caf.seconds < 2
    pnc = configure("digits", "pnc")
    assert Work.of(pnc, 3).epochs == 2 * 5 * pnc.training.epochs  # two stages a task
