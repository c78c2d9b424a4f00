"""The numbers of a picture of the two bounds: how they move with the learners, the flatness and the weights' norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kenyon.errors import ConfigError
from kenyon.theory.bounds import Bound, plasticity_bound, quadratic_flatness, stability_bound
from kenyon.theory.checks import Numbers, count, not_negative
from kenyon.theory.covers import Cover, Space, cover_c1, cover_c2, single_cover, total_samples
from kenyon.theory.norms import norm_cover

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
