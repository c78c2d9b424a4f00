"""Methods of your own in one file. Run them with `kenyon run digits --method ewc,examples/own_method.py`.

The first is made of parts that exist; the second has a penalty of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.methods import Method, method
from kenyon.methods.importance import fisher_published
from kenyon.methods.penalties import (
    ActiveForgetting1,
    Confidence,
    Force,
    QuadraticPull,
    StabilityProtection,
    Strength,
    Weights,
    per_run,
)
from kenyon.models import Net


@method
def ewc_af1_cpr(lambda_sp: Strength = 1e6, lambda_af: Strength = 1e-6, lambda_cpr: Strength = 0.1) -> Method:
    """EWC with AF-1 and less confident predictions."""
    penalties = (StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af), Confidence(lambda_cpr))
    return Method(fisher_published(), penalties)


@dataclass(frozen=True)
class ForgetUnimportant:
    """strength / 2 * sum of theta^2 / (1 + importance / mean importance): what matters least decays most."""

    strength: Strength

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}  # shapes of parameters that the penalty learns itself

    def value(self, w: Weights) -> Tensor:
        """One number a run, (R,): what is added to the validation loss."""
        theta = w.theta[:, : w.net.layout.protected]
        return self.strength * 0.5 * (self._rates(w) * theta.square()).sum(1)

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        """Its gradient, as pulls that the optimiser applies while it passes over the weights."""
        rates = self._rates(w)
        return [QuadraticPull(per_run(self.strength, w.theta), rates, torch.zeros_like(rates))]

    def _rates(self, w: Weights) -> Tensor:
        return 1 / (1 + w.importance / w.importance.mean(1, keepdim=True).clamp(min=1e-30))  # (R, Pp)


@method
def selective_forgetting(lambda_sp: Strength = 1e6, lambda_af: Strength = 1e-3) -> Method:
    """EWC that forgets unimportant weights."""
    return Method(fisher_published(), (StabilityProtection(lambda_sp), ForgetUnimportant(lambda_af)))
