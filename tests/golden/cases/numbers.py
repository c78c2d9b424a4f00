"""Theory and measures."""

from __future__ import annotations

import json

import numpy as np
import torch

from tests.golden.cases.registry import add
from tests.golden.values import Exact, Values
from tests.golden.workbench import Bench, command, noise, numbers_of


def theory(bench: Bench) -> Values:
    from kenyon import theory as t

    prior, old = t.Gaussian(0, 1), t.Gaussian(4, 1)
    wide, narrow = t.Gaussian([0.0, 1.0, -1.0], [1.0, 2.0, 4.0]), t.Gaussian([2.0, 0.5, -3.0], [0.5, 0.25, 1.0])
    task, tasks = t.Evidence(optimum=1, fisher=1), t.Evidence([1.0, -1.0, 0.0], [3.0, 1.0, 0.5])
    rates = [0, 0.1, 0.25, 0.9, 1]
    hat = t.forget(narrow, wide, rates)
    best, several = t.best_rate(old, prior, task), t.best_rate(narrow, wide, tasks)
    space = t.Space.shared(dimension=50, learners=5)
    sizes = [2250] * 19
    c1, c2 = t.cover_c1(sizes, space, delta=0.05), t.cover_c2(2250, space, delta=0.05)
    bound = t.plasticity_bound(t.quadratic_flatness(curvature=1, radius=0.3), [0.1] * 19, c1)
    return {
        "forget": hat.m,
        "forget, z": hat.log_z,
        "target": t.target(narrow, wide, tasks, 0.25).mode,
        "predictive": [t.log_predictive(old, prior, task, b) for b in (0.0, 0.3, 0.75)],
        "slope": [t.log_predictive_slope(old, prior, task, b) for b in (0.1, 0.75)],
        "best": [best.beta, best.excess, several.beta],
        "af1": t.minimiser(old, task, t.lambdas_af1(0.25), t.expanded_af1(prior)),
        "af2": t.minimiser(old, task, t.lambdas_af2(0.25), t.expanded_af2(prior, task)),
        "back": np.concatenate([np.ravel(part) for part in t.forgetting_af1(lambda_sp=6, lambda_af=2)]),
        "covers": [c1.total, c2.total, t.single_cover(2250 * 19, 50, delta=0.05)],
        "bound": list(bound.terms.values()),
        "norms": [t.r1(5, 50, sizes, 0.05), t.r2(5, 50, 2250, 0.05)],
        "remembered": t.fisher_remembered([[1.0, 2.0], [0.5, 3.0], [4.0, 0.1]], 0.3),
    }  # fmt: skip


def measures(bench: Bench) -> Values:
    from kenyon import metrics as m

    matrix = 50 + 50 * noise(5, 5).astype(np.float64)
    p = torch.softmax(torch.from_numpy(noise(3, 20, 4)), -1)
    summary = m.Summary.of([1.0, 2.5, float("nan"), 3.25])
    assert summary is not None
    return {
        "transfer": [
            m.average_accuracy(matrix),
            m.forward_transfer(matrix, matrix[0]),
            m.backward_transfer(matrix),
            m.learning_accuracy(matrix),
        ],
        "curve": m.average_curve(matrix),
        "expertise": m.expertise(matrix),
        "diversity": torch.stack(m.prediction_diversity(p)),
        "summary": [summary.mean, summary.sem, summary.count],
        "text": Exact(summary.text()),
    }


def figure(bench: Bench) -> Values:
    """Fig. 3b of the paper, which needs no runs."""
    command("reproduce", "fig3b", "--out", bench.folder)
    found = {path.name: numbers_of(json.loads(path.read_text())) for path in sorted(bench.folder.rglob("*.json"))}
    return {f"{file}: {name}": value for file, body in found.items() for name, value in body.items()}


add("numbers/theory", theory, quick=True, cpu_only=True)
add("numbers/metrics", measures, quick=True, cpu_only=True)
add("numbers/fig3b", figure, cpu_only=True)
