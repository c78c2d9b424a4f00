"""Stability protection in the Trainer of Hugging Face's transformers, and in its subclasses.

from kenyon.regularizers import Protection
from kenyon.integrations.huggingface import ProtectedTrainer

protection = Protection(model, "ewc", strength=1e4, exclude="classifier")
for dataset in tasks:
    ProtectedTrainer(model=model, args=args, train_dataset=dataset, protection=protection).train()
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from kenyon.errors import ConfigError, ResultsError, optional_import
from kenyon.regularizers.measuring import Predict
from kenyon.regularizers.parameters import bare
from kenyon.regularizers.protection import Protection
from kenyon.utils.formats import tensors_intact, write_tensors

with optional_import("ProtectedTrainer", "transformers", "transformers", "accelerate"):
    from transformers import Trainer

FILE = "protection.safetensors"  # in the folder of a checkpoint or model


def logits_and_labels(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels of a model that takes the entries of a batch by name, without `labels`."""
    if "labels" not in batch:
        raise ConfigError(
            f"A batch has {', '.join(batch)} and no labels. Give predict=..., a function of the "
            "model and a batch that returns logits and labels."
        )
    outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
    logits = dict(outputs).get("logits") if hasattr(outputs, "keys") else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"{type(model).__name__} gives a {type(outputs).__name__} without logits. Give predict=..., a function "
            "of the model and a batch that returns logits and labels."
        )
    return logits, batch["labels"]


class ProtectionMixin:
    """Add the penalty once to every step, and consolidate when `train` ends.

        class ProtectedSeq2SeqTrainer(ProtectionMixin, Seq2SeqTrainer): ...

    The Trainer divides the loss by the number of accumulated batches or not, depending on model and version, so
    `loss + protection()` in `compute_loss` may count the penalty once a batch. Here its gradient is added after the
    last batch of a step, before gradients are clipped. Checkpoints and saved models include the protection, and
    resumed training loads it.
    """

    def __init__(
        self,
        *args: Any,
        protection: Protection,
        predict: Predict = logits_and_labels,
        consolidate: bool = True,
        **kwargs: Any,
    ) -> None:
        """`protection`: one for the trainers of all tasks. `predict`: see `Protection.consolidate`.
        `consolidate=False`: the caller calls `consolidate_on`.
        """
        super().__init__(*args, **kwargs)
        self.protection, self.predict, self.consolidate = protection, predict, consolidate
        self.consolidated = False  # the task trained last
        self._checked = False
        me: Any = self
        if protection.chosen.model is not bare(me.model):
            raise ConfigError("This Protection is of another model. Make one of the model that the Trainer trains.")
        if me.is_deepspeed_enabled or me.is_fsdp_enabled:
            raise ConfigError("Protection needs whole parameters: it does not work with DeepSpeed or FSDP.")

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        me: Any = super()
        accelerator = self.accelerator  # type: ignore[attr-defined]
        if not self._checked:
            self.protection.track(self.optimizer)  # type: ignore[attr-defined]
            if self.consolidate:
                self.protection.check(self._prepare_inputs(inputs), self.predict)  # type: ignore[attr-defined]
        self._checked, self.consolidated = True, False
        loss: Tensor = me.training_step(model, inputs, *args, **kwargs)
        if not accelerator.sync_gradients:  # the step has further batches
            return loss
        penalty = self.protection()
        if penalty.requires_grad:
            accelerator.backward(penalty * accelerator.gradient_accumulation_steps)  # backward divides by it
        return loss + penalty.detach().to(loss)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._checked = False
        me: Any = super()
        output = me.train(*args, **kwargs)
        if self.consolidate and not self.consolidated:
            self.consolidate_on()
            self._rewrite()
        return output

    def consolidate_on(self, loader: Iterable[Any] | None = None) -> None:
        """Consolidate on the batches of a loader as the Trainer prepares them; None: the training data."""
        me: Any = self
        if self.protection.path is None and loader is None:
            loader = me.get_train_dataloader()
            if not hasattr(me.train_dataset, "__len__") and me.args.max_steps > 0:  # it may be endless
                loader = islice(loader, me.args.max_steps * me.args.gradient_accumulation_steps)
        prepared = None if loader is None else (me._prepare_inputs(batch) for batch in loader)
        self.protection.consolidate(prepared, self.predict)
        self.consolidated = True

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        me: Any = super()
        self._write(Path(output_dir or self.args.output_dir))  # type: ignore[attr-defined]
        me.save_model(output_dir, *args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        me: Any = super()
        me._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        self.consolidated = load_protection(resume_from_checkpoint, self.protection)

    def _write(self, folder: Path) -> None:
        if self.args.should_save:  # type: ignore[attr-defined]
            folder.mkdir(parents=True, exist_ok=True)
            save_protection(folder, self.protection, consolidated=self.consolidated)

    def _rewrite(self) -> None:
        """Write the protection again to the last checkpoint, which was saved before the consolidation."""
        me: Any = self
        folder = Path(me.args.output_dir) / f"checkpoint-{me.state.global_step}"
        best = me.state.best_model_checkpoint if me.args.load_best_model_at_end else None
        folder = folder if best is None else Path(best)
        if folder.is_dir():
            self._write(folder)


class ProtectedTrainer(ProtectionMixin, Trainer):
    """The Trainer of transformers with the additional arguments of `ProtectionMixin`."""


def save_protection(folder: str | Path, protection: Protection, *, consolidated: bool = True) -> None:
    """Save a protection in the folder of a saved model."""
    head: dict[str, Any] = {"consolidated": consolidated}
    tensors: dict[str, Tensor] = {}
    _flatten(protection.state_dict(), "", head, tensors)
    write_tensors(Path(folder) / FILE, tensors, {"protection": json.dumps(head)})


def load_protection(folder: str | Path, protection: Protection) -> bool:
    """Load a protection from the folder of a model or a checkpoint; return True if its last task is consolidated."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise ResultsError(
            f"{folder} has no {FILE}: it was saved without the protection of the tasks before. Resume from a "
            "checkpoint of a ProtectedTrainer, or load the model's weights and train again."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        whole = tensors_intact(path, metadata["checksum"])
        head = json.loads(metadata["protection"])
    except (SafetensorError, OSError, LookupError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read ({error}). Resume from another checkpoint.") from error
    if not whole:
        raise ResultsError(f"{path} is damaged: its checksum is wrong. Resume from another checkpoint.")
    state: dict[str, Any] = {"importance": {}, "anchor": {}}
    for name, value in [*head.items(), *tensors.items()]:
        *places, last = name.split("|")
        into = state
        for place in places:
            into = into.setdefault(place, {})
        into[last] = value
    protection.load_state_dict(state)
    return bool(head["consolidated"])


def _flatten(state: dict[str, Any], before: str, head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if isinstance(value, dict):
            _flatten(value, f"{before}{name}|", head, tensors)
        elif isinstance(value, Tensor):
            tensors[before + name] = value.detach().cpu().contiguous()
        else:
            head[before + name] = value
