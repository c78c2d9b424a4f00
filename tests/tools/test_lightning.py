"""The callback in Lightning's own training, against the same training in a plain loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kenyon.errors import ConfigError
from kenyon.tools import Protection
from tests.tools.small import classifier, vectors

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "kenyon.tools.lightning", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'kenyon\[lightning\]'"):
        import kenyon.tools.lightning  # noqa: F401


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
        optimiser = torch.optim.SGD(model.parameters(), 0.2)
        protection.track(optimiser)
        for _ in range(2):
            for number, (x, y) in enumerate(loader):
                with torch.autocast("cpu", torch.float16, enabled=halves):
                    loss = F.cross_entropy(model(x), y)
                ((loss + protection()) / accumulate).backward()
                if (number + 1) % accumulate == 0:
                    optimiser.step()
                    optimiser.zero_grad()
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
    from kenyon.tools.lightning import ProtectionCallback

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

    from kenyon.tools.lightning import ProtectionCallback

    callback = ProtectionCallback("ewc", strength=500.0, exclude="net.head")
    for loader in loaders():
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        made_trainer(callback, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]).fit(module, loader)
    model, _ = plainly("ewc", 500.0, halves=True)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), parameter, rtol=0, atol=2e-3)


def test_a_checkpoint_of_lightning_carries_it(tmp_path: Path) -> None:
    """Stopped in the second task after an epoch; another process goes on from the checkpoint."""
    module = made_module()
    from kenyon.tools.lightning import ProtectionCallback

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
    from kenyon.tools.lightning import ProtectionCallback

    callback = ProtectionCallback(strength=1.0, consolidate=False)
    made_trainer(callback).fit(module, loaders()[0])
    assert callback.protection is not None and callback.protection.tasks == 0
    with pytest.raises(ConfigError, match="protects another module"):
        made_trainer(callback).fit(made_module(), loaders()[0])


def test_several_loaders_are_refused_before_the_training() -> None:
    module = made_module()
    from kenyon.tools.lightning import ProtectionCallback

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
    from kenyon.tools.lightning import ProtectionCallback

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
    from kenyon.tools.lightning import ProtectionCallback

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
