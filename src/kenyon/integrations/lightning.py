"""Stability protection in PyTorch Lightning: a callback that needs no change to the module.

from kenyon.integrations.lightning import ProtectionCallback

callback = ProtectionCallback("ewc", strength=1e4, exclude="head")
for loader in tasks:
    Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)     # one fit a task, the same callback
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError, optional_import
from kenyon.methods.importance import GradientImportance, Merge
from kenyon.methods.path_importance import PathImportance
from kenyon.regularizers.measuring import Predict, inputs_and_labels
from kenyon.regularizers.parameters import Excluded, bare, listed
from kenyon.regularizers.protection import Protection, find_definition

# Lightning has two packages with the same content: take the one that the program uses, else the installed one.
OLDER = "pytorch_lightning"
USES_OLDER = "lightning.pytorch" not in sys.modules and (
    OLDER in sys.modules or ("lightning" not in sys.modules and not find_spec("lightning") and bool(find_spec(OLDER)))
)
with optional_import("ProtectionCallback", "lightning", OLDER if USES_OLDER else "lightning"):
    import fsspec  # Lightning reads and writes checkpoints with it

    if USES_OLDER:
        from pytorch_lightning.callbacks import Callback
    else:
        from lightning.pytorch.callbacks import Callback


class ProtectionCallback(Callback):
    """Add the penalty to the loss before backward, and consolidate after the last step of a fit.

    Takes the arguments of `Protection`; names to exclude are those of the module, such as net.head. The protection is
    part of Lightning's checkpoints, and those after the last step have the task consolidated. A module with manual
    optimization adds `callback.protection()` to its loss.
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
        """`consolidate=False`: the caller calls `callback.consolidate_on(trainer)`, for example after loading the
        best weights.
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
        self.consolidated = False  # the task trained last
        self._earlier: dict[str, Any] | None = None  # state before a consolidation, while training may continue
        self._epoch: int | None = None  # Lightning's number of the current epoch
        self._batches = 0  # in the longest epoch of this fit
        self._saved_early: int | None = None  # step of the last checkpoint before the end
        self._checked = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if self.protection is None:
            self.protection = Protection(pl_module, **self.settings)
        elif self.protection.chosen.model is not bare(pl_module):
            raise ConfigError("This ProtectionCallback protects another module. Make a new one for each module.")
        self._earlier, self._epoch, self._saved_early = None, None, None
        self._batches, self._checked = 0, False

    @property
    def state_key(self) -> str:
        """A key by importance and exclusions: several callbacks of one trainer need different ones."""
        excluded = [name if type(name) is str else type(name).__name__ for name in self.excluded]
        return self._generate_state_key(importance=self.definition.name, exclude=excluded)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Move behind callbacks that change weights at the end of training, but before those that save them."""
        others = [callback for callback in trainer.callbacks if callback is not self]
        saving = [callback for callback in others if _saves(callback)]
        trainer.callbacks = [*(callback for callback in others if callback not in saving), self, *saving]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        assert self.protection is not None
        if self.consolidate and self.protection.path is None:
            _check_single(trainer.train_dataloader)
        self.protection.track(*trainer.optimizers)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self.protection is not None
        if self._earlier is not None:  # training continues after an apparent end
            self._undo()
        self.consolidated = False
        self._epoch = trainer.fit_loop.epoch_progress.current.ready
        if self.consolidate and not self._checked:
            with _as_in_training(trainer):
                self.protection.check(batch, self._predict(trainer))
        self._checked = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batches = max(self._batches, batch_idx + 1)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Add the penalty to the loss, which is already scaled and divided among the batches of a step."""
        if not pl_module.automatic_optimization:
            return
        assert self.protection is not None
        penalty = self.protection() / trainer.accumulate_grad_batches
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        loss.add_(penalty if scaler is None else scaler.scale(penalty))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.consolidate:
            self._finish(trainer)
            if self._saved_early == trainer.global_step:
                _save_again(trainer)
        self._earlier = self._epoch = None

    def consolidate_on(self, trainer: Any, loader: Iterable[Any] | None = None) -> None:
        """Consolidate on the batches of a loader as in training, after the transfer hooks of module and data module.
        None: the loader of the fit, within limit_train_batches.
        """
        if self.protection is None:
            raise ConfigError("Nothing was trained with this ProtectionCallback. Fit a module first.")
        if self.protection.path is not None:
            self.protection.consolidate()
            return
        if loader is None:
            # An endless loader is measured on as many batches as were trained on.
            limit = trainer.num_training_batches
            loader = islice(trainer.train_dataloader, self._batches if limit == float("inf") else int(limit))
        with _as_in_training(trainer):
            self.protection.consolidate(_transferred(trainer, loader), self._predict(trainer))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Consolidate before the last checkpoint. Lightning saves it before the end of training."""
        if self.consolidate and self._is_over(trainer):
            self._finish(trainer)
            checkpoint["callbacks"][self.state_key] = self.state_dict()
        elif self._epoch is not None:
            self._saved_early = trainer.global_step

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Also take a single state saved under another key (other arguments), which Lightning would skip with a
        warning; loading checks that it fits.
        """
        states, taken = checkpoint["callbacks"], {callback.state_key for callback in trainer.callbacks}
        unclaimed = [key for key in states if str(key).startswith(type(self).__qualname__) and key not in taken]
        if self.state_key not in states and len(unclaimed) == 1:
            states[self.state_key] = states.pop(unclaimed[0])

    def state_dict(self) -> dict[str, Any]:
        if self.protection is None:
            return {}
        return {**self.protection.state_dict(), "consolidated": self.consolidated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            assert self.protection is not None  # Lightning sets callbacks up first
            self.protection.load_state_dict(state_dict)
            self.consolidated = bool(state_dict.get("consolidated", False))

    def _is_over(self, trainer: Any) -> bool:
        """Return True after the last step of the fit, by the conditions that the loops of Lightning check next."""
        epochs = trainer.fit_loop.epoch_progress.current
        batches = trainer.fit_loop.epoch_loop.batch_progress
        if self._epoch != epochs.ready or batches.current.processed < batches.current.ready:
            return False  # before the first batch of the fit or the epoch, or within a batch
        if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
            return True
        trained = epochs.ready if batches.is_last_batch else epochs.processed
        if trainer.max_epochs != -1 and trained >= trainer.max_epochs:
            return True
        least = trained >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
        return bool(trainer.should_stop and least)

    def _finish(self, trainer: Any) -> None:
        """Consolidate, unless that was done with the current weights."""
        assert self.protection is not None
        if self.consolidated:
            if self._earlier is None or _at_anchor(self.protection):
                return
            self._undo()
        earlier = self.protection.state_dict()
        try:
            self.consolidate_on(trainer)
        except BaseException:
            self._epoch = None  # so that a checkpoint on the error does not try again
            raise
        self.consolidated, self._earlier = True, earlier

    def _undo(self) -> None:
        """Restore the state before the consolidation of this fit."""
        assert self.protection is not None and self._earlier is not None
        self.protection.load_state_dict(self._earlier)
        self.consolidated, self._earlier = False, None

    def _predict(self, trainer: Any) -> Predict:
        """Return `predict` in the precision of the module; in single precision if that is mixed."""
        plugin = trainer.precision_plugin

        def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            with nullcontext() if "mixed" in str(plugin.precision) else plugin.forward_context():
                return self.predict(model, batch)

        return predict


def _saves(callback: Any) -> bool:
    """Return True for callbacks that write checkpoints, which Lightning puts last."""
    return any(kind.__name__ == "Checkpoint" for kind in type(callback).__mro__)


def _save_again(trainer: Any) -> None:
    """Write the checkpoints of the last step again: a callback may have ended the training after them."""
    for saver in filter(_saves, trainer.callbacks):
        if getattr(saver, "save_weights_only", True):
            continue
        paths = {saver.last_model_path, saver.best_model_path, *saver.best_k_models}
        current = [path for path in sorted(paths) if path and _step_of(path) == trainer.global_step]
        for path in trainer.strategy.broadcast(current):
            trainer.save_checkpoint(path)


def _step_of(path: str) -> int | None:
    """Return the step of a checkpoint; None if the file is gone."""
    try:
        with fsspec.open(path, "rb") as file:
            return int(
                torch.load(file, map_location="cpu", weights_only=False)["global_step"]
            )  # written by this process
    except FileNotFoundError:
        return None


def _at_anchor(protection: Protection) -> bool:
    anchor = protection.anchor
    return all(
        torch.equal(p.detach().to(anchor[name]), anchor[name]) for name, p in protection.chosen.named().items()
    )


@contextmanager
def _as_in_training(trainer: Any) -> Iterator[None]:
    """Set the stage that hooks see to training, also at the end of a validation, and enable gradients."""
    stage = trainer.state.stage
    trainer.training = True
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        trainer.state.stage = stage


def _transferred(trainer: Any, loader: Iterable[Any]) -> Iterator[Any]:
    """Transfer batches to the device as the training loop of Lightning does."""
    for batch in loader:
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _check_single(loader: Any) -> None:
    """Raise ConfigError before training for several loaders."""
    if isinstance(loader, (Mapping, list, tuple)):
        raise ConfigError(
            f"Importance is measured on the batches of one loader, and this fit has {len(loader)} of them. Make the "
            "callback with consolidate=False, and call callback.consolidate_on(trainer, loader) after every fit."
        )
