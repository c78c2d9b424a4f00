"""Stability protection in PyTorch Lightning: a callback, without a change to the module that is trained.

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

# Lightning has two packages with the same content: that which the program uses, or else that which is there.
OLDER = "pytorch_lightning"
USES_OLDER = "lightning.pytorch" not in sys.modules and (
    OLDER in sys.modules or ("lightning" not in sys.modules and not find_spec("lightning") and bool(find_spec(OLDER)))
)
with optional_import("ProtectionCallback", "lightning", OLDER if USES_OLDER else "lightning"):
    import fsspec  # which Lightning itself reads and writes checkpoints with

    if USES_OLDER:
        from pytorch_lightning.callbacks import Callback
    else:
        from lightning.pytorch.callbacks import Callback


class ProtectionCallback(Callback):
    """Adds the penalty to the loss before it goes backward, and consolidates when a fit has made its last step.

    Arguments as of `Protection`; names to exclude are the module's, such as net.head. It is part of Lightning's
    checkpoints, and those written after the last step have the task consolidated. A module that optimizes by hand
    adds `callback.protection()` to its loss itself.
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
        """`consolidate=False`: to call `callback.consolidate_on(trainer)` oneself, for example after the best weights
        were loaded.
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
        self.consolidated = False  # the task that was trained last
        self._earlier: dict[str, Any] | None = None  # state before a consolidation, while training may still go on
        self._epoch: int | None = None  # Lightning's count of the epoch whose batches are being trained
        self._batches = 0  # in the longest epoch of this fit
        self._saved_early: int | None = None  # the step of the last checkpoint that was written before the end
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
        """Several callbacks of one trainer need several: by what they measure, and what they leave out."""
        excluded = [name if isinstance(name, str) else type(name).__name__ for name in self.excluded]
        return self._generate_state_key(importance=self.definition.name, exclude=excluded)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Go behind callbacks that change weights when training ends, but before those that save them."""
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
        if self._earlier is not None:  # training goes on after what looked like its end
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
        """The loss is scaled by now, and divided among the batches that make up one step."""
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
        """Consolidate on a loader's batches as training sees them: after the hooks of module and data module that
        batches pass on their way to the device. None: the loader of the trainer's fit, within limit_train_batches.
        """
        if self.protection is None:
            raise ConfigError("Nothing was trained with this ProtectionCallback. Fit a module first.")
        if self.protection.path is not None:
            self.protection.consolidate()
            return
        if loader is None:
            # A loader without an end is measured on as many batches as it was trained on.
            limit = trainer.num_training_batches
            loader = islice(trainer.train_dataloader, self._batches if limit == float("inf") else int(limit))
        with _as_in_training(trainer):
            self.protection.consolidate(_transferred(trainer, loader), self._predict(trainer))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning saves before it ends the training: at the end of the last epoch, of a validation, of a step."""
        if self.consolidate and self._is_over(trainer):
            self._finish(trainer)
            checkpoint["callbacks"][self.state_key] = self.state_dict()
        elif self._epoch is not None:
            self._saved_early = trainer.global_step

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A state that was saved under another key, before there were several or with other arguments, is looked at
        too: it says itself whether it fits. Lightning would leave it out with a warning.
        """
        states, taken = checkpoint["callbacks"], {callback.state_key for callback in trainer.callbacks}
        mine = [key for key in states if str(key).startswith(type(self).__qualname__) and key not in taken]
        if self.state_key not in states and len(mine) == 1:
            states[self.state_key] = states.pop(mine[0])

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
        """Whether the fit has made its last step: what Lightning's loops will find when they look next."""
        epochs = trainer.fit_loop.epoch_progress.current
        batches = trainer.fit_loop.epoch_loop.batch_progress
        if self._epoch != epochs.ready or batches.current.processed < batches.current.ready:
            return False  # no batch was trained since the fit or the epoch began, or one is being trained
        if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
            return True
        trained = epochs.ready if batches.is_last_batch else epochs.processed
        if trainer.max_epochs != -1 and trained >= trainer.max_epochs:
            return True
        least = trained >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
        return bool(trainer.should_stop and least)

    def _finish(self, trainer: Any) -> None:
        """Consolidate, unless that was done for the weights as they are."""
        assert self.protection is not None
        if self.consolidated:
            if self._earlier is None or _at_anchor(self.protection):
                return
            self._undo()
        earlier = self.protection.state_dict()
        try:
            self.consolidate_on(trainer)
        except BaseException:
            self._epoch = None  # a checkpoint of the error shall not try again
            raise
        self.consolidated, self._earlier = True, earlier

    def _undo(self) -> None:
        """Take the state before the consolidation of this fit."""
        assert self.protection is not None and self._earlier is not None
        self.protection.load_state_dict(self._earlier)
        self.consolidated, self._earlier = False, None

    def _predict(self, trainer: Any) -> Predict:
        """In the precision that the module has. Where only operations are in half precision importance is not."""
        plugin = trainer.precision_plugin

        def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            with nullcontext() if "mixed" in str(plugin.precision) else plugin.forward_context():
                return self.predict(model, batch)

        return predict


def _saves(callback: Any) -> bool:
    """Whether it is one of the callbacks that Lightning puts last, since they write checkpoints."""
    return any(kind.__name__ == "Checkpoint" for kind in type(callback).__mro__)


def _save_again(trainer: Any) -> None:
    """Write the checkpoints of the last step anew: a callback may have asked for the end after they were written."""
    for saver in filter(_saves, trainer.callbacks):
        if getattr(saver, "save_weights_only", True):
            continue
        paths = {saver.last_model_path, saver.best_model_path, *saver.best_k_models}
        found = [path for path in sorted(paths) if path and _step_of(path) == trainer.global_step]
        for path in trainer.strategy.broadcast(found):
            trainer.save_checkpoint(path)


def _step_of(path: str) -> int | None:
    """The step that a checkpoint was written at; None where the file is gone."""
    try:
        with fsspec.open(path, "rb") as file:
            return int(torch.load(file, map_location="cpu", weights_only=False)["global_step"])  # this process's own
    except FileNotFoundError:
        return None


def _at_anchor(protection: Protection) -> bool:
    anchor = protection.anchor
    return all(
        torch.equal(p.detach().to(anchor[name]), anchor[name]) for name, p in protection.chosen.named().items()
    )


@contextmanager
def _as_in_training(trainer: Any) -> Iterator[None]:
    """The stage that hooks ask for is that of training, also while a validation ends; gradients can be computed."""
    stage = trainer.state.stage
    trainer.training = True
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        trainer.state.stage = stage


def _transferred(trainer: Any, loader: Iterable[Any]) -> Iterator[Any]:
    """Batches on their way to the device, as in Lightning's training loop."""
    for batch in loader:
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _check_single(loader: Any) -> None:
    """Before the training, so that it is not in vain."""
    if isinstance(loader, (Mapping, list, tuple)):
        raise ConfigError(
            f"Importance is measured on the batches of one loader, and this fit has {len(loader)} of them. Make the "
            "callback with consolidate=False, and call callback.consolidate_on(trainer, loader) after every fit."
        )
