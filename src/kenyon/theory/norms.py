"""r_1 and r_2 of Proposition 2: the covers as functions of the weights' norm, which active forgetting shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log1p, sqrt
from typing import Literal

from kenyon.errors import ConfigError, unknown
from kenyon.theory.checks import confidence, count, number
from kenyon.theory.covers import Cover, single_cover, total_samples

Form = Literal["literal", "assembled"]


def r1(ratio: float, parameters: int, old_samples: Sequence[int], delta: float) -> float:
    """S49, strictly increasing in ratio = |theta|^2 / b^2, with M parameters and the samples of every old task."""
    return _r(ratio, parameters, total_samples(old_samples), delta)


def r2(ratio: float, parameters: int, new_samples: int, delta: float) -> float:
    """S50, with the samples of the new task."""
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
