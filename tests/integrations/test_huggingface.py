"""The Trainer of transformers, and Accelerate in a loop of one's own, against the same training in a plain loop."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from kenyon.errors import ConfigError, ResultsError
from kenyon.regularizers import Protection
from tests.regularizers.small import classifier, moved, vectors

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # the programs' advice

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from kenyon.integrations.huggingface import ProtectedTrainer, ProtectionMixin  # noqa: E402

STRENGTH = 300.0


class Rows(Dataset[Any]):
    def __init__(self, samples: int, seed: int = 0) -> None:
        self.x, self.y = vectors(samples, seed)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i], "labels": int(self.y[i])}


class Plain(nn.Module):
    """Means over a batch, which the Trainer divides by the accumulation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = classifier()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


class Scaling(Plain):
    """Takes the number of samples of a step, so that the Trainer divides by nothing."""

    def forward(
        self, x: Tensor, labels: Tensor | None = None, num_items_in_batch: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        found = super().forward(x, labels)
        if labels is not None and num_items_in_batch is not None:
            found["loss"] = F.cross_entropy(found["logits"], labels, reduction="sum") / num_items_in_batch
        return found


class Gradients(TrainerCallback):  # type: ignore[misc]
    """The gradient of the first step, before the optimizer."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        if not self.found:
            self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def arguments(out: Path, **more: Any) -> Any:
    usual = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "max_grad_norm": 0.0}
    usual |= {"optim": "sgd", "learning_rate": 0.2, "lr_scheduler_type": "constant", "weight_decay": 0.0}
    usual |= {"per_device_train_batch_size": 4, "dataloader_pin_memory": False, "logging_strategy": "no"}
    return TrainingArguments(str(out), **{**usual, **more})


def unshuffled(trainer: type[Any]) -> type[Any]:
    class Unshuffled(trainer):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *args: Any) -> Any:
            return None

    return Unshuffled


@pytest.mark.parametrize("model", [Plain, Scaling])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("custom_loss", [False, True])
@pytest.mark.parametrize("clipped", [0.0, 0.05])
def test_the_gradients_of_a_step(
    model: type[Plain], accumulation: int, custom_loss: bool, clipped: float, tmp_path: Path
) -> None:
    """The mean loss over all samples of the step and the penalty once, whichever part divides by the accumulation."""
    torch.manual_seed(0)
    trained = model()
    protection = Protection(trained, "ewc", strength=STRENGTH, exclude="net.head")
    x, y = vectors(24, seed=1)
    protection.consolidate([{"x": x, "labels": y}], lambda m, b: (m(b["x"])["logits"], b["labels"]))
    moved(trained)
    expected = copy.deepcopy(trained)
    data = Rows(4 * accumulation)
    (F.cross_entropy(expected.net(data.x), data.y)).backward()
    for name, p in expected.named_parameters():
        if name in protection.anchor:
            assert p.grad is not None
            p.grad += STRENGTH * protection.importance[name] * (p.detach() - protection.anchor[name])
    if clipped:
        torch.nn.utils.clip_grad_norm_(expected.parameters(), clipped)

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return F.cross_entropy(outputs["logits"], labels, reduction="sum") / (num_items_in_batch or len(labels))

    seen = Gradients()
    args = arguments(tmp_path, max_steps=1, gradient_accumulation_steps=accumulation, max_grad_norm=clipped)
    more = {"compute_loss_func": compute_loss} if custom_loss else {}
    unshuffled(ProtectedTrainer)(
        model=trained, args=args, train_dataset=data, protection=protection, callbacks=[seen], **more
    ).train()
    for name, p in expected.named_parameters():
        torch.testing.assert_close(seen.found[name], p.grad, rtol=1e-5, atol=1e-7)
    assert protection.tasks == 2


def test_a_model_of_transformers(tmp_path: Path) -> None:
    """The penalty's share of the gradient, with accumulation and padding of unequal lengths."""
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    first = BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(0)
    rows = [
        {"input_ids": torch.randint(1, 50, (3 + i % 5,), generator=generator), "labels": i % 3} for i in range(24)
    ]

    def collate(some: list[dict[str, Any]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in some], batch_first=True)
        return {
            "input_ids": ids,
            "attention_mask": (ids > 0).long(),
            "labels": torch.tensor([r["labels"] for r in some]),
        }

    found = {}
    for strength in (0.0, STRENGTH):
        model = copy.deepcopy(first)
        protection = Protection(model, "ewc-exact", strength=strength, exclude="classifier")
        once = unshuffled(ProtectedTrainer)(
            model=model, args=arguments(tmp_path, max_steps=2, learning_rate=0.0), train_dataset=rows,
            data_collator=collate, protection=protection,
        )  # fmt: skip
        once.train()
        assert protection.tasks == 1
        moved(model, 0.01)
        seen = Gradients()
        unshuffled(ProtectedTrainer)(
            model=model, args=arguments(tmp_path, max_steps=1, gradient_accumulation_steps=3), train_dataset=rows,
            data_collator=collate, protection=protection, callbacks=[seen], consolidate=False,
        ).train()  # fmt: skip
        found[strength] = seen.found
        if not strength:
            continue
        for name, anchor in protection.anchor.items():
            pull = strength * protection.importance[name] * 0.01
            torch.testing.assert_close(found[strength][name] - found[0.0][name], pull, rtol=1e-3, atol=2e-6)
            assert anchor.shape == pull.shape
    assert max(float(g.abs().max()) for g in found[STRENGTH].values()) > 0


def plainly(importance: str, accumulation: int = 1, epochs: int = 2) -> tuple[nn.Module, Protection]:
    model = Plain()
    protection = Protection(model, importance, strength=1.0 if importance == "si" else STRENGTH, exclude="net.head")
    for seed in (0, 1):
        optimizer = torch.optim.SGD(model.parameters(), 0.2)
        protection.track(optimizer)
        data = Rows(24, seed)
        for _ in range(epochs):
            for start in range(0, 24, 4 * accumulation):
                some = slice(start, start + 4 * accumulation)
                optimizer.zero_grad()
                (F.cross_entropy(model.net(data.x[some]), data.y[some]) + protection()).backward()
                optimizer.step()
        protection.consolidate([(data.x, data.y)], lambda m, b: (m(b[0])["logits"], b[1]))
    return model, protection


@pytest.mark.parametrize("importance", ["ewc", "si"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_tasks_are_those_of_a_plain_loop(importance: str, accumulation: int, tmp_path: Path) -> None:
    expected, reference = plainly(importance, accumulation)
    model = Plain()
    protection = Protection(model, importance, strength=reference.strength, exclude="net.head")
    for seed in (0, 1):
        args = arguments(tmp_path, num_train_epochs=2, gradient_accumulation_steps=accumulation)
        unshuffled(ProtectedTrainer)(
            model=model, args=args, train_dataset=Rows(24, seed), protection=protection
        ).train()
    for name, p in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), p, rtol=1e-4, atol=1e-5)
    for name, tensor in reference.importance.items():
        torch.testing.assert_close(protection.importance[name], tensor, rtol=1e-3, atol=1e-5)


def test_checkpoints_carry_it(tmp_path: Path) -> None:
    """The last one has the task consolidated; one from the middle continues to the same end."""
    model = Plain()
    protection = Protection(model, "si", strength=1.0, exclude="net.head")
    for seed in (0, 1):
        args = arguments(tmp_path / str(seed), num_train_epochs=2, save_strategy="epoch")
        trainer = unshuffled(ProtectedTrainer)(
            model=model, args=args, train_dataset=Rows(24, seed), protection=protection
        )
        trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    for resumed, trains in (("checkpoint-6", True), ("checkpoint-12", False)):
        other = Plain()
        fresh = Protection(other, "si", strength=1.0, exclude="net.head")
        trainer = unshuffled(ProtectedTrainer)(model=other, args=args, train_dataset=Rows(24, 1), protection=fresh)
        trainer.train(resume_from_checkpoint=str(tmp_path / "1" / resumed))
        assert fresh.tasks == 2 and trainer.consolidated
        for name, p in model.named_parameters():
            torch.testing.assert_close(other.get_parameter(name), p)
        for name, tensor in protection.importance.items():
            torch.testing.assert_close(fresh.importance[name], tensor)
        assert trains or all(torch.equal(fresh.anchor[n], a) for n, a in protection.anchor.items())
    from kenyon.integrations.huggingface import FILE, load_protection

    fresh = Protection(Plain(), "si", strength=1.0, exclude="net.head")
    assert load_protection(tmp_path / "saved", fresh) and fresh.tasks == 2
    damaged = tmp_path / "saved" / FILE
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ResultsError, match="damaged"):
        load_protection(tmp_path / "saved", fresh)
    damaged.unlink()
    with pytest.raises(ResultsError, match=r"has no protection\.safetensors"):
        load_protection(tmp_path / "saved", fresh)


def test_what_does_not_fit_is_refused_before_the_training(tmp_path: Path) -> None:
    model = Plain()
    with pytest.raises(ConfigError, match="of another model"):
        ProtectedTrainer(
            model=model, args=arguments(tmp_path), train_dataset=Rows(8), protection=Protection(Plain(), strength=1.0)
        )

    class Odd(Plain):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            found = super().forward(x, labels)
            return {"loss": found["loss"]} if "loss" in found else {}

    odd = Odd()
    before = odd.net.head.weight.clone()
    with pytest.raises(ConfigError, match=r"gives a dict without logits. Give predict="):
        ProtectedTrainer(
            model=odd, args=arguments(tmp_path), train_dataset=Rows(8), protection=Protection(odd, strength=1.0)
        ).train()
    assert torch.equal(odd.net.head.weight, before)


def test_another_trainer(tmp_path: Path) -> None:
    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            return 2 * F.cross_entropy(model(inputs["x"])["logits"], inputs["labels"])

    class Mine(ProtectionMixin, Own):
        pass

    model = Plain()
    protection = Protection(model, strength=1.0)
    Mine(model=model, args=arguments(tmp_path, max_steps=2), train_dataset=Rows(8), protection=protection).train()
    assert protection.tasks == 1


@pytest.mark.parametrize("importance", ["ewc", "si"])
def test_accelerate_in_a_loop_of_ones_own(importance: str) -> None:
    """It divides what goes backward by the accumulation, so that `loss + protection()` counts once a step."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    expected, reference = plainly(importance, accumulation=3)
    model = Plain()
    protection = Protection(model, importance, strength=reference.strength, exclude="net.head")
    for seed in (0, 1):
        data = DataLoader(TensorDataset(*vectors(24, seed)), batch_size=4)
        wrapped, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.2), data)
        protection.track(optimizer)
        for _ in range(2):
            for x, y in loader:
                with accelerator.accumulate(wrapped):
                    accelerator.backward(F.cross_entropy(wrapped(x)["logits"], y) + protection())
                    optimizer.step()
                    optimizer.zero_grad()
        protection.consolidate(loader, lambda m, b: (m(b[0])["logits"], b[1]))
    for name, p in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), p, rtol=1e-4, atol=1e-5)
    for name, tensor in reference.importance.items():
        torch.testing.assert_close(protection.importance[name], tensor, rtol=1e-3, atol=1e-5)
