"""A trainer whose network takes all runs together, on the emulated GPU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.cuda.tiled import Tiled, plan_stages
from kenyon.backends.executor import Executor
from kenyon.backends.layers import PlannedLayers, frame_of
from kenyon.backends.triton.columns import Aligned
from kenyon.data.sources import Group, Source
from kenyon.data.tasks import CentreCrop
from kenyon.errors import ConfigError
from kenyon.methods import METHODS
from kenyon.methods.importance import fisher_published
from kenyon.models import Net
from kenyon.random import Purpose
from kenyon.training import Trainer, Training
from kenyon.training.batches import Fleet
from tests.backends import emulation

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
PADDED, FRAMED = (3, 8, 8), (1, 12, 12)


@pytest.fixture(autouse=True)
def few_are_tested_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated GPU computes chunks of a thousand in full, whatever is in them."""
    monkeypatch.setattr("kenyon.training.evaluation.CHUNK", 16)


def backbone(shape: tuple[int, int, int]) -> nn.Sequential:
    if shape == FRAMED:  # 12 -> 10 -> 5 -> 3
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 6, 3),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 6, 3),
                flatten=nn.Flatten(),
                dense=nn.Linear(54, 8),
                relu2=nn.ReLU(),
            )
        )
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 6, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            drop2=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            dense=nn.Linear(96, 8),
            relu3=nn.ReLU(),
            drop3=nn.Dropout(0.5),
        )
    )


HYPER = {"lambda_sp": 10.0, "lambda_af": 1e-3, "gamma": 0.1}


def trainer(
    name: str = "caf-ewc",
    shape: tuple[int, int, int] = PADDED,
    *,
    together: bool,
    seeds: tuple[int, ...] = (0, 1),
) -> Trainer:
    """Two tasks, of two classes each or of three and two."""
    g = torch.Generator().manual_seed(0)
    groups = (
        (Group("a", (0, 1)), Group("b", (2, 3))) if shape == PADDED else (Group("a", (0, 1, 2)), Group("b", (3, 4)))
    )
    counts = [len(group.classes) for group in groups]
    labels = torch.arange(40) % sum(counts)
    images = torch.randint(0, 256, (40, *shape), generator=g, dtype=torch.uint8)
    names, centre = tuple("01234"[: sum(counts)]), ((0.5,) * shape[0], (0.3,) * shape[0])
    source = Source("x", images, labels, torch.arange(40) >= 28, names, groups, *centre)
    streams = [source.stream(seed, validation=0.2) for seed in seeds]
    spec = METHODS[name]
    method = spec({n: HYPER[n] for n in spec.required})
    if method.importance is not None:
        method = replace(method, importance=replace(fisher_published(), batch=2))
    K, members = (1, 2) if method.apart else (2 if method.multi else 1, 1)
    bare = Net(backbone(shape), shape, counts, learners=K)
    learned = {name: size for p in method.penalties for name, size in p.learned(bare).items()}
    net = Net(backbone(shape), shape, counts, learners=K, learned=learned, active_column=method.active_column)
    if together:
        steps = PlannedLayers(net.backbone, shape, K, folds=True).steps  # type: ignore[arg-type]
        stages = plan_stages(steps, shape, net.layout, K)
        assert stages is not None
        net.executor = Tiled(net.backbone, shape, K, stages, torch.device("cpu"), emulation.build)  # type: ignore
        if net.columns is not None:
            net.columns.aligned = Aligned(net.backbone, shape)  # type: ignore[arg-type]
    return Trainer(net, streams, method, Training(epochs=2, batch=6), members=members)


@pytest.mark.parametrize(
    "name",
    ["caf-ewc", *(pytest.param(n, marks=pytest.mark.torture) for n in ("ewc-af2", "er", "pnc", "mas"))],
)
def test_a_run_alone_ends_with_the_same_bits_where_numbers_are_steady(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and importances of two tasks, in fleets of one and of three. Importances need several portions."""
    monkeypatch.setattr("kenyon.backends.executor.STACKED", 10)
    torch.use_deterministic_algorithms(True)
    try:
        three, alone = (trainer(name, together=True, seeds=seeds) for seeds in ((0, 1, 2), (1,)))
        for t in (three, alone):
            t.run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(three.theta[1], alone.theta[0])
    assert torch.equal(three.estimate[1], alone.estimate[0])


@pytest.mark.parametrize("name", ["caf-ewc", "er"])
def test_a_gradient_has_zeros_for_heads_that_are_not_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for all others what the whole rows give, whatever was there before; replay has two heads in use."""
    found = []
    for whole in (True, False):
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(Tiled, "gradients", Executor.gradients)
            t = trainer(name, together=True)
            t.position.phase = 1
            t.enter_phase()
            t.start_phase()
            t.engine.loader.fill(t.engine.samples)
            if t.engine.memory is not None:
                t.engine.memory.draw(t.engine.loader, 1, torch.arange(2))
            t.engine.gradient.fill_(torch.nan)
            own = t.penalties.needs_own
            t.engine.gradients(t.theta, t.engine.loader, t.batch_loss, forward=Net.forward, own=own)
            found.append(t.gradient.clone())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    heads = t.net.layout.view(found[1], "head.weight")
    assert heads[:, 1].any() and heads[:, 0].any() == (name == "er")


@pytest.mark.parametrize("shape", [PADDED, FRAMED])
def test_small_batches_at_once_equal_one_after_another(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = []
    for stacked in (1, 6):
        monkeypatch.setattr("kenyon.backends.executor.STACKED", stacked)
        t = trainer(shape=shape, together=True)
        assert t.engine.measuring.at_once(20) == max(1, stacked // 2)
        t.enter_phase()
        t.start_phase()
        assert t.method.importance is not None
        t.measure(t.method.importance, t.theta, Purpose.IMPORTANCE)  # type: ignore[arg-type]
        estimates.append(t.estimate.clone())
    assert float(estimates[0].max()) > 0
    torch.testing.assert_close(estimates[1], estimates[0], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, PADDED) for name in ("caf-ewc", "er", "pnc")),
        ("caf-ewc", FRAMED),
        *(pytest.param(name, PADDED, marks=pytest.mark.torture) for name in ("icl-ewc", "discrete", "joint-caf")),
        pytest.param("pnc", FRAMED, marks=pytest.mark.torture),
    ],
)
def test_training_together_follows_training_one_after_another(name: str, shape: tuple[int, int, int]) -> None:
    """The same weights after two tasks, as nearly as bfloat16 allows."""
    ends = []
    for together in (True, False):
        t = trainer(name, shape, together=together)
        assert t.net.together == together
        start = t.theta.clone()
        t.run()
        assert len(t.position.records) == len(t.phases) // len(t.method.stages) and t.live == list(
            range(2 * t.members)
        )
        ends.append(t.theta - start)
    size = t.net.layout.size if name == "pnc" else t.net.layout.protected
    ours, expected = (end[:, :size].flatten() for end in ends)
    assert float(torch.cosine_similarity(ours, expected, dim=0)) > 0.9


def test_images_lie_in_their_frame_and_are_seen_without_it() -> None:
    streams = trainer(shape=FRAMED, together=False).engine.fleet.streams
    plain, framed = (
        Fleet(streams, torch.device("cpu"), 4, frame=f) for f in (None, frame_of(12, [(0, True), (0, False)]))
    )
    pool, image = framed.inputs.pools[0], streams[0].pool[3]
    assert isinstance(pool, Tensor) and isinstance(image, Tensor)
    assert pool.shape[1:] == (16, 16, 4)
    assert torch.equal(pool[3, 1:13, 1:13, 0], image[0])
    assert int(pool[3].sum()) == int(image.sum())  # nothing around it, and no other colours
    index = torch.tensor([3, 0, 5])
    one, other = (fleet.images(0, index) for fleet in (plain, framed))
    assert isinstance(one, Tensor) and isinstance(other, Tensor)
    assert torch.equal(one, other)


def test_samples_that_are_not_seen_in_their_pool_are_refused() -> None:
    there = trainer(together=True)
    stream = replace(there.streams[0], testing=CentreCrop(8))
    with pytest.raises(ConfigError, match=r"in_place=stream\.in_place"):
        Trainer(there.net, [stream], there.method, there.training)
