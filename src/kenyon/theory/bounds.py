"""The two bounds of Proposition 1 (Eq. 13), with what each term contributes.

Both bound how much worse the learned solution is than the best one, with probability 1 - delta, for losses in [0, 1]:
`plasticity_bound` on the new task and `stability_bound` on the old ones. They have the same form. The first has the
flatness of the *old* tasks' loss and C_1, the second that of the *new* task's and C_2.
"""

from __future__ import annotations

from dataclasses import dataclass

from kenyon.errors import ConfigError
from kenyon.theory.checks import Numbers, not_negative, number
from kenyon.theory.covers import Cover


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
        """Says nothing: losses in [0, 1] never differ by more."""
        return self.total >= 1


def plasticity_bound(flatness_old: float, divergences: Numbers, c1: Cover) -> Bound:
    """On E_new(learned) - min E_new, from Div(D_k, D_t) for every old task k."""
    return _bound("flatness_old", flatness_old, divergences, c1)


def stability_bound(flatness_new: float, divergences: Numbers, c2: Cover) -> Bound:
    """On E_old(learned) - min E_old, from Div(D_t, D_k) for every old task k; the divergence is symmetric."""
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
