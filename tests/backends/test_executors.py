"""One conformance test for all executors: over the zoo, each agrees with the module itself, learner by learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from kenyon.backends import choose_executor, executors
from kenyon.backends.executor import Executor, Pass, Request
from kenyon.backends.layers import Params
from kenyon.backends.torch.module import rebuilt
from kenyon.models import Net, Outputs
from kenyon.random import Noise
from tests.backends.zoo import ZOO, samples

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

K, B, R = 2, 5, 2
PLAIN = [n for n, b in ZOO.items() if not (b.refused or b.always)]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


class Reference(Executor):
    """The slowest executor that is right: the module itself, learner by learner. An executor needs no more."""

    def __init__(self, request: Request) -> None:
        self.module = rebuilt(request.backbone, lambda _, t: torch.empty_like(t, device=request.device))
        self.constants = {name: value.to(request.device) for name, value in request.constants.items()}

    @classmethod
    def for_backbone(cls, request: Request) -> Reference:
        return cls(request)

    def noise_size(self, batch: int) -> int:
        return 0

    def forward(self, params: Params, images: Tensor, noise: object, *, rows: Tensor | None = None) -> Tensor:
        self.module.eval()
        learners = {n: p.unbind() for n, p in params.items()}
        each = ({n: p[k] for n, p in learners.items()} for k in range(K))
        return torch.stack([functional_call(self.module, self.constants | mine, (images,)) for mine in each])


def net_of(name: str, device: str) -> Net:
    backbone = ZOO[name]
    dtype = torch.int64 if backbone.tokens else torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = backbone.build()
    return Net(module, backbone.shape, (2, 2), input_dtype=dtype, learners=K, device=device, dtype=torch.float32)


def supported(net: Net) -> list[Executor]:
    """The executors that the device has for it; and Stacked, which a CPU can compute, but slowly."""
    request = request_of(net)
    found = [kind.for_backbone(request) for kind in executors()]
    there = [executor for executor in found if executor is not None]
    if any(type(executor).__name__ == "Looped" for executor in there):
        stacked = next(kind for kind in executors() if kind.__name__ == "Stacked")
        there.append(stacked(net.backbone, net.input_shape, K))  # type: ignore[call-arg]
    return there


def request_of(net: Net) -> Request:
    where = (net.device, net.dtype, net.features, net._constants)
    return Request(net.backbone, net.input_shape, net.layout, K, *where)


def close(found: Tensor, expected: Tensor) -> None:
    far = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    assert far < 2e-4, far


@dataclass(frozen=True)
class Given:
    images: Tensor
    member: None = None


def losses_and_gradients(net: Net, executor: Executor, theta: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """The verb `gradients`, of a loss that every output takes part in."""
    net.executor = executor

    def loss(run: int | slice, row: object, out: Outputs, batch: Given) -> Tensor:
        return (out.logits * torch.arange(1, 3, device=out.logits.device)).square().mean((-2, -1))

    def each(runs: object, work: Callable[[int | slice], None]) -> None:
        for run in [slice(None)] if executor.all_runs else range(R):
            work(run)

    of: Pass[Given] = Pass(
        net=net,
        heads=torch.tensor([1], device=net.device),
        batch=lambda run: Given(images[run]),
        forward=Net.forward,
        loss=loss,
        runs=range(R),
        each=each,
        noise=None,
        samples=B,
        own=False,
        whole_network=True,
        factors={},
        seen=None,
    )
    value = torch.zeros(R, device=net.device)
    gradient = executor.gradients(theta, of, torch.full_like(theta, torch.nan), value)
    return value, gradient


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PLAIN)
def test_executors_conform(name: str, device: str) -> None:
    net = net_of(name, device)
    theta = net.initial([3, 4])
    each = [samples(name, 2 * B)[:B], samples(name, 2 * B)[B:]]
    images = torch.stack(each).to(device)
    with_statistics = bool(net.statistics)
    reference = Reference(request_of(net))
    if not with_statistics:
        expected = losses_and_gradients(net, reference, theta, images)
    for executor in supported(net):
        assert executor.noise_size(B) >= 0 and executor.capturable in (True, False)
        assert executor.batches_at_once(4, R, 64) >= 1 and executor.factored_layers() is not None
        views = net.layout.views(theta[0])
        params = executor.prepared({n: views[n] for n in net.backbone_names}, net.backbone_names, net.dtype)
        if with_statistics:
            continue  # normalization by running statistics is the network's part: tests/training/test_statistics.py
        features = executor.forward(params, images[0], None)
        assert features.shape == (K, B, net.features)
        close(features, reference.forward(params, images[0], None))
        value, gradient = losses_and_gradients(net, executor, theta, images)
        close(value, expected[0])
        close(gradient, expected[1])


def test_the_first_that_supports_a_backbone_is_chosen() -> None:
    for name in PLAIN:
        net = net_of(name, "cpu")
        first = next(e for e in (kind.for_backbone(request_of(net)) for kind in executors()) if e is not None)
        assert type(choose_executor(request_of(net))) is type(first) is type(net.executor)


def test_noise_of_all_runs_is_that_of_each() -> None:
    """Dropout of an executor that takes all runs equals that of its runs one by one."""
    net = net_of("mlp-dropout", "cpu")
    assert net.executor.all_runs
    theta, images = net.initial([3, 4]), samples("mlp-dropout", 2 * B).unflatten(0, (R, B))
    noise = Noise.at(torch.tensor([1, 2]), torch.tensor([0]))
    together = net.forward(theta, images, torch.tensor([0]), noise=noise).logits
    drawn = noise.bytes(net.executor.noise_size(B))
    for run in range(R):
        alone = net.forward(theta[run], images[run], torch.tensor([0]), noise=drawn[run]).logits
        torch.testing.assert_close(together[run], alone)
