"""The callback in Lightning's own training, against the same training in a plain loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kenyon.errors import ConfigError
from kenyon.regularizers import Protection
from tests.regularizers.small import classifier, vectors

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "kenyon.integrations.lightning", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'kenyon\[lightning\]'"):
        import kenyon.integrations.lightning  # noqa: F401


def loaders() -> list[DataLoader[Any]]:
    return [DataLoader(TensorDataset(*vectors(48, seed)), batch_size=12) for seed in (0, 1)]


def made_module(by_hand: bool = False) -> Any:
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = classifier()
            self.automatic_optimization = not by_hand
            self.callback: Any = None

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch["a"] if isinstance(batch, dict) else batch  # of several loaders, or of one
            loss = F.cross_entropy(self(x), y)
            if by_hand:
                loss = loss + self.callback.protection()
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.2)

    return Module()


def made_trainer(callback: Any, **more: Any) -> Any:
    from lightning.pytorch import Trainer

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(max_epochs=2, callbacks=callback, **quiet, enable_checkpointing=False, **more)


def plainly(
    importance: str, strength: float, accumulate: int = 1, halves: bool = False
) -> tuple[nn.Module, Protection]:
    """The same training, written out."""
    model = classifier()
    protection = Protection(model, importance, strength=strength, exclude="head")
    for loader in loaders():
        optimizer = torch.optim.SGD(model.parameters(), 0.2)
        protection.track(optimizer)
        for _ in range(2):
            for number, (x, y) in enumerate(loader):
                with torch.autocast("cpu", torch.float16, enabled=halves):
                    loss = F.cross_entropy(model(x), y)
                ((loss + protection()) / accumulate).backward()
                if (number + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        protection.consolidate(loader)
    return model, protection


def assert_same(module: Any, callback: Any, expected: tuple[nn.Module, Protection]) -> None:
    model, protection = expected
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), parameter)
    assert callback.protection.tasks == 2
    for name, importance in protection.importance.items():
        torch.testing.assert_close(callback.protection.importance[f"net.{name}"], importance)


@pytest.mark.parametrize(("importance", "strength"), [("ewc", 500.0), ("si", 5.0)])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("by_hand", [False, True])
def test_the_same_as_a_plain_loop(importance: str, strength: float, accumulate: int, by_hand: bool) -> None:
    if by_hand and accumulate > 1:
        pytest.skip("Lightning leaves accumulation to modules that optimise by hand")
    module = made_module(by_hand)
    from kenyon.integrations.lightning import ProtectionCallback

    module.callback = callback = ProtectionCallback(importance, strength=strength, exclude="net.head")
    for loader in loaders():
        made_trainer(callback, accumulate_grad_batches=accumulate).fit(module, loader)
    assert_same(module, callback, plainly(importance, strength, accumulate))
    free = plainly(importance, 0.0, accumulate)[0]
    assert not torch.allclose(module.net.body[0].weight, free.body[0].weight, rtol=1e-2)  # type: ignore[index, union-attr]


def test_a_loss_that_is_scaled() -> None:
    """Mixed precision with a scaler: the penalty is scaled with the loss."""
    module = made_module()
    from lightning.pytorch.plugins.precision import MixedPrecision

    from kenyon.integrations.lightning import ProtectionCallback

    callback = ProtectionCallback("ewc", strength=500.0, exclude="net.head")
    for loader in loaders():
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        made_trainer(callback, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]).fit(module, loader)
    model, _ = plainly("ewc", 500.0, halves=True)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), parameter, rtol=0, atol=2e-3)


def test_a_checkpoint_of_lightning_carries_it(tmp_path: Path) -> None:
    """Stopped in the second task after an epoch; another process continues from the checkpoint."""
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    first, second = loaders()
    callback = ProtectionCallback("si", strength=5.0, exclude="net.head")
    made_trainer(callback).fit(module, first)

    class Stop(type(callback).__bases__[0]):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "half.ckpt")
            raise RuntimeError("the machine is gone")

    from lightning.pytorch import Trainer

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with pytest.raises(RuntimeError, match="gone"):
        Trainer(max_epochs=2, callbacks=[callback, Stop()], **quiet, enable_checkpointing=False).fit(module, second)

    again = made_module()
    fresh = ProtectionCallback("si", strength=5.0, exclude="net.head")
    made_trainer(fresh).fit(again, second, ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    assert_same(again, fresh, plainly("si", 5.0))


def test_another_module_is_refused() -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    callback = ProtectionCallback(strength=1.0, consolidate=False)
    made_trainer(callback).fit(module, loaders()[0])
    assert callback.protection is not None and callback.protection.tasks == 0
    with pytest.raises(ConfigError, match="protects another module"):
        made_trainer(callback).fit(made_module(), loaders()[0])


def test_several_loaders_are_refused_before_the_training() -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    first, second = loaders()
    before = module.net.body[0].weight.clone()
    with pytest.raises(ConfigError, match=r"one loader, and this fit has 2 of them\. .*consolidate=False"):
        made_trainer(ProtectionCallback(strength=1.0)).fit(module, {"a": first, "b": second})
    assert torch.equal(module.net.body[0].weight, before)
    by_hand, si = ProtectionCallback(strength=1.0, consolidate=False), ProtectionCallback("si", strength=1.0)
    for callback in (by_hand, si):
        made_trainer(callback).fit(module, {"a": first, "b": second})
    assert by_hand.protection is not None and si.protection is not None
    by_hand.protection.consolidate(first)
    assert by_hand.protection.tasks == si.protection.tasks == 1


def test_two_callbacks_in_one_trainer(tmp_path: Path) -> None:
    """Each has its own place in a checkpoint."""
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    def both() -> list[Any]:
        return [
            ProtectionCallback("ewc", strength=1.0, exclude="net.head"),
            ProtectionCallback("mas", strength=1.0, exclude="net.body"),
        ]

    then, now = both(), both()
    trainer = made_trainer(then)
    trainer.fit(module, loaders()[0])
    trainer.save_checkpoint(tmp_path / "both.ckpt")
    made_trainer(now).fit(made_module(), loaders()[0], ckpt_path=str(tmp_path / "both.ckpt"), weights_only=True)
    for saved, found in zip(then, now, strict=True):
        assert found.protection.definition == saved.protection.definition
        assert set(found.protection.importance) == set(saved.protection.importance)
        for name, anchor in saved.protection.anchor.items():
            assert torch.equal(found.protection.anchor[name], anchor)


def test_a_state_under_another_key_is_found_and_says_whether_it_fits(tmp_path: Path) -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    path = tmp_path / "one.ckpt"
    callback = ProtectionCallback("ewc", strength=1.0, exclude="net.head")
    trainer = made_trainer(callback)
    trainer.fit(module, loaders()[0])
    trainer.save_checkpoint(path)
    with pytest.raises(ConfigError, match="this protection measures mas"):
        other = made_trainer(ProtectionCallback("mas", strength=1.0, exclude="net.head"))
        other.fit(made_module(), loaders()[0], ckpt_path=str(path), weights_only=True)
    saved = torch.load(path, weights_only=True)
    saved["callbacks"] = {"ProtectionCallback": saved["callbacks"][callback.state_key]}  # once it had no more
    torch.save(saved, path)
    fresh = ProtectionCallback("ewc", strength=1.0, exclude="net.head")
    made_trainer(fresh).fit(made_module(), loaders()[0], ckpt_path=str(path), weights_only=True)
    assert fresh.protection is not None and fresh.protection.tasks >= 1


# ---------------------------------------------------------------------- checkpoints of the end


def fitting(callbacks: list[Any], module: Any, loader: Any, validation: Any = None, **more: Any) -> Any:
    from lightning.pytorch import Trainer

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    path = more.pop("ckpt_path", None)
    trainer = Trainer(callbacks=callbacks, **quiet, num_sanity_val_steps=0, **{"max_epochs": 2, **more})
    trainer.fit(module, loader, validation, ckpt_path=path)
    return trainer


def with_validation(module: Any) -> Any:
    def validation_step(batch: Any, batch_idx: int) -> None:
        module.log("loss", F.cross_entropy(module(batch[0]), batch[1]))

    module.validation_step = validation_step
    return module


def stop_at(step: int, moment: str) -> Any:
    from lightning.pytorch import Callback

    class Stop(Callback):
        def stop(self, trainer: Any) -> None:
            trainer.should_stop = trainer.should_stop or trainer.global_step >= step

    def hook(self: Any, trainer: Any, *_: Any, **__: Any) -> None:
        self.stop(trainer)

    return type("Stop", (Stop,), {moment: hook})()


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of training, and when checkpoints are written
    "epochs": ({}, {}),
    "epochs, every step": ({}, {"every_n_train_steps": 1}),
    "validation": ({}, {"monitor": "loss", "save_on_train_epoch_end": False}),
    "validations within the epoch": ({"val_check_interval": 2}, {"monitor": "loss"}),
    "steps, within an epoch": ({"max_epochs": -1, "max_steps": 6}, {"every_n_train_steps": 3}),
    "steps, by epochs": ({"max_epochs": -1, "max_steps": 6}, {"save_on_train_epoch_end": True}),
    "stopped within an epoch": ({"max_epochs": -1, "stop": (6, "on_train_batch_end")}, {"every_n_train_steps": 1}),
    "stopped by a validation": (
        {"max_epochs": -1, "stop": (6, "on_validation_end"), "val_check_interval": 2},
        {"every_n_train_steps": 2},
    ),
    "stopped by an epoch": ({"max_epochs": 9, "stop": (6, "on_train_epoch_end")}, {"save_on_train_epoch_end": True}),
    "stopped early, at least so many epochs": (
        {"max_epochs": -1, "min_epochs": 2, "stop": (1, "on_train_batch_end")},
        {"every_n_train_steps": 1},
    ),
    "accumulated": ({"accumulate_grad_batches": 3}, {}),
    "time": ({"max_epochs": -1, "max_time": {"milliseconds": 1}}, {"save_on_train_epoch_end": True}),
}


@pytest.mark.parametrize("importance", ["ewc", "si"])
@pytest.mark.parametrize("end", ENDS)
def test_the_last_checkpoint_has_the_task_consolidated(end: str, importance: str, tmp_path: Path) -> None:
    module = with_validation(made_module())
    from lightning.pytorch.callbacks import ModelCheckpoint

    from kenyon.integrations.lightning import ProtectionCallback

    training, saving = (dict(part) for part in ENDS[end])
    stop = [stop_at(*training.pop("stop"))] if "stop" in training else []
    first, second = loaders()
    callback = ProtectionCallback(importance, strength=1.0, exclude="net.head")
    saver = ModelCheckpoint(tmp_path, filename="{step}", save_last=True, save_top_k=-1, **saving)
    trainer = fitting([saver, callback, *stop], module, first, second, **training)
    protection = callback.protection
    assert protection is not None and protection.tasks == 1 and trainer.global_step > 0
    files = {path: torch.load(path, weights_only=True) for path in tmp_path.glob("*.ckpt")}
    assert tmp_path / "last.ckpt" in files
    for path, saved in files.items():
        last = saved["global_step"] == trainer.global_step
        state = saved["callbacks"][callback.state_key]
        if path.name == "last.ckpt":
            assert last
        assert state["tasks"] == int(last) and state["consolidated"] is last, path
        for kind in ("importance", "anchor"):
            expected = getattr(protection, kind) if last else {}
            assert set(state[kind]) == set(expected)
            for name, tensor in expected.items():
                assert torch.equal(state[kind][name], tensor)
    plain = classifier()
    for name, weights in module.net.named_parameters():
        plain.get_parameter(name).data.copy_(weights)
    if importance == "ewc":
        again = Protection(plain, importance, strength=1.0, exclude="head")
        again.consolidate(first)
        for name, tensor in again.importance.items():
            torch.testing.assert_close(protection.importance[f"net.{name}"], tensor)


def test_training_on_from_the_last_checkpoint_is_protected(tmp_path: Path) -> None:
    """The next task from the checkpoint of the one before gives what it gives in one process."""
    module = with_validation(made_module())
    from lightning.pytorch.callbacks import ModelCheckpoint

    from kenyon.integrations.lightning import ProtectionCallback

    first, second = loaders()
    callback = ProtectionCallback("ewc", strength=500.0, exclude="net.head")
    fitting([callback, ModelCheckpoint(tmp_path, save_last=True)], module, first, second)
    fitting([callback], module, second, max_epochs=2, enable_checkpointing=False)
    again, fresh = made_module(), ProtectionCallback("ewc", strength=500.0, exclude="net.head")
    fitting([fresh], again, second, max_epochs=4, enable_checkpointing=False, ckpt_path=tmp_path / "last.ckpt")
    assert fresh.protection is not None and fresh.protection.tasks == 2
    assert_same(again, fresh, plainly("ewc", 500.0))
    assert_same(module, callback, plainly("ewc", 500.0))


def test_a_fit_that_goes_on_after_its_end_is_consolidated_once(tmp_path: Path) -> None:
    module = made_module()
    from lightning.pytorch import Callback

    from kenyon.integrations.lightning import ProtectionCallback

    class Longer(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")
            if trainer.current_epoch == 0:
                trainer.fit_loop.max_epochs = 2

    callback = ProtectionCallback("si", strength=5.0, exclude="net.head")
    for loader in loaders():
        fitting([Longer(), callback], module, loader, max_epochs=1, enable_checkpointing=False)
    assert_same(module, callback, plainly("si", 5.0))


def test_weights_that_change_when_training_ends() -> None:
    """Averaged weights replace those of the last step: they are what is held."""
    module = made_module()
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from kenyon.integrations.lightning import ProtectionCallback

    callback = ProtectionCallback("ewc", strength=1.0)
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=1, annealing_epochs=1)
    fitting([callback, averaging], module, loaders()[0], max_epochs=4, enable_checkpointing=False)
    assert callback.protection is not None and callback.protection.tasks == 1
    for name, anchor in callback.protection.anchor.items():
        assert torch.equal(module.get_parameter(name), anchor)


# ---------------------------------------------------------------------- what importance is measured on


@pytest.mark.parametrize("of", ["module", "data module"])
@pytest.mark.parametrize("validated", [False, True])
def test_importance_is_measured_on_the_inputs_of_training(of: str, validated: bool, tmp_path: Path) -> None:
    module = made_module()
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from kenyon.integrations.lightning import ProtectionCallback

    def doubled(self: Any, batch: Any, index: int) -> Any:
        return [batch[0] * (2 if self.trainer.training else 100), batch[1]]

    def transferred(self: Any, batch: Any, device: Any, index: int) -> Any:
        return [batch[0] * 2.5, batch[1]]

    hooks = {
        "on_before_batch_transfer": doubled,
        "transfer_batch_to_device": transferred,
        "on_after_batch_transfer": doubled,
        "train_dataloader": lambda self: loaders()[0],
    }
    if validated:
        hooks["val_dataloader"] = lambda self: loaders()[1]
        with_validation(module)
    data = None
    if of == "module":
        module.__class__ = type("Hooked", (type(module),), hooks)
    else:
        data = type("Data", (LightningDataModule,), hooks)()
    assert isinstance(module, LightningModule)
    seen: list[Tensor] = []
    module.net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]) if module.net.training else None)
    callback = ProtectionCallback("ewc", strength=1.0, exclude="net.head")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    saver = ModelCheckpoint(tmp_path, save_last=True)
    Trainer(max_epochs=1, callbacks=[callback, saver], num_sanity_val_steps=0, **quiet).fit(module, datamodule=data)
    x, y = vectors(48, 0)
    assert torch.equal(torch.cat(seen[:4]), 10 * x)
    model = classifier()
    for name, weights in module.net.named_parameters():
        model.get_parameter(name).data.copy_(weights)
    expected = Protection(model, "ewc", strength=1.0, exclude="head")
    expected.consolidate([(10 * x, y)])
    for name, tensor in expected.importance.items():
        torch.testing.assert_close(callback.protection.importance[f"net.{name}"], tensor)
    callback.consolidate_on(module.trainer, [(x, y)])
    for name, tensor in expected.importance.items():
        torch.testing.assert_close(callback.protection.importance[f"net.{name}"], tensor)


@pytest.mark.parametrize(
    ("limits", "batches"),
    [({"limit_train_batches": 3}, 3), ({"limit_train_batches": 0.5}, 2), ({"fast_dev_run": 2}, 2), ({}, 4)],
)
def test_no_more_batches_are_measured_than_trained_on(limits: dict[str, Any], batches: int) -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    callback = ProtectionCallback("ewc-exact", strength=1.0)
    measured: list[int] = []

    def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        measured.append(len(batch[0]))
        return model(batch[0]), batch[1]

    callback.predict = predict
    fitting([callback], module, loaders()[0], enable_checkpointing=False, **limits)
    assert sum(measured) == 1 + 12 * batches  # one is looked at before the training


def test_a_loader_without_an_end() -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            x, y = vectors(12)
            while True:
                yield from zip(x, y, strict=True)

    callback = ProtectionCallback("ewc", strength=1.0)
    loader = DataLoader(Endless(), batch_size=12)
    fitting([callback], module, loader, enable_checkpointing=False, max_epochs=-1, max_steps=5)
    expected = Protection(module, "ewc", strength=1.0)
    expected.consolidate([vectors(12)] * 5)
    for name, tensor in expected.importance.items():
        torch.testing.assert_close(callback.protection.importance[name], tensor)


@pytest.mark.parametrize("what", ["dictionaries", "no forward", "other outputs"])
def test_what_cannot_be_measured_is_refused_before_the_training(what: str) -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    loader: Any = loaders()[0]
    net, told = module.net, "Say with predict="
    if what == "dictionaries":
        loader = DataLoader([{"x": x, "y": y} for x, y in loader], batch_size=None)  # type: ignore[arg-type]
        module.training_step = lambda batch, batch_idx: F.cross_entropy(net(batch["x"]), batch["y"])
        told = r"\(inputs, labels\), and the loader gives a dict"
    elif what == "no forward":
        module.__class__ = type("Module", (type(module).__bases__[0],), dict(vars(type(module))) | {"forward": None})
        del type(module).forward
        module.training_step = lambda batch, batch_idx: F.cross_entropy(net(batch[0]), batch[1])
    else:
        module.forward = lambda x: (net(x), x)
        module.training_step = lambda batch, batch_idx: F.cross_entropy(net(batch[0]), batch[1])
        told = "gives a tuple and no logits"
    before = net.body[0].weight.clone()
    with pytest.raises(ConfigError, match=told):
        fitting([ProtectionCallback(strength=1.0)], module, loader, enable_checkpointing=False)
    assert torch.equal(net.body[0].weight, before)
    named = {"predict": lambda model, batch: (model.net(batch["x"]), batch["y"])} if what == "dictionaries" else {}
    callback = ProtectionCallback("si" if not named else "ewc", strength=1.0, **named)
    fitting([callback], module, loader, enable_checkpointing=False)
    assert callback.protection is not None and callback.protection.tasks == 1


def test_the_first_look_changes_no_number() -> None:
    """The same random numbers are drawn, and running statistics stay."""
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    found = []
    for consolidate in (True, False):
        module = made_module()
        module.net = classifier(dropout=0.5, norm=True)
        torch.manual_seed(1)
        callback = ProtectionCallback(strength=1.0, consolidate=consolidate)
        fitting([callback], module, loaders()[0], enable_checkpointing=False, max_epochs=1)
        found.append(module.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in found), strict=True))


def test_a_module_in_bfloat16() -> None:
    module = made_module()
    from kenyon.integrations.lightning import ProtectionCallback

    callback = ProtectionCallback("ewc", strength=1.0, exclude="net.head")
    for loader in loaders():
        fitting([callback], module, loader, enable_checkpointing=False, precision="bf16-true")
    assert callback.protection is not None and callback.protection.tasks == 2
    assert all(t.dtype == torch.float32 for t in callback.protection.importance.values())
    assert sum(float(t.sum()) for t in callback.protection.importance.values()) > 0


# ---------------------------------------------------------------------- optimizers, Fabric, the older package


def test_an_optimizer_of_excluded_parts_alone() -> None:
    pytest.importorskip("lightning")
    module = made_module(by_hand=True)
    from kenyon.integrations.lightning import ProtectionCallback

    def training_step(batch: Any, batch_idx: int) -> None:
        loss = F.cross_entropy(module(batch[0]), batch[1]) + module.callback.protection()
        for optimizer in module.optimizers():
            optimizer.zero_grad()
        module.manual_backward(loss)
        for optimizer in module.optimizers():
            optimizer.step()

    module.training_step = training_step
    module.configure_optimizers = lambda: [
        torch.optim.SGD(part.parameters(), 0.2) for part in (module.net.body, module.net.head)
    ]
    module.callback = callback = ProtectionCallback("si", strength=5.0, exclude="net.head")
    for loader in loaders():
        made_trainer(callback).fit(module, loader)
    assert_same(module, callback, plainly("si", 5.0))


@pytest.mark.parametrize("importance", ["ewc", "si"])
def test_modules_and_optimizers_of_fabric(importance: str) -> None:
    pytest.importorskip("lightning")
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    expected = plainly(importance, 5.0)
    model = classifier()
    protection: Protection | None = None
    for loader in loaders():
        wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.2))
        protection = protection or Protection(wrapped, importance, strength=5.0, exclude="head")
        protection.track(optimizer)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                fabric.backward(F.cross_entropy(wrapped(x), y) + protection())
                optimizer.step()
        protection.consolidate(loader)
    assert protection is not None
    for name, parameter in expected[0].named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter)
    for name, tensor in expected[1].importance.items():
        torch.testing.assert_close(protection.importance[name], tensor)


OLDER = """
import sys
sys.modules["lightning"] = None  # as if it were not installed
import torch, torch.nn.functional as F
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from kenyon.integrations.lightning import ProtectionCallback

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

callback = ProtectionCallback("ewc", strength=1.0)
data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(3, (8,))), batch_size=4)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
Trainer(max_epochs=1, callbacks=[callback], accelerator="cpu", **quiet).fit(Module(), data)
print(callback.protection.tasks, float(callback.protection.importance["net.weight"].sum()) > 0)
"""


def test_the_older_package() -> None:
    pytest.importorskip("pytorch_lightning")
    found = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-2:] == ["1", "True"]
