"""The generalisation bounds of Propositions 1 to 4, term by term.

**Bounds.** `plasticity_bound` on the new task and `stability_bound` on the old ones (Eq. 13) bound how much worse the
learned solution is than the best one, with probability 1 - delta, for losses in [0, 1]. They have the same form. The
first has the flatness of the *old* tasks' loss and C_1, the second that of the *new* task's and C_2; both have the
H-divergence between task distributions (Definition 1, S12).

**Covers.** C_1 and C_2 of Proposition 1 are what the size of the parameter space adds. The text has two forms.
"stated" is Proposition 1's:

    C = max_i sqrt((d_i ln(N/d_i) + ln(2K/delta)) / N) + sqrt((d ln(N/d) + ln(2/delta)) / N)

with N the samples of the old tasks together for C_1 and those of the new task for C_2. "proof" is what S42 and S46
end with: 2N instead of N in the first root, as Lemma 4 gives it, and in C_2 ln(1/delta) in the second root. The first
is sharper and follows, the second is a slip: S44, which it comes from, has ln(2/delta). (S39 and S40 have N_t where
S27 and S42 have the old tasks' number of samples; the latter is used here.)

**Norms.** r_1 and r_2 of Proposition 2 are the covers as functions of the weights' norm, which active forgetting
shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log1p, sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError, unknown
from kenyon.paper.theory.beliefs import (
    Numbers,
    confidence,
    count,
    not_negative,
    number,
)

CoverForm = Literal["stated", "proof"]


@dataclass(frozen=True)
class Cover:
    """The terms of a cover, by name."""

    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.terms.values())


@dataclass(frozen=True)
class Space:
    """K parameter spaces with VC dimensions d_i, and their union with d."""

    parts: tuple[float, ...]
    union: float

    def __post_init__(self) -> None:
        count("K, the number of learners,", len(self.parts))
        number("the VC dimension d", self.union)
        for part in self.parts:
            number("a learner's VC dimension d_i", part)
        if max(self.parts) > self.union:
            raise ConfigError(
                f"d_i = {max(self.parts):g} is larger than d = {self.union:g} of the union that holds it."
            )
        if self.learners == 1 and self.parts[0] != self.union:
            raise ConfigError(
                f"With K = 1, d_1 and d are of the same space: {self.parts[0]:g} and {self.union:g} differ."
            )

    @property
    def learners(self) -> int:
        """K."""
        return len(self.parts)

    @classmethod
    def shared(cls, dimension: float, learners: int) -> Space:
        """A budget d divided evenly among K learners, d_i = d / K. The text asks only for d_i < d."""
        K = count("K, the number of learners,", learners)
        return cls((dimension / K,) * K, dimension)


def cover_c1(old_samples: Sequence[int], space: Space, delta: float, form: CoverForm = "stated") -> Cover:
    """The cover C_1 of the bound on learning plasticity, from the numbers of samples of all old tasks."""
    return _cover(total_samples(old_samples), space, delta, form, slip=False)


def cover_c2(new_samples: int, space: Space, delta: float, form: CoverForm = "stated") -> Cover:
    """The cover C_2 of the bound on memory stability, from the number of samples of the new task."""
    return _cover(count("new_samples", new_samples), space, delta, form, slip=True)


def single_cover(samples: int, dimension: float, delta: float) -> float:
    """2 sqrt((d ln(N/d) + ln(2/delta)) / N), Proposition 4: C_1 and C_2 as stated, for K = 1."""
    return 2 * _root(dimension, count("samples", samples), log(2 / confidence("delta", delta)))


def learners_tighten(samples: int, space: Space) -> bool:
    """True if C as stated is below that of one learner with the union's dimension, at any delta.

    The text concludes it from d_i < d. The condition is max_i d_i ln(N/d_i) + ln K < d ln(N/d): splitting costs
    ln K, and d ln(N/d) itself grows with d only below N / e.
    """
    N = count("samples", samples)
    _check_dimension(space.union, N)
    return max(d * log(N / d) for d in space.parts) + log(space.learners) < space.union * log(N / space.union)


def log_balls(diameter: float, radius: float, parameters: int) -> float:
    """ln K of Lemma 4, K = (diameter / b)^M balls that cover the space, before rounding up to a whole number.

    It depends on the space alone and not on the data, which is the text's argument that number and width of learners
    can be traded regardless of the tasks. With M in the thousands no such K can be built.
    """
    return count("parameters", parameters) * log(number("diameter", diameter) / number("radius", radius))


def balls(diameter: float, radius: float, parameters: int) -> int:
    """K of Lemma 4, where it is small enough to count."""
    exponent = log_balls(diameter, radius, parameters)
    if exponent > 300:
        raise ConfigError(f"K = exp({exponent:.4g}) is too large to count; log_balls gives its logarithm.")
    return max(1, ceil((diameter / radius) ** parameters))


def total_samples(old_samples: Sequence[int]) -> int:
    if not len(old_samples):
        raise ConfigError("old_samples must name the samples of one old task at least: before it there is no bound.")
    return sum(count("old_samples", n) for n in old_samples)


def _cover(N: int, space: Space, delta: float, form: CoverForm, *, slip: bool) -> Cover:
    delta = confidence("delta", delta)
    if form not in ("stated", "proof"):
        raise unknown("form of a cover", form, ("stated", "proof"))
    learners = max(_root(d, N, log(2 * space.learners / delta)) for d in space.parts)
    union = _root(space.union, N, log(2 / delta))
    if form == "proof":
        learners /= sqrt(2)
        union = _root(space.union, N, log(1 / delta)) if slip else union
    return Cover({"largest learner": learners, "union": union})


def _root(d: float, N: int, spare: float) -> float:
    _check_dimension(d, N)
    return sqrt((d * log(N / d) + spare) / N)


def _check_dimension(d: float, N: int) -> None:
    if not 0 < d <= N:
        raise ConfigError(
            f"The VC dimension must be above 0 and at most the number of samples, {N}, not {d:g}: (N/d)^d, which the "
            "bound counts hypotheses with, falls below 1 beyond it."
        )


Form = Literal["literal", "assembled"]


def r1(ratio: float, parameters: int, old_samples: Sequence[int], delta: float) -> float:
    """r_1 of S49, strictly increasing in ratio = |theta|^2 / b^2, with M parameters and all old tasks' samples."""
    return _r(ratio, parameters, total_samples(old_samples), delta)


def r2(ratio: float, parameters: int, new_samples: int, delta: float) -> float:
    """r_2 of S50, with the samples of the new task."""
    return _r(ratio, parameters, new_samples, delta)


def norm_cover(
    ratio: float, parameters: int, samples: int, delta: float, dimension: float | None = None, form: Form = "literal"
) -> Cover:
    """C of Proposition 2 for N samples: of all old tasks for C_1, of the new task for C_2.

    "literal": C = r, as Proposition 2 and its proof say. "assembled": Proposition 4's C is the sum of one root
    from Proposition 3, which becomes r, and one from Lemma 3, which stays and needs the VC dimension d; each of the
    two holds with probability 1 - delta/2. The text says that the advantage of K > 1 still holds in this form, but r
    knows only the whole budget M and not the number of learners.
    """
    if form == "literal":
        return Cover({"norm": _r(ratio, parameters, samples, delta)})
    if form != "assembled":
        raise unknown("form of a norm cover", form, ("literal", "assembled"))
    if dimension is None:
        raise ConfigError("dimension, the VC dimension d, is needed for the assembled form.")
    return Cover(
        {"norm": _r(ratio, parameters, samples, delta / 2), "union": single_cover(samples, dimension, delta) / 2}
    )


def _r(ratio: float, parameters: int, samples: int, delta: float) -> float:
    """sqrt((M ln(1 + ratio (1 + sqrt(ln N / M))^2) + 4 ln(N / delta)) / (N - 1)), without S47's O(1)."""
    ratio = number("ratio = |theta|^2 / b^2", ratio, above_zero=False)
    M, N = count("parameters", parameters), count("samples", samples, least=2)
    size = M * log1p(ratio * (1 + sqrt(log(N) / M)) ** 2)
    return sqrt((size + 4 * log(N / confidence("delta", delta))) / (N - 1))


@dataclass(frozen=True)
class Bound:
    """A generalisation bound, term by term."""

    flatness: float
    discrepancy: float
    cover: Cover

    @property
    def terms(self) -> dict[str, float]:
        inside = {f"cover, {name}": value for name, value in self.cover.terms.items()}
        return {"flatness": self.flatness, "discrepancy": self.discrepancy, **inside}

    @property
    def total(self) -> float:
        return self.flatness + self.discrepancy + self.cover.total

    @property
    def vacuous(self) -> bool:
        """True if the bound is trivial: losses in [0, 1] never differ by more."""
        return self.total >= 1


def plasticity_bound(flatness_old: float, divergences: Numbers, c1: Cover) -> Bound:
    """The bound on E_new(learned) - min E_new, from Div(D_k, D_t) for every old task k."""
    return _bound("flatness_old", flatness_old, divergences, c1)


def stability_bound(flatness_new: float, divergences: Numbers, c2: Cover) -> Bound:
    """The bound on E_old(learned) - min E_old, from Div(D_t, D_k) for every old task k. Div is symmetric."""
    return _bound("flatness_new", flatness_new, divergences, c2)


def quadratic_flatness(curvature: float, radius: float) -> float:
    """min of the worst risk within radius b, minus min of the risk, of a quadratic risk: 1/2 curvature b^2.

    curvature is the largest eigenvalue of the Hessian; the worst step goes along it, wherever the minimum lies.
    """
    return 0.5 * number("curvature", curvature, above_zero=False) * number("radius", radius, above_zero=False) ** 2


def _bound(name: str, flatness: float, divergences: Numbers, cover: Cover) -> Bound:
    apart = not_negative("divergences", divergences)
    if not apart.size or (apart > 2).any():
        raise ConfigError("divergences must have a number from 0 to 2 for every old task, as the H-divergence is.")
    return Bound(number(name, flatness, above_zero=False), float(apart.mean()), cover)


def h_divergence(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """2 sup_h |P_1(I(h)) - P_2(I(h))| over finitely many hypotheses and samples; between 0 and 2.

    first is (H, N_1) and second (H, N_2): predictions, 0 or 1, of hypothesis h for sample n of either distribution.
    """
    one, two = _predictions(first, "first"), _predictions(second, "second")
    if len(one) != len(two):
        raise ConfigError(f"first and second must be of the same hypotheses, not of {len(one)} and {len(two)}.")
    return 2 * float(np.abs(one.mean(1) - two.mean(1)).max())


def _predictions(value: npt.ArrayLike, name: str) -> npt.NDArray[np.bool_]:
    found = np.asarray(value)
    if found.ndim != 2 or not found.size or not np.isin(found, (0, 1)).all():
        raise ConfigError(f"{name} must be an array (hypotheses, samples) of 0 and 1, with one of each at least.")
    return found.astype(np.bool_)


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
    """The two bounds by learners, flatness and norm as plain numbers and lists, ready for JSON.

    Tasks and samples are those of R-CIFAR-100 after its last task. The VC dimension is not: the bounds are vacuous
    for a network with more parameters than samples, so this is a smaller model, with as many parameters as
    dimensions. Learners share the dimension evenly, and the old tasks are equally far from the new one.
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
        return {"learners": K, "plasticity": _as_dict(both[0]), "stability": _as_dict(both[1])}

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


def _as_dict(bound: Bound) -> dict[str, Any]:
    return {"terms": bound.terms, "total": bound.total, "vacuous": bound.vacuous}
