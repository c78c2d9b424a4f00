"""Random operations of PyTorch from generators of a run's own: the numbers are those of torch.manual_seed, whatever
other threads do, and the global generators stay as they are.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kenyon.backends.torch.generators import (
    _WITHOUT_GENERATOR,
    WITH_GENERATOR,
    OwnGenerators,
    UserCode,
    layer_by_layer,
    seeded,
)
from kenyon.backends.torch.module import General
from kenyon.models import Net
from kenyon.models.initial import check_drawable, initial_parameters
from tests.noise import noise, untouched

SEED = 77
aten = torch.ops.aten
GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
)
on_both = pytest.mark.parametrize("device", ["cpu", GPU])


def with_global(work: Callable[[], Any], seed: int = SEED) -> Any:
    """As it is done without Kenyon."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return work()


def with_own(work: Callable[[], Any], seed: int = SEED) -> Any:
    with OwnGenerators(lambda: seed) as own:
        found = work()
    assert own.drawn
    return found


def ones(*shape: int, device: str = "cpu") -> Tensor:
    return torch.ones(shape or (4, 6), device=device)


def half_dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, True)


def scripted() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(half_dropped)(ones(50))


def packed() -> Any:
    return nn.utils.rnn.pack_padded_sequence(ones(5, 2, 4), [5, 3])


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], Tensor]:
    return lambda: kind(4, 5, 3, dropout=0.5, **options)(ones(5, 2, 4))[0]


def attended() -> Tensor:
    q, k, v = (ones(2, 2, 8, 4).requires_grad_() for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


def inferred() -> Tensor:
    with torch.inference_mode():
        return F.dropout(ones())


def seeds_itself() -> Tensor:
    torch.manual_seed(5)
    return torch.rand(3)


def seeds_for_a_while() -> Tensor:
    first = torch.rand(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        within = torch.rand(3)
    return torch.cat([first, within, torch.rand(3)])


def put_back() -> Tensor:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return torch.cat([first, torch.rand(3)])


# By the operation that they reach, and more ways to reach some.
DRAWING: dict[str, Callable[[], Tensor]] = {
    "bernoulli": lambda: torch.bernoulli(ones() / 2),
    "bernoulli p": lambda: torch.bernoulli(ones(), 0.3),
    "bernoulli_": lambda: ones().bernoulli_(0.3),
    "bernoulli_ tensor": lambda: ones().bernoulli_(ones() / 3),
    "binomial": lambda: torch.binomial(ones() * 9, ones() / 3),
    "cauchy_": lambda: ones().cauchy_(),
    "exponential_": lambda: ones().exponential_(),
    "geometric_": lambda: ones().geometric_(0.3),
    "log_normal_": lambda: ones().log_normal_(),
    "multinomial": lambda: torch.multinomial(ones(10), 4),
    "normal": lambda: torch.normal(ones(), ones()),
    "normal float": lambda: torch.normal(0.0, 1.0, (4, 5)),
    "normal tensor float": lambda: torch.normal(ones(), 2.0),
    "normal float tensor": lambda: torch.normal(2.0, ones()),
    "normal_": lambda: ones().normal_(),
    "poisson": lambda: torch.poisson(ones() * 5),
    "random_": lambda: ones().random_(),
    "random_ from": lambda: ones().random_(3, 90),
    "randperm": lambda: torch.randperm(9),
    "rrelu_with_noise": lambda: F.rrelu(-ones().requires_grad_(), training=True),
    "rrelu_with_noise_": lambda: F.rrelu(-ones(), training=True, inplace=True),
    "uniform_": lambda: ones().uniform_(),
    "_sample_dirichlet": lambda: torch.distributions.Dirichlet(ones(4)).sample(),
    "_standard_gamma": lambda: torch.distributions.Gamma(ones(4), ones(4)).sample(),
    "native_dropout": lambda: torch.native_dropout(ones(), 0.5, True)[0],
    "scaled_dot_product_attention": attended,
    "lstm.input": recurrent(nn.LSTM),
    "lstm.data": lambda: nn.LSTM(4, 5, 3, dropout=0.5)(packed())[0].data,
    "gru.input": recurrent(nn.GRU, bidirectional=True),
    "gru.data": lambda: nn.GRU(4, 5, 3, dropout=0.5)(packed())[0].data,
    "rnn_tanh.input": recurrent(nn.RNN),
    "rnn_tanh.data": lambda: nn.RNN(4, 5, 3, dropout=0.5)(packed())[0].data,
    "rnn_relu.input": recurrent(nn.RNN, nonlinearity="relu"),
    "rnn_relu.data": lambda: nn.RNN(4, 5, 3, dropout=0.5, nonlinearity="relu")(packed())[0].data,
    "rand": lambda: torch.rand(4),
    "randn": lambda: torch.randn(33),
    "randint": lambda: torch.randint(0, 10, (40,)),
    "like": lambda: torch.stack([torch.rand_like(ones()), torch.randn_like(ones()), torch.randint_like(ones(), 9)]),
    "functional": lambda: torch.cat([f(ones()) for f in (aten.uniform, aten.cauchy, aten.exponential, aten.random)]),
    "prims": lambda: torch.ops.prims.normal(
        [4], mean=0.0, std=1.0, dtype=torch.float32, device="cpu", requires_grad=False
    ),
    "dropout": lambda: F.dropout(ones().requires_grad_()),
    "dropout in place": lambda: F.dropout(ones(), inplace=True),
    "dropout1d": lambda: F.dropout1d(ones(4, 9, 3)),
    "dropout2d": lambda: F.dropout2d(ones(4, 9, 3, 3)),
    "dropout3d": lambda: F.dropout3d(ones(4, 9, 3, 3, 3)),
    "alpha_dropout": lambda: F.alpha_dropout(ones(), training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(ones(4, 9, 3, 3), training=True),
    "inference mode": inferred,
    "script": scripted,
    "gumbel": lambda: F.gumbel_softmax(ones()),
    "fractional": lambda: nn.FractionalMaxPool2d(3, output_ratio=0.5)(torch.arange(200.0).view(1, 2, 10, 10)),
    "attention": lambda: nn.MultiheadAttention(8, 2, dropout=0.4)(*(ones(3, 2, 8),) * 3)[0],
    "orthogonal": lambda: nn.init.orthogonal_(ones()),
    "sparse": lambda: nn.init.sparse_(ones(), 0.3),
    "truncated": lambda: nn.init.trunc_normal_(ones()),
    "default generator": lambda: torch.rand(3, generator=torch.default_generator),
    "seeds itself": seeds_itself,
    "seeds for a while": seeds_for_a_while,
    "put back": put_back,
}
OF_A_GPU = {"_fused_dropout"}


def test_every_operation_that_takes_a_generator_is_known() -> None:
    """Those that are made of others, or are not for a CPU, aside."""
    reached = {name.split()[0] for name in DRAWING}
    assert {*WITH_GENERATOR, *_WITHOUT_GENERATOR} - OF_A_GPU <= reached
    others = set()
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and any(
            argument.name == "generator"
            for schema in torch._C._jit_get_schemas_for_operator(name.partition(".")[0])
            for argument in schema.arguments
        ):
            others.add(name.removeprefix("aten::").partition(".")[0])
    made_of_others = {"cauchy", "exponential", "geometric", "log_normal", "random", "uniform", "normal_functional"}
    made_of_others |= {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "rrelu", "rrelu_"}
    made_of_others |= {"rrelu_with_noise_functional"}
    assert others == {*WITH_GENERATOR, *made_of_others}


@pytest.mark.filterwarnings("ignore:dropout option adds dropout")
@pytest.mark.parametrize("kind", DRAWING)
def test_the_numbers_of_the_global_generator(kind: str) -> None:
    expected = with_global(DRAWING[kind])
    with untouched():
        assert torch.equal(with_own(DRAWING[kind]), expected)
    with noise():
        for _ in range(3):
            assert torch.equal(with_own(DRAWING[kind]), expected)
    assert not torch.equal(with_own(DRAWING[kind], SEED + 1), expected) or kind == "seeds itself"


def test_gradients_are_those_of_the_global_generator() -> None:
    def gradient() -> Tensor:
        layer, x = nn.Linear(6, 5), ones().requires_grad_()
        F.rrelu(F.dropout(layer(x)), training=True).square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(with_own(gradient), with_global(gradient))


def test_a_generator_that_was_given_is_used() -> None:
    first = torch.rand(4, generator=torch.Generator().manual_seed(3))
    with OwnGenerators(lambda: SEED) as own:
        assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert not own.drawn


def test_inside_each_other_and_in_threads() -> None:
    """Every thread has those that it has entered, and has the ones before when it leaves."""
    expected = [with_global(lambda: torch.rand(5), seed) for seed in range(8)]

    def work(seed: int, found: list[bool]) -> None:
        for _ in range(50):
            with OwnGenerators(lambda: seed):
                first = torch.rand(2)
                with OwnGenerators(lambda: 7 - seed):
                    found.append(torch.equal(torch.rand(5), expected[7 - seed]))
                found.append(torch.equal(torch.cat([first, torch.rand(3)]), expected[seed]))

    found: list[bool] = []
    with untouched():
        threads = [threading.Thread(target=work, args=(seed, found)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 800
    torch.manual_seed(4)
    assert torch.initial_seed() == 4


class Quantity(nn.Module):
    """Parameters of one number, drawn in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.amount.copy_(torch.rand(3) + torch.randperm(3))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 4),
    "Bilinear": lambda: nn.Bilinear(3, 4, 5),
    **{f"Conv{n}d": lambda n=n: getattr(nn, f"Conv{n}d")(2, 4, 3, groups=2) for n in (1, 2, 3)},  # type: ignore[misc]
    **{f"ConvTranspose{n}d": lambda n=n: getattr(nn, f"ConvTranspose{n}d")(2, 3, 3) for n in (1, 2, 3)},  # type: ignore[misc]
    "Embedding": lambda: nn.Embedding(5, 4, padding_idx=1),
    "EmbeddingBag": lambda: nn.EmbeddingBag(5, 4),
    "RNN": lambda: nn.RNN(3, 4, 2),
    "LSTM": lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4, 2, bias=False),
    "RNNCell": lambda: nn.RNNCell(3, 4),
    "LSTMCell": lambda: nn.LSTMCell(3, 4),
    "GRUCell": lambda: nn.GRUCell(3, 4),
    "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=3, vdim=4),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 8),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 8),
    "Transformer": lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
    "PReLU": nn.PReLU,
    **{
        name: lambda name=name: getattr(nn, name)(4)
        for name in ("LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d")
    },  # type: ignore[misc]
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, affine=True),
    "one of somebody's own": Quantity,
}


@pytest.mark.parametrize("kind", LAYERS)
def test_first_weights_of_every_layer(kind: str) -> None:
    """As drawn by its constructor and by reset_parameters(), while another thread draws and seeds."""
    build = LAYERS[kind]
    template = build()
    check_drawable(template)

    def redrawn() -> nn.Module:
        """By the module itself, layer by layer from the inside."""
        module = build()
        for p in module.parameters():
            nn.init.zeros_(p)
        torch.manual_seed(SEED)
        parts = list(dict.fromkeys(inside_out(module)))
        for part in parts:
            for name in ("reset_parameters", "_reset_parameters"):
                if hasattr(part, name):
                    getattr(part, name)()
                    break
        return module

    built, anew = with_global(build), with_global(redrawn)
    with noise():
        for _ in range(2):
            for p, q in zip(seeded(build, SEED).parameters(), built.parameters(), strict=True):
                assert torch.equal(p, q)
            for name, p in initial_parameters(template, SEED).items():
                assert torch.equal(p, anew.get_parameter(name))
    with untouched():
        seeded(build, SEED)
        initial_parameters(template, SEED)


def inside_out(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from inside_out(child)
    yield module


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(nn.LSTM, "lstm"), (nn.GRU, "gru"), (nn.RNN, "rnn_tanh")])
def test_layer_by_layer_a_recurrent_network_is_the_same(
    kind: type[nn.RNNBase], name: str, both: bool, bias: bool
) -> None:
    """The replacement of cuDNN's layers, against PyTorch's on a CPU, also for sequences of different lengths."""
    module, x = kind(4, 5, 3, dropout=0.5, bidirectional=both, bias=bias), torch.randn(5, 2, 4)
    states = [torch.zeros(6 if both else 3, 2, 5) for _ in range(2 if kind is nn.LSTM else 1)]
    hx, rest = states if kind is nn.LSTM else states[0], (module._flat_weights, bias, 3, 0.5, True, both)
    short = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    for overload, given, args in (("input", x, (x, hx, *rest, False)), ("data", short, (*short[:2], hx, *rest))):
        out, ends = with_global(lambda given=given: module(given))
        operation = getattr(getattr(aten, name), overload)
        found, *found_ends = with_own(lambda operation=operation, args=args: layer_by_layer(operation, *args))
        assert torch.equal(found, out if isinstance(out, Tensor) else out.data)
        assert all(map(torch.equal, found_ends, ends if isinstance(ends, tuple) else (ends,)))


# ---------------------------------------------------------------------- on any device

DRAWING_ANYWHERE: dict[str, Callable[[str], Tensor]] = {
    "dropout": lambda device: F.dropout(ones(64, 64, device=device), 0.25),
    "native dropout": lambda device: torch.native_dropout(ones(64, 64, device=device), 0.25, True)[0],
    "dropout2d": lambda device: F.dropout2d(ones(64, 64, 2, 2, device=device), 0.25)[..., 0, 0],
    "rand": lambda device: (torch.rand(64, 64, device=device) > 0.25) / 0.75,
    "attention": lambda device: F.scaled_dot_product_attention(
        torch.zeros(1, 1, 64, 64, device=device),
        torch.zeros(1, 1, 64, 64, device=device),
        torch.eye(64, device=device)[None, None] * 64,
        dropout_p=0.25,
    )[0, 0],
}


@on_both
@pytest.mark.parametrize("kind", DRAWING_ANYWHERE)
def test_draws_repeat_on_any_device_and_drop_a_quarter(device: str, kind: str) -> None:
    """Each number is 0 or 4/3, and a quarter are 0, to four standard errors."""
    work = DRAWING_ANYWHERE[kind]
    with untouched():
        first, again, other = (with_own(lambda: work(device), seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    kept = first[first != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 4 / 3))
    units = 64 if kind == "dropout2d" else 64 * 64
    if kind != "dropout2d":
        assert abs((first == 0).float().mean().item() - 0.25) < 4 * (0.25 * 0.75 / units) ** 0.5


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@on_both
def test_recurrent_dropout_repeats_on_any_device(device: str) -> None:
    module, x = nn.LSTM(4, 5, 3, dropout=0.5).to(device), torch.ones(6, 3, 4, device=device)
    with untouched():
        first, again, other = (with_own(lambda: module(x)[0], seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@on_both
def test_gradients_of_dropout_on_any_device(device: str) -> None:
    x = ones(8, 8, device=device).requires_grad_()
    out = with_own(lambda: F.dropout(x * 3, 0.25))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, out.detach())


# ---------------------------------------------------------------------- in a network


def disturb() -> None:
    """Another thread draws, just now."""
    thread = threading.Thread(target=torch.rand, args=(3,))
    thread.start()
    thread.join()


class Dropping(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.layer, self.again = nn.Linear(6, 5), again

    def forward(self, x: Tensor) -> Tensor:
        def last(y: Tensor) -> Tensor:
            disturb()
            return F.dropout(y.tanh(), 0.3, self.training)

        y = self.layer(x)
        return checkpoint(last, y, use_reentrant=False) if self.again else last(y)


def step_of(net: Net) -> Tensor:
    execute, weight = net.executor, net.initial([0])[0].requires_grad_()
    byte = torch.arange(8, dtype=torch.uint8)
    assert isinstance(execute, General)
    out = net.forward(weight, torch.linspace(-1, 1, 24).view(4, 6), torch.tensor([0]), noise=byte)
    with execute.backward(byte):
        return torch.autograd.grad(out.logits.square().sum(), weight)[0]


def test_parts_that_are_computed_again_drop_the_same() -> None:
    """torch.utils.checkpoint draws again in the backward pass, from the state that it has kept."""
    expected = step_of(Net(Dropping(), (6,), (3, 2)))
    assert torch.equal(step_of(Net(Dropping(again=True), (6,), (3, 2))), expected)


def test_every_thread_computes_with_a_module_of_its_own() -> None:
    """One network asked by many threads for different weights, in tests and in training."""
    net = Net(Dropping(), (6,), (3, 2), learners=2)
    rows = net.initial(range(8))
    x, head = torch.linspace(-1, 1, 240).view(40, 6), torch.tensor([0])

    def asked(row: Tensor, bytes: Tensor | None) -> Tensor:
        return net.forward(row, x, head, noise=bytes).logits

    noises = [None if n % 2 else torch.full((8,), n, dtype=torch.uint8) for n in range(8)]
    asked(rows[0], noises[0])  # so that it is known to draw
    expected = [asked(row, bytes) for row, bytes in zip(rows, noises, strict=True)]
    wrong: list[int] = []

    def work(n: int) -> None:
        wrong.extend(n for _ in range(60) if not torch.equal(asked(rows[n], noises[n]), expected[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------------- what cannot be redirected


def hidden() -> Tensor:
    """As an extension in C++ draws: from the global generator, without PyTorch's operations."""
    state = torch.default_generator.get_state()
    found = torch.frombuffer(bytearray(state.numpy().tobytes()[24:56]), dtype=torch.uint8).float()
    torch.default_generator.manual_seed(int(found.sum()) + torch.default_generator.initial_seed() % 1000)
    return found / 255


def test_what_cannot_be_redirected_is_told_and_seeded() -> None:
    code = UserCode("The backbone")

    def drawn(seed: int) -> Tensor:
        return code.watched(hidden, lambda x: [x], lambda: seed)

    with pytest.warns(UserWarning, match="The backbone draws random numbers in a way that cannot be redirected"):
        first = drawn(3)
    assert code.draws and code.unseen
    with untouched():
        assert torch.equal(drawn(3), first) and not torch.equal(drawn(4), first)
        with code.generators(lambda: 3):
            assert torch.equal(hidden(), first)


def test_a_thread_that_draws_is_not_taken_for_the_code() -> None:
    """The global generator moves while the code runs, and the code gives the same a second time."""
    with noise(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for draws in (False, True):
            code = UserCode("The backbone")
            for _ in range(100):
                code.watched(
                    lambda draws=draws: torch.rand(200, 200).sum() if draws else ones(), lambda x: [x], lambda: 3
                )
                assert code.draws is draws and not code.unseen
