"""Stability protection in Avalanche: a plug-in for supervised strategies.

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

BATCH = 256  # samples that are read at once; importance is measured in batches of its own size


class ProtectionPlugin(SupervisedPlugin):
    """Add the penalty to the loss, and consolidate after every experience.

    Takes the arguments of `Protection`. Exclude a classifier that grows with the experiences.
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
        loader = DataLoader(dataset, batch_size=BATCH, collate_fn=getattr(dataset, "collate_fn", None))
        self.protection.consolidate(loader, _predict)


def _predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels of a batch (inputs, labels, ..., task labels); models with a head per task get the
    task.
    """
    return avalanche_forward(model, batch[0], batch[-1]), batch[1]
