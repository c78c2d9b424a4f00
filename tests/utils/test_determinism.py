"""With --deterministic a run's numbers do not depend on how many runs train together, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kenyon
from kenyon.backends.cuda import compiler
from kenyon.methods.penalties.predictions import Divergence, Predictions
from kenyon.models import Net, Pictures
from kenyon.random import Noise
from kenyon.utils.determinism import per_run
from tests.backends import emulation
from tests.backends.test_tiled import GAIN, SHIFT, backbone, tiled_net
from tests.replicas import write_cifar_100

SIDE, BATCH = 16, 6


@pytest.fixture
def steady() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_all_at_once_unless_numbers_are_to_be_steady(request: pytest.FixtureRequest) -> None:
    seen: list[int] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        seen.append(len(a))
        return torch.bmm(a, b)

    a, b = torch.randn(6, 2, 3), torch.randn(6, 3, 4)
    whole = per_run(product, 2, a, b)
    request.getfixturevalue("steady")
    parts = per_run(product, 2, a, b)
    assert seen == [6, 2, 2, 2]
    torch.testing.assert_close(parts, whole)


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("learners", "width"), [(3, 9), pytest.param(1, 16, marks=pytest.mark.torture)])
@pytest.mark.usefixtures("steady")
def test_gradients_of_a_fleet_are_those_of_each_run(learners: int, width: int) -> None:
    """Bit for bit, by kernels that divide their sums among as many blocks of threads as fill the device."""
    net = tiled_net(backbone(width, pooled=True), (3, SIDE, SIDE), learners, [5, 5])
    g = torch.Generator().manual_seed(2)
    pools = [torch.randint(0, 256, (6, SIDE, SIDE, 4), generator=g, dtype=torch.uint8) for _ in range(3)]
    index = torch.randint(0, 6, (3, BATCH), generator=g)
    theta = net.initial([0, 1, 2])
    together = gradients(net, theta, pools, index)
    for run in range(3):
        one = slice(run, run + 1)
        assert torch.equal(together[one], gradients(net, theta[one], pools[one], index[one], first=run))


def gradients(net: Net, theta: Tensor, pools: list[Tensor], index: Tensor, first: int = 0) -> Tensor:
    """Gradients of cross-entropy, with AF-S for several learners."""
    keys = torch.tensor([5, 77, 901])[first : first + len(pools)]
    pictures = Pictures(torch.tensor([p.data_ptr() for p in pools]), index, GAIN, SHIFT)
    row = theta.clone().requires_grad_()
    out = net.forward(row, pictures, torch.tensor([1]), None, noise=Noise.at(keys, torch.tensor([3])), own=True)
    log_p = out.logits.log_softmax(-1)
    loss = -log_p[..., 0].sum(-1)
    if net.learners > 1:
        assert out.own_logits is not None
        weight = torch.full((len(pools), BATCH), 1 / BATCH)
        own = out.own_logits.log_softmax(-1)
        loss = loss + Divergence(0.02).value(Predictions(log_p, own, weight, {}, first_task=True))
    return torch.autograd.grad(loss.sum(), row)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ewc", "mas-af1", "ewc-af2", "caf-ewc"])
def test_fleets_of_other_sizes_on_a_gpu(method: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available() or not compiler.available(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU and NVRTC")
    write_cifar_100(tmp_path, 60)
    asked = {"tasks": 2, "epochs": 8, "fwt": False, "deterministic": True, "data": tmp_path}
    found = []
    for fleet in (4, 3, 1):
        out = tmp_path / str(fleet)
        kenyon.run("r-cifar-100", method, 4, fleet=fleet, out=out, **asked)
        found.append([path.read_bytes() for path in sorted(out.glob("**/weights-*.safetensors"))])
    assert len(found[0]) == 4 and found[0] == found[1] == found[2]
