"""Stability protection in Avalanche: a plug-in for its supervised strategies.

from kenyon.integrations.avalanche import ProtectionPlugin

plugin = ProtectionPlugin("ewc", strength=1e4, exclude="classifier")
strategy = Naive(model=model, optimizer=optimizer, plugins=[plugin], ...)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from kenyon.errors import optional_import
from kenyon.methods.importance import GradientImportance, Merge
from kenyon.methods.path_importance import PathImportance
from kenyon.regularizers.parameters import Excluded
from kenyon.regularizers.protection import Protection

with optional_import("ProtectionPlugin", "avalanche", "avalanche"):
    from avalanche.models.utils import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin

MEASURED_AT_ONCE = 256  # samples read together; importance is measured in batches of its own size


class ProtectionPlugin(SupervisedPlugin):
    """Adds the penalty to the loss, and consolidates after every experience.

    Arguments as of `Protection`. Exclude the classifier where it grows with the experiences.
    """

    def __init__(
        self,
        importance: str | GradientImportance | PathImportance = "ewc",
        *,
        strength: float,
        exclude: Excluded = (),
        accumulate: Merge | None = None,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "importance": importance,
            "strength": strength,
            "exclude": exclude,
            "accumulate": accumulate,
        }
        self.protection: Protection | None = None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if self.protection is None:
            self.protection = Protection(strategy.model, **self.settings)
        self.protection.track(strategy.optimizer)

    def before_backward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        assert self.protection is not None
        strategy.loss = strategy.loss + self.protection()

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        assert self.protection is not None
        dataset = strategy.experience.dataset
        loader = DataLoader(dataset, batch_size=MEASURED_AT_ONCE, collate_fn=getattr(dataset, "collate_fn", None))
        self.protection.consolidate(loader, _predict)


def _predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Batches are (inputs, labels, ..., task labels); models with a head a task are told the task."""
    return avalanche_forward(model, batch[0], batch[-1]), batch[1]
