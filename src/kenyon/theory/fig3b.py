"""The numbers of Fig. 3b, and of what the text says of the rate beside it: Eq. 5 and the two strengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kenyon.errors import ConfigError
from kenyon.theory.best_rate import best_rate
from kenyon.theory.checks import Array, count, finite, number, rate
from kenyon.theory.forgetting import forget
from kenyon.theory.gaussian import Evidence, Gaussian
from kenyon.theory.lambdas import lambdas_af1, lambdas_af2
from kenyon.theory.predictive import log_predictive

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
