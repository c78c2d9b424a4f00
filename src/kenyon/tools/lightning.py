"""Stability protection in PyTorch Lightning: a callback, without a change to the module that is trained.

from kenyon.tools.lightning import ProtectionCallback

callback = ProtectionCallback("ewc", strength=1e4, exclude="head")
for loader in tasks:
    Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)     # one fit a task, the same callback
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from kenyon.errors import ConfigError, optional_import
from kenyon.importance import GradientImportance, Merge
from kenyon.tools.batches import Predict, inputs_and_labels
from kenyon.tools.parameters import Excluded, bare, listed
from kenyon.tools.protection import Protection, find_definition
from kenyon.tracked import PathImportance

with optional_import("ProtectionCallback", "lightning", "lightning"):
    from lightning.pytorch.callbacks import Callback


class ProtectionCallback(Callback):
    """Adds the penalty to the loss before it goes backward, and consolidates when a fit ends.

    Arguments as of `Protection`; names to exclude are the module's, such as net.head. It is part of Lightning's
    checkpoints. A module that optimises by hand adds `callback.protection()` to its loss itself.
    """

    def __init__(
        self,
        importance: str | GradientImportance | PathImportance = "ewc",
        *,
        strength: float,
        exclude: Excluded = (),
        accumulate: Merge | None = None,
        predict: Predict = inputs_and_labels,
        consolidate: bool = True,
    ) -> None:
        """`consolidate=False`: to call `callback.protection.consolidate(loader)` oneself, for example after the best
        weights were loaded.
        """
        super().__init__()
        self.definition = find_definition(importance, accumulate)
        self.excluded = listed(exclude)
        self.settings: dict[str, Any] = {
            "importance": self.definition,
            "strength": strength,
            "exclude": self.excluded,
        }
        self.predict, self.consolidate = predict, consolidate
        self.protection: Protection | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if self.protection is None:
            self.protection = Protection(pl_module, **self.settings)
        elif self.protection.chosen.model is not bare(pl_module):
            raise ConfigError("This ProtectionCallback protects another module. Make a new one for each module.")

    @property
    def state_key(self) -> str:
        """Several callbacks of one trainer need several: by what they measure, and what they leave out."""
        excluded = [name if isinstance(name, str) else type(name).__name__ for name in self.excluded]
        return self._generate_state_key(importance=self.definition.name, exclude=excluded)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        assert self.protection is not None
        if self.consolidate and self.protection.path is None:
            _check_single(trainer.train_dataloader)
        self.protection.track(*trainer.optimizers)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """The loss is scaled by now, and divided among the batches that make up one step."""
        if not pl_module.automatic_optimization:
            return
        assert self.protection is not None
        penalty = self.protection() / trainer.accumulate_grad_batches
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        loss.add_(penalty if scaler is None else scaler.scale(penalty))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.protection is not None
        if self.consolidate:
            self.protection.consolidate(trainer.train_dataloader, self.predict)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A state that was saved under another key, before there were several or with other arguments, is looked at
        too: it says itself whether it fits. Lightning would leave it out with a warning.
        """
        states, taken = checkpoint["callbacks"], {callback.state_key for callback in trainer.callbacks}
        mine = [key for key in states if str(key).startswith(type(self).__qualname__) and key not in taken]
        if self.state_key not in states and len(mine) == 1:
            states[self.state_key] = states.pop(mine[0])

    def state_dict(self) -> dict[str, Any]:
        return {} if self.protection is None else self.protection.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            assert self.protection is not None  # Lightning sets callbacks up first
            self.protection.load_state_dict(state_dict)


def _check_single(loader: Any) -> None:
    """Before the training, so that it is not in vain."""
    if isinstance(loader, (Mapping, list, tuple)):
        raise ConfigError(
            f"Importance is measured on the batches of one loader, and this fit has {len(loader)} of them. Make the "
            "callback with consolidate=False, and call callback.protection.consolidate(loader) after every fit."
        )
