"""Learning without Forgetting: the heads of earlier tasks keep their predictions on the data of the new task."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods.base import Method
from kenyon.methods.penalties.predictions import Predictions
from kenyon.methods.penalties.strength import Strength, check_strength
from kenyon.methods.registry import method

if TYPE_CHECKING:
    from kenyon.models import Net


@dataclass(frozen=True)
class Distillation:
    """strength * T^2 * sum over earlier heads h of the mean over the batch of KL(p_h^T || q_h^T).

    p_h are the predictions of the network that the task found, q_h those of the network in training, both of logits
    divided by the temperature T. It is 0 in the first task. It counts in the validation loss.
    """

    strength: Strength
    temperature: float = 2.0
    needs = frozenset({"teacher"})
    validated = True

    def __post_init__(self) -> None:
        check_strength("lambda_kd", self.strength)
        if not 0 < self.temperature < inf:
            raise ConfigError(f"temperature must be a positive number, not {self.temperature}.")

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, p: Predictions) -> Tensor:
        if p.earlier is None or p.teacher is None:
            return p.weight.new_zeros(p.weight.shape[:-1])
        log_p, log_q = ((logits / self.temperature).log_softmax(-1) for logits in (p.teacher, p.earlier))
        kl = (log_p.exp() * (log_p - log_q)).sum(-1).sum(-2)  # (..., n, B, C) -> (..., B)
        return self.temperature**2 * (kl * p.weight).sum(-1)


@method(family="distillation", cite="Li and Hoiem, 2018 (arXiv:1606.09282)", color="#c47fb0")
def lwf(lambda_kd: Strength = 1.0, temperature: float = 2.0) -> Method:
    """Learning without Forgetting: old heads keep their predictions on new data, by distillation."""
    return Method(penalties=(Distillation(lambda_kd, temperature),))
