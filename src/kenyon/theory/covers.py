"""C_1 and C_2 of Proposition 1: what the size of the parameter space adds to the two generalisation bounds.

Two forms of the same quantity are in the text. "stated" is Proposition 1's:

    C = max_i sqrt((d_i ln(N/d_i) + ln(2K/delta)) / N) + sqrt((d ln(N/d) + ln(2/delta)) / N)

with N the samples of the old tasks together for C_1 and those of the new task for C_2. "proof" is what S42 and S46
end with: 2N instead of N in the first root, as Lemma 4 gives it, and in C_2 ln(1/delta) in the second root. The first
is sharper and follows, the second is a slip: S44, which it comes from, has ln(2/delta). (S39 and S40 have N_t where
S27 and S42 have the old tasks' number of samples; the latter is used here.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Literal

from kenyon.errors import ConfigError, unknown
from kenyon.theory.checks import confidence, count, number

Form = Literal["stated", "proof"]


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


def cover_c1(old_samples: Sequence[int], space: Space, delta: float, form: Form = "stated") -> Cover:
    """Of the bound on learning plasticity, from the samples of every old task."""
    return _cover(total_samples(old_samples), space, delta, form, slip=False)


def cover_c2(new_samples: int, space: Space, delta: float, form: Form = "stated") -> Cover:
    """Of the bound on memory stability, from the samples of the new task."""
    return _cover(count("new_samples", new_samples), space, delta, form, slip=True)


def single_cover(samples: int, dimension: float, delta: float) -> float:
    """2 sqrt((d ln(N/d) + ln(2/delta)) / N), Proposition 4: C_1 and C_2 as stated, for K = 1."""
    return 2 * _root(dimension, count("samples", samples), log(2 / confidence("delta", delta)))


def learners_tighten(samples: int, space: Space) -> bool:
    """Whether C as stated is below that of one learner with the union's dimension, at any delta.

    The text concludes it from d_i < d. What it takes is max_i d_i ln(N/d_i) + ln K < d ln(N/d): splitting pays
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
    """K of Lemma 4, where it can be counted."""
    exponent = log_balls(diameter, radius, parameters)
    if exponent > 300:
        raise ConfigError(f"K = exp({exponent:.4g}) is too large to count; log_balls gives its logarithm.")
    return max(1, ceil((diameter / radius) ** parameters))


def total_samples(old_samples: Sequence[int]) -> int:
    if not len(old_samples):
        raise ConfigError("old_samples must name the samples of one old task at least: before it there is no bound.")
    return sum(count("old_samples", n) for n in old_samples)


def _cover(N: int, space: Space, delta: float, form: Form, *, slip: bool) -> Cover:
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
