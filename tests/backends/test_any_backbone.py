"""Backbones of all kinds against copies of the module, one for each learner: values, gradients, first weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.torch.module import General
from kenyon.data import Classes, from_arrays
from kenyon.errors import ConfigError
from kenyon.methods import find_method
from kenyon.models import Net
from kenyon.training import Trainer, Training

K, B = 3, 5


class Residual(nn.Module):
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.norm, self.gain = nn.GroupNorm(2, channels), Gain()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return (x + self.gain(self.norm(self.second(x)).relu())).mean((2, 3))


class Gain(nn.Module):
    """A parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gain, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Transformer(nn.Module):
    """Tokens, with a table of positions that is a constant and not even saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.register_buffer("positions", torch.linspace(-1, 1, 48).view(6, 8), persistent=False)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.embedding(x) + self.positions)[:, 0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(6, 6), nn.Linear(6, 6)
        self.back.weight = self.there.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.there(x).tanh())


class Twice(nn.Module):
    """One layer under two names, and its weight in another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again, self.last = self.first, nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.first(x).tanh()).tanh())


def repeated() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    return module


def signals() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 3), nn.GELU(), nn.LayerNorm([4, 5]), nn.Flatten(), nn.Linear(20, 7))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (1, 6, 6)),
    "signals": (signals, (2, 7)),
    "transformer": (Transformer, (6,)),
    "tied": (Tied, (6,)),
    "twice": (Twice, (6,)),
    "repeated": (repeated, (6,)),
    "frozen": (frozen, (6,)),
}


def samples(kind: str, shape: tuple[int, ...], count: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if kind == "transformer":
        return torch.randint(0, 20, (count, *shape), generator=generator)
    return torch.randn((count, *shape), generator=generator, dtype=torch.float64)


def net_of(kind: str, module: nn.Module, **options: object) -> Net:
    dtype = torch.int64 if kind == "transformer" else torch.float32
    given: dict[str, object] = {"learners": K, "dtype": torch.float64, "input_dtype": dtype} | options
    return Net(module, CASES[kind][1], (3, 2), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CASES)
def test_learners_equal_copies_of_the_module(kind: str) -> None:
    build, shape = CASES[kind]
    module = build()
    net = net_of(kind, module)
    assert isinstance(net.executor, General)
    row, x = net.initial([5])[0].double().requires_grad_(), samples(kind, shape)
    views = net.layout.views(row)
    head = nn.Linear(net.features, 2).double()
    copies = [copy.deepcopy(module).double() for _ in range(K)]
    with torch.no_grad():
        for k, one in enumerate(copies):
            for name, p in one.named_parameters():
                if p.requires_grad:
                    p.copy_(views[name][k])
        head.weight.copy_(views["head.weight"][1, :2])
        head.bias.copy_(views["head.bias"][1, :2])
    vectors = [one(x) for one in copies]
    out = net.forward(row, x, torch.tensor([1]), own=True)
    assert out.own_logits is not None
    expected = head(sum(vectors))
    torch.testing.assert_close(out.logits[:, :2], expected)
    torch.testing.assert_close(out.own_logits[..., :2], torch.stack([head(v) for v in vectors]))
    loss = (out.logits[:, :2].tanh().sum() + out.own_logits[..., :2].square().sum()).float()
    gradient = net.layout.views(torch.autograd.grad(loss, row)[0])
    (expected.tanh().sum() + sum(head(v).square().sum() for v in vectors)).float().backward()
    for k, one in enumerate(copies):
        for name, p in one.named_parameters():
            assert (p.grad is None) == (not p.requires_grad)
            if p.grad is not None:
                torch.testing.assert_close(gradient[name][k], p.grad)


@pytest.mark.parametrize("kind", CASES)
def test_a_backbone_is_lent_tensors_and_keeps_none(kind: str) -> None:
    build, shape = CASES[kind]
    net = net_of(kind, build())
    before = dict(net.backbone.named_parameters())
    row = net.initial([5])[0].double().requires_grad_()
    first, second = (net.forward(row, samples(kind, shape), torch.tensor([1])).logits for _ in range(2))
    assert torch.equal(first, second)
    after = dict(net.backbone.named_parameters())
    assert list(after) == list(before) and all(p is before[name] for name, p in after.items())
    copy.deepcopy(net.backbone)


@pytest.mark.parametrize("kind", CASES)
def test_first_weights_are_drawn_as_the_constructor_draws_them(kind: str) -> None:
    """From one seed, a new learner's weights equal those of a new module."""
    build, _ = CASES[kind]
    torch.manual_seed(1)
    net = net_of(kind, build())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        built = dict(build().named_parameters())
    drawn = net.fresh_learner(77)
    if kind == "transformer":  # its constructor draws the projection's bias before setting it to zero
        assert not drawn["block.self_attn.in_proj_bias"].any() and not drawn["block.self_attn.out_proj.bias"].any()
    if kind in ("signals", "residual"):
        for name in net.backbone_names:
            assert torch.equal(drawn[name], built[name].detach()), name
    rows = net.initial([0, 1])
    first, second = net.layout.views(rows[0]), net.layout.views(rows[1])
    weight = net.backbone_names[0]
    assert not torch.equal(first[weight][0], first[weight][1]) and not torch.equal(first[weight], second[weight])


def test_given_weights_are_where_every_learner_starts() -> None:
    module = signals()
    net = Net(module, (2, 7), (2,), learners=2, start="given")
    rows = net.initial([0, 1])
    for name, p in module.named_parameters():
        for row in rows:
            assert all(torch.equal(one, p) for one in net.layout.view(row, name))
    assert not torch.equal(net.layout.view(rows[0], "head.weight"), net.layout.view(rows[1], "head.weight"))
    before = module[0].weight.clone()
    with torch.no_grad():
        module[0].weight.add_(1)  # the user's module is the user's
    assert torch.equal(net.layout.view(net.initial([0])[0], "0.weight")[0], before)


class Undrawable(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.dense, self.scale = nn.Linear(6, 4), nn.Parameter(scale * torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) * self.scale


def test_what_no_layer_draws_a_function_may() -> None:
    with pytest.raises(ConfigError, match=r"scale belongs to Undrawable.*draw=.*start='given'"):
        Net(Undrawable(), (6,), (2,))
    net = Net(Undrawable(), (6,), (2,), learners=2, draw=Undrawable)
    state = torch.get_rng_state()
    scale = net.layout.view(net.initial([4])[0], "scale")
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(scale[0], scale[1])
    assert torch.equal(scale, net.layout.view(net.initial([4])[0], "scale"))
    assert Net(Undrawable(2.0), (6,), (2,), start="given").initial([0]).shape == (1, 4 * 7 + 4 + 2 * 5)
    with pytest.raises(ConfigError, match="the same parameters"):
        Net(Undrawable(), (6,), (2,), draw=lambda: nn.Linear(6, 4)).initial([0])


def test_frozen_weights_are_not_in_the_rows() -> None:
    net = Net(frozen(), (6,), (2,), learners=50)
    assert net.backbone_names == ("2.weight", "2.bias")
    assert net.parameter_count == 50 * (5 * 4 + 4) + 2 * 5
    with pytest.raises(ConfigError, match="Every parameter of the backbone is frozen"):
        Net(frozen().requires_grad_(False), (6,), (2,))


def test_dropout_of_any_kind_is_a_function_of_the_noise() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 40)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.alpha_dropout(self.dense(x), 0.5, self.training)

    net = Net(Dropped(), (6,), (2,), learners=2)
    row, x, one = net.initial([0])[0], torch.ones(4, 6), torch.arange(8, dtype=torch.uint8)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = net.forward(row, x, torch.tensor([0]), noise=one).logits
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(net.forward(row, x, torch.tensor([0]), noise=one).logits, first)
    assert not torch.equal(net.forward(row, x, torch.tensor([0]), noise=one + 1).logits, first)


class Counting(nn.Module):
    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.dense, self.assigns = nn.Linear(6, 4), assigns
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.assigns:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.dense(x)


class Growing(nn.Module):
    """Its output has as many features as the batch has samples, beyond two."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)[:, : len(x)]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.dense(x), x


def held_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Counting(True), "buffer calls changes"),
        (lambda: Counting(False), "buffer calls changes"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), "reset_parameters"),
        (Two, "it returns a tuple"),
        (lambda: nn.Linear(7, 4), r"cannot take a batch of the shape \(2, 6\) \(float32\)"),
        (lambda: nn.Embedding(5, 4), "cannot take a batch"),
        pytest.param(
            lambda: nn.LazyLinear(4), "has no shape yet", marks=pytest.mark.filterwarnings("ignore:Lazy modules")
        ),
        (held_norm, "track_running_stats=True"),
    ],
)
def test_backbones_that_cannot_be_used_are_told_why(build: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Net(build(), (6,), (2,))


def test_names_that_are_taken_are_told() -> None:
    module = nn.Sequential()
    module.add_module("head", nn.Linear(6, 4))
    with pytest.raises(ConfigError, match=r"The backbone's head.weight has a name that Kenyon gives itself"):
        Net(module, (6,), (2,))
    assert Net(nn.Sequential(module), (6,), (2,)).backbone_names == ("0.head.weight", "0.head.bias")


def test_an_output_that_changes_its_size_is_told() -> None:
    net = Net(Growing(), (6,), (2,))
    with pytest.raises(ConfigError, match="returned 2 features at first and 5 now"):
        net.forward(net.initial([0])[0], torch.zeros(5, 6), torch.tensor([0]))


def test_spectral_norm_is_refused_for_its_buffers_when_weights_are_given() -> None:
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))
    with pytest.raises(ConfigError, match="changes while it computes"):
        Net(module, (6,), (2,), start="given")


class Looking(nn.Module):
    """Control flow depends on a value, which no CUDA graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).tanh()
        return y * 2 if float(y.detach().sum()) > 0 else y


@pytest.mark.parametrize(("layer", "draws"), [(nn.Tanh(), False), (nn.Dropout(0.5), True), (nn.RReLU(), True)])
def test_whether_a_module_draws_shows_in_its_first_step(layer: nn.Module, draws: bool) -> None:
    net = Net(nn.Sequential(nn.Linear(6, 5), nn.Softsign(), layer), (6,), (3, 2), learners=2)
    execute, row, head = net.executor, net.initial([0])[0], torch.tensor([0])
    assert isinstance(execute, General)
    net.forward(row, torch.ones(4, 6), head)
    assert execute.draws is None and not execute.capturable
    net.forward(row, torch.ones(4, 6), head, noise=torch.zeros(8, dtype=torch.uint8))
    assert execute.draws is draws and execute.capturable is not draws


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("build", [Tied, Looking, frozen])
def test_a_cuda_graph_of_any_module_trains_as_without(build: Callable[[], nn.Module]) -> None:
    def trained(refused: bool) -> tuple[Tensor, General]:
        torch.manual_seed(0)  # of frozen weights
        method = find_method("caf-ewc")({"lambda_sp": 10.0, "lambda_af": 1e-4, "gamma": 0.01})
        learned: dict[str, tuple[int, ...]] = {}
        module = build()
        bare = Net(module, (6,), (2, 2), learners=2)
        for penalty in method.penalties:
            learned |= penalty.learned(bare)
        net = Net(module, (6,), (2, 2), learners=2, learned=learned, device="cuda", dtype=torch.float32)
        assert isinstance(net.executor, General)
        net.executor.refused = refused
        x, y = np.random.default_rng(0).normal(size=(160, 6)), np.arange(160) % 4
        source = from_arrays(x + y[:, None], y, Classes(2))
        trainer = Trainer(net, [source.stream(seed) for seed in (0, 1)], method, Training(epochs=3, batch=16))
        trainer.run()
        return trainer.theta, net.executor

    (eager, _), (captured, execute) = trained(True), trained(False)
    assert execute.refused is (build is Looking)  # the others went through graphs
    torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-5)
