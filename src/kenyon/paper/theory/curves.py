"""The numbers of Fig. 3b, and of what the text says of the rate beside it: Eq. 5 and the two strengths.

The numbers of a picture of the two bounds: how they move with the learners, the flatness and the weights' norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kenyon.errors import ConfigError
from kenyon.paper.theory.beliefs import Array, Evidence, Gaussian, Numbers, count, finite, not_negative, number, rate
from kenyon.paper.theory.best_rate import best_rate
from kenyon.paper.theory.bounds import (
    Bound,
    Cover,
    Space,
    cover_c1,
    cover_c2,
    norm_cover,
    plasticity_bound,
    quadratic_flatness,
    single_cover,
    stability_bound,
    total_samples,
)
from kenyon.paper.theory.forgetting import forget, log_predictive
from kenyon.paper.theory.objective import lambdas_af1, lambdas_af2

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def fig3b_data(
    mu: float = 0.0,
    sigma: float = 1.0,
    a: float = 4.0,
    task_optimum: float | None = None,
    task_fisher: float | None = None,
    betas: Sequence[float] = BETAS,
    points: int = 401,
) -> dict[str, Any]:
    """Plain numbers and lists, ready for JSON.

    The caption gives p(theta) = N(mu, sigma^2) and p(theta | D_A) = N(mu + a, sigma^2), so that
    p_hat = N(mu + (1-beta) a, sigma^2) and Z = exp(-beta (1-beta) a^2 / 2 sigma^2). It is silent on p(D_B | theta),
    which the target distribution needs: here its optimum is mu + a/4, and F = 1 / sigma^2 as precise as the others.
    task_fisher = 0 is a task that says nothing, for which the target is p_hat itself.
    """
    spread, n = number("sigma", sigma), count("points", points, least=2)
    middle, away = float(finite("mu", mu)), float(finite("a", a))
    rates = np.atleast_1d(rate("betas", betas))
    if rates.ndim != 1 or not rates.size:
        raise ConfigError("betas must be a list of one forgetting rate at least.")
    prior, old = Gaussian(middle, spread**2), Gaussian(middle + away, spread**2)
    task = Evidence(
        middle + away / 4 if task_optimum is None else task_optimum,
        1 / spread**2 if task_fisher is None else task_fisher,
    )
    forgotten = forget(old, prior, rates)
    targets = forgotten.belief.given(task)
    low, high = sorted((middle, middle + away))
    theta = np.linspace(low - 3.5 * spread, high + 3.5 * spread, n)
    best, curve, below_one = best_rate(old, prior, task), np.linspace(0, 1, n), np.linspace(0, 0.99, n)

    def densities(belief: Gaussian) -> list[Any]:
        """(B, n), or (n,) of one belief."""
        at = np.exp(belief.log_density(theta[(...,) + (None,) * belief.mean.ndim]))  # (n, B) or (n,)
        return _plain(at.T)

    return {
        "settings": {
            "mu": middle,
            "sigma": spread,
            "a": away,
            "task_optimum": float(task.optimum[0]),
            "task_fisher": float(task.fisher[0]),
        },
        "theta": _plain(theta),
        "prior": densities(prior),
        "old": densities(old),
        "likelihood": _plain(np.exp(task.log_likelihood(theta[:, None]))),
        "targets": [
            {
                "beta": b,
                "mean": m,
                "variance": v,
                "forgotten_mean": fm,
                "forgotten_variance": fv,
                "log_z": z,
                "density": d,
            }
            for b, m, v, fm, fv, z, d in zip(
                _plain(rates),
                _plain(targets.mean[:, 0]),
                _plain(targets.variance[:, 0]),
                _plain(forgotten.m[:, 0]),
                _plain(forgotten.v2[:, 0]),
                _plain(forgotten.log_z),
                densities(targets),
                strict=True,
            )
        ],
        "predictive": {
            "beta": _plain(curve),
            "log_probability": _plain(log_predictive(old, prior, task, curve)),
            "best": {
                "beta": best.beta,
                "log_probability": best.log_predictive,
                "gain": best.gain,
                "how": best.how,
                "excess": best.excess,
                "checked": best.checked,
            },
        },
        "lambdas": {
            "beta": _plain(below_one),
            "af1": {name: _plain(value) for name, value in lambdas_af1(below_one)._asdict().items()},
            "af2": {name: _plain(value) for name, value in lambdas_af2(below_one)._asdict().items()},
        },
    }


def _plain(values: Array) -> list[Any]:
    return values.tolist()


CURVATURES = (0.3, 1.0, 3.0)
RADIUS = 0.3  # within which the flatness of the terms is taken, at the middle curvature


def bounds_data(
    dimension: float = 50.0,
    tasks: int = 20,
    samples: int = 2250,
    delta: float = 0.05,
    most_learners: int = 20,
    shown_learners: Sequence[int] = (1, 5),
    divergence: float = 0.1,
    norm_squared: float = 1.0,
    curvatures: Sequence[float] = CURVATURES,
    points: int = 200,
) -> dict[str, Any]:
    """Plain numbers and lists, ready for JSON.

    Tasks and samples are those of R-CIFAR-100 after its last task. The VC dimension is not: the bounds
    say nothing of a network with more parameters than samples, so this is a model small enough for them, with as many
    parameters as dimensions. Learners share the dimension evenly, and the old tasks are equally far from the new one.
    """
    t, N = count("tasks", tasks, least=2), count("samples", samples)
    most, n = count("most_learners", most_learners), count("points", points, least=2)
    if not set(shown_learners) <= set(range(1, most + 1)):
        raise ConfigError(f"shown_learners must be some of 1 to {most}, not {list(shown_learners)}.")
    old, apart = [N] * (t - 1), [divergence] * (t - 1)
    curves = np.atleast_1d(not_negative("curvatures", curvatures))
    flatness = quadratic_flatness(float(np.median(curves)), RADIUS)
    spaces = {K: Space.shared(dimension, K) for K in range(1, most + 1)}
    covers = {K: (cover_c1(old, s, delta), cover_c2(N, s, delta)) for K, s in spaces.items()}

    def parts(K: int) -> dict[str, Any]:
        both = plasticity_bound(flatness, apart, covers[K][0]), stability_bound(flatness, apart, covers[K][1])
        return {"learners": K, "plasticity": _bound(both[0]), "stability": _bound(both[1])}

    radii, size = np.geomspace(0.02, 2.0, n), count("dimension rounded", max(1, round(dimension)))

    def by_radius(bound: Callable[[float, Numbers, Cover], Bound], samples: int) -> list[dict[str, Any]]:
        found = []
        for curvature in curves:
            totals = [
                bound(
                    quadratic_flatness(float(curvature), float(b)),
                    apart,
                    norm_cover(norm_squared / b**2, size, samples, delta),
                ).total
                for b in radii
            ]
            found.append({"curvature": float(curvature), "total": totals, "best": int(np.argmin(totals))})
        return found

    return {
        "settings": {
            "dimension": float(dimension),
            "tasks": t,
            "samples": N,
            "delta": float(delta),
            "divergence": float(divergence),
            "norm_squared": float(norm_squared),
            "flatness": flatness,
        },
        "learners": {
            "K": list(covers),
            "c1": [c.terms for c, _ in covers.values()],
            "c2": [c.terms for _, c in covers.values()],
            "single_c1": single_cover(total_samples(old), dimension, delta),
            "single_c2": single_cover(N, dimension, delta),
        },
        "parts": [parts(K) for K in shown_learners],
        "radius": {
            "b": radii.tolist(),
            "plasticity": by_radius(plasticity_bound, total_samples(old)),
            "stability": by_radius(stability_bound, N),
        },
    }


def _bound(bound: Bound) -> dict[str, Any]:
    return {"terms": bound.terms, "total": bound.total, "vacuous": bound.vacuous}
