"""Backbones of every kind under every kind of method: they train on a CPU and on a GPU alike, or are refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from kenyon.data import Classes, from_arrays
from kenyon.data.tasks import Stream
from kenyon.errors import ConfigError, KenyonError
from kenyon.methods import find_method
from kenyon.models import Net
from kenyon.training import Trainer, Training
from tests.backends.zoo import ZOO, samples

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

METHODS = ("finetune", "ewc", "mas", "si", "caf-ewc", "er")
STRENGTHS = {"lambda_sp": 3.0, "lambda_af": 1e-3, "gamma": 0.1}
# SGD, and not Adam, whose steps have the size of the rate also where a gradient is rounding alone.
TRAINING = Training(
    epochs=2, batch=8, rate=0.02, validation=0.0, schedule="step", drop_epoch=1, optimiser="sgd", momentum=0.5
)
USABLE = [name for name, backbone in ZOO.items() if not backbone.refused]


def stream_of(name: str) -> Stream:
    """Two tasks of two classes; the batches of a task are not all full."""
    x, y = samples(name, 60), torch.arange(60) % 4
    inputs = x.numpy()
    return from_arrays(inputs, y.numpy(), Classes(2), test=0.34).stream(0)


def trainer_of(
    name: str, method_name: str, device: str = "cpu", dtype: torch.dtype | None = None, *, dropout: bool = True
) -> Trainer:
    backbone, stream = ZOO[name], stream_of(name)
    spec = find_method(method_name)
    method = spec({n: v for n, v in STRENGTHS.items() if n in spec.required})

    def build(learned: dict[str, tuple[int, ...]], dtype: torch.dtype | None) -> Net:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)  # of parts that are frozen
            module = backbone.build()
        return Net(
            module,
            stream.input_shape,
            stream.class_counts,
            input_dtype=stream.input_dtype,
            learners=3 if method.multi else 1,
            learned=learned,
            diversity="high" if dropout else "low",
            device=device,
            dtype=dtype,
            in_place=stream.in_place,
        )

    bare = build({}, dtype)
    return Trainer(build(method.learned(bare), bare.dtype), [stream], method, TRAINING)


def trained(trainer: Trainer) -> list[Tensor]:
    """The losses of the last steps of all epochs."""
    losses: list[Tensor] = []

    def watch(at: Trainer) -> bool:
        if at.position.epoch:  # behind the last one, importances were measured
            losses.append(at.engine.loss.clone())
        return False

    trainer.run(watch)
    assert trainer.live == [0], "diverged"
    assert torch.isfinite(trainer.theta).all()
    return losses


@pytest.mark.parametrize("name", USABLE)
def test_every_backbone_trains_under_every_method(name: str) -> None:
    for method in METHODS:
        try:
            trainer = trainer_of(name, method)
        except ConfigError as error:  # before anything is trained
            assert method == "er" and "BatchNorm" in str(error), (method, error)
            continue
        first = trainer.theta.clone()
        losses = trained(trainer)
        assert len(losses) == 2 * TRAINING.epochs, method
        for part in trainer.net.backbone_names:  # each of them has learned
            before, after = (trainer.net.layout.view(rows, part) for rows in (first, trainer.theta))
            assert ZOO[name].idle(part) or not torch.equal(before, after), (method, part)
        if trainer.method.importance is not None:
            assert torch.isfinite(trainer.importance).all() and trainer.importance.any(), method


@pytest.mark.parametrize("name", [name for name in ZOO if name not in USABLE])
def test_a_backbone_that_cannot_be_used_is_refused_before_training(name: str) -> None:
    with pytest.raises(KenyonError, match=ZOO[name].refused):
        trainer_of(name, "ewc")


@contextmanager
def exact_float32() -> Iterator[None]:
    """Not TF32, which convolutions on a GPU compute in otherwise."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def assert_close(found: Tensor, expected: Tensor, what: object, tolerance: float = 2e-3) -> None:
    """By their norms: a sum that cancels may round to anything."""
    difference = float(torch.linalg.vector_norm(found.cpu().double() - expected.double()))
    assert difference <= tolerance * float(torch.linalg.vector_norm(expected.double())) + 1e-7, (what, difference)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", USABLE)
def test_every_backbone_trains_on_a_gpu_as_on_a_cpu(name: str) -> None:
    """In float32 without dropout the losses and importances of a CPU; at the default precision, with it, any."""
    for method in METHODS:
        try:
            on_cpu = trainer_of(name, method, dropout=False)
        except ConfigError as error:
            with pytest.raises(ConfigError, match=str(error)[:20]):
                trainer_of(name, method, "cuda")
            continue
        expected = trained(on_cpu)
        with exact_float32():
            on_gpu = trainer_of(name, method, "cuda", torch.float32, dropout=False)
            found = trained(on_gpu)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The backbone cannot compute in bfloat16")
            trained(trainer_of(name, method, "cuda"))
        if ZOO[name].always:
            continue
        assert_close(torch.cat(found), torch.cat(expected), (method, "losses"))
        assert_close(on_gpu.theta, on_cpu.theta, (method, "weights"))
        if on_cpu.method.importance is not None:
            assert_close(on_gpu.importance, on_cpu.importance, (method, "importance"), 3e-2)
