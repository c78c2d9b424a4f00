"""Separate generators for PyTorch code that draws from the global ones: initial weights, dropout, anything.

A user's `reset_parameters()` and `forward` call `nn.init.normal_`, `F.dropout` or `torch.rand` without a generator,
and PyTorch has one global generator per device, which all threads of the process share and any of them may seed.
Inside `OwnGenerators` these operations draw from separate generators, for any caller: Python, TorchScript, or an
operation in C++ such as an LSTM with dropout. On a CPU the numbers equal those of the global generator after
`torch.manual_seed`.

PyTorch's dispatcher searches a list of keys for kernels, and a thread can enable some of them for itself. The key
used here has no kernels in PyTorch (it was made for a tool that no longer exists), and gets kernels for the random
operations only, so that all other operations are as fast as without it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

KEY = "DeferredInit"
_KEY: Any = torch._C._parse_dispatch_key(KEY)
_ONLY_KEY: Any = torch._C.DispatchKeySet(_KEY)
_BELOW: Any = torch._C._dispatch_keyset_full_after(_KEY)
CPU = torch.device("cpu")
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class OwnGenerators:
    """Context in which random operations of this thread draw from separate generators, one per device.

    All have the same seed. They are created at the first draw, which calls `seed`.
    """

    def __init__(self, seed: Callable[[], int]) -> None:
        self.seed = seed
        self.drawn = False  # an operation has drawn
        self._made: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        self.drawn = True
        if device not in self._made:
            self._made[device] = torch.Generator(device).manual_seed(self.seed())
        return self._made[device]

    def reseed(self, seed: int) -> torch.Generator:
        """Respond to torch.manual_seed, called by the code that draws."""
        self.seed, self._made = lambda: seed, {}
        return self.on(CPU)

    def __enter__(self) -> Self:
        _register_once()
        self._before, _thread.own = _thread.own, self
        self._switch = torch._C._IncludeDispatchKeyGuard(_KEY)
        self._switch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._switch.__exit__(*error)
        _thread.own = self._before


def seeded(build: Callable[[], M], seed_key: int) -> M:
    """Build a module whose initialization is drawn from a key, not from PyTorch's global generator."""
    with OwnGenerators(lambda: seed_key):
        return build()


class SeededGlobally:
    """Context that seeds PyTorch's global generators and restores them: for code that cannot be redirected.

    One thread at a time enters it; other threads that draw from the global generators still interfere.
    """

    drawn = True
    _one = threading.RLock()

    def __init__(self, seed: Callable[[], int], devices: Sequence[torch.device]) -> None:
        self.seed, self.devices = seed, devices

    def __enter__(self) -> Self:
        self._one.acquire()
        self._states = global_states(self.devices)
        for generator in _global_generators(self.devices):
            generator.manual_seed(self.seed())
        return self

    def __exit__(self, *_: object) -> None:
        for generator, state in zip(_global_generators(self.devices), self._states, strict=True):
            generator.set_state(state)
        self._one.release()


def global_states(devices: Sequence[torch.device]) -> list[Tensor]:
    """Return the states of PyTorch's global generators of the CPU and of these GPUs."""
    return [generator.get_state() for generator in _global_generators(devices)]


def _global_generators(devices: Sequence[torch.device]) -> list[torch.Generator]:
    return [_global_on(device) for device in (CPU, *devices)]


def _global_on(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


class UserCode:
    """A user's code that may draw random numbers, such as a backbone's forward; it draws from separate generators."""

    def __init__(self, name: str) -> None:
        self.name = name  # of the code, in messages
        self.draws: bool | None = None  # the code draws; None until `watched` has run it
        self.unseen = False  # it draws in ways that at most PyTorch's global generators control

    def generators(
        self, seed: Callable[[], int], devices: Sequence[torch.device] = ()
    ) -> OwnGenerators | SeededGlobally:
        """Return the context to run the code in; `devices`: the GPUs in use."""
        return SeededGlobally(seed, devices) if self.unseen else OwnGenerators(seed)

    def watched(
        self,
        work: Callable[[], T],
        tensors: Callable[[T], Iterable[Tensor]],
        seed: Callable[[], int],
        *devices: torch.device,
    ) -> T:
        """Run the code for the first time. `work` can be repeated, and `tensors` returns the tensors of its result.

        If the state of PyTorch's global generators has changed meanwhile, either another thread has drawn, or this
        code has in a way that cannot be redirected: then a second run has another result.
        """
        before = global_states(devices)
        with self.generators(seed, devices) as own:
            result = work()
        if not self.unseen and not _all_equal(before, global_states(devices)):
            first = [tensor.detach().clone() for tensor in tensors(result)]
            with OwnGenerators(seed):
                result = work()  # the last result counts: it may overwrite memory of the first
            if not _all_equal(first, tensors(result)):
                self.unseen = True
                warnings.warn(
                    f"{self.name} draws random numbers in a way that cannot be redirected (torch.compile, an "
                    "extension in C++, NumPy, Python's random), so Kenyon seeds PyTorch's global generators for it. "
                    "Results do not repeat if another thread draws from those meanwhile, or if the numbers come from "
                    "elsewhere.",
                    stacklevel=3,
                )
                return self.watched(work, tensors, seed, *devices)
        self.draws = own.drawn or self.unseen
        return result


def _all_equal(ones: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(ones, others, strict=True))


class _ThreadState(threading.local):
    own: OwnGenerators | None = None


_thread = _ThreadState()


class _DefaultGenerator:
    """Replacement of `torch.random.default_generator`, which torch.manual_seed, get_rng_state and fork_rng use.

    Stands for the separate generator of the CPU in a thread inside `OwnGenerators`, and otherwise for the global one.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator if _thread.own is None else _thread.own.on(CPU), name)

    def manual_seed(self, seed: int) -> torch.Generator:
        return torch.default_generator.manual_seed(seed) if _thread.own is None else _thread.own.reseed(seed)


# ---------------------------------------------------------------------- kernels

# Operations of PyTorch that take a generator, without those composed of others in this list.
WITH_GENERATOR = (
    *("bernoulli", "bernoulli_", "binomial", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial"),
    *("normal", "normal_", "poisson", "random_", "randperm", "rrelu_with_noise", "rrelu_with_noise_", "uniform_"),
    *("_fused_dropout", "_sample_dirichlet", "_standard_gamma"),
)

_registering = threading.Lock()
_libraries: list[torch.library.Library] = []  # kernels are registered while these exist


def _register_once() -> None:
    if _libraries:
        return
    with _registering:
        if _libraries:
            return
        others, kernels = torch.library.Library("_", "IMPL", KEY), torch.library.Library("aten", "IMPL", KEY)
        others.fallback(torch.library.fallthrough_kernel)
        for name in WITH_GENERATOR:
            packet = getattr(torch.ops.aten, name)
            for operation in (getattr(packet, overload) for overload in packet.overloads()):
                names = [argument.name for argument in operation._schema.arguments]
                if "generator" in names:
                    kernel = partial(_with_generator, operation, names.index("generator"))
                    kernels.impl(operation, kernel, with_keyset=True)
        for name, decomposed in _WITHOUT_GENERATOR.items():
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            kernels.impl(operation, partial(decomposed, operation), with_keyset=True)
        torch.random.default_generator = _DefaultGenerator()  # type: ignore
        _libraries.extend((others, kernels))


def _with_generator(operation: Any, place: int, keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation with the separate generator, unless it is given one that is not the global one."""
    tensor = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    device = torch.device(kwargs.get("device") or CPU) if tensor is None else tensor.device
    given = args[place] if place < len(args) else kwargs.get("generator")
    wrapper = tensor is not None and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if device.type == "meta" or wrapper:  # nothing is drawn here; wrapped tensors draw inside
        return _unchanged(operation, keys, *args, **kwargs)
    if given is None or _same(given, _global_on(device)):
        own = _own().on(device)
        if place < len(args):
            args = (*args[:place], own, *args[place + 1 :])
        else:
            kwargs["generator"] = own
    with torch._C._ExcludeDispatchKeyGuard(_ONLY_KEY):
        return operation(*args, **kwargs)


def _same(one: Any, other: Any) -> bool:
    return one._cdata == other._cdata  # one generator may have several Python objects


def _own() -> OwnGenerators:
    if _thread.own is None:
        raise RuntimeError(
            "The backbone draws random numbers in a thread that PyTorch started for it, where they are not seeded. "
            "Draw them in the thread that calls forward()."
        )
    return _thread.own


def _unchanged(operation: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation below this key. The operations it is composed of are dispatched here again."""
    return operation.redispatch(keys & _BELOW, *args, **kwargs)


# Operations that take no generator. On a CPU they are composed of others that do; on a GPU they are not.


def native_dropout(operation: Any, keys: Any, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not x.is_cuda or train is False or not 0 < p < 1 or not x.numel():
        return _unchanged(operation, keys, x, p, train)
    values, kept = torch.ops.aten._fused_dropout(x, 1 - p)
    return values, kept.bool()


def attention(
    operation: Any,
    keys: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Compute attention step by step on a GPU, whose fused kernels draw inside."""
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if not query.is_cuda or not dropout_p:
        return _unchanged(operation, keys, *arguments, **options)
    return torch.ops.aten._scaled_dot_product_attention_math(*arguments, **options)[0]


def recurrent(operation: Any, keys: Any, *args: Any) -> Any:
    """Compute recurrent layers one by one on a GPU: cuDNN draws the dropout between them from a state of its own."""
    dropout, train = args[6:8] if operation._overloadname == "data" else args[5:7]
    if not args[0].is_cuda or not train or not dropout:
        return _unchanged(operation, keys, *args)
    return layer_by_layer(operation, *args)


def layer_by_layer(operation: Any, *args: Any) -> tuple[Tensor, ...]:
    """Compute several recurrent layers with dropout between them, one at a time.

    Takes the arguments of aten::lstm, gru, rnn_tanh and rnn_relu: (input, hx, params, has_biases, num_layers,
    dropout, train, bidirectional, batch_first), or for packed sequences (data, batch_sizes, hx, ..., bidirectional).
    """
    first = 2 if operation._overloadname == "data" else 1
    x, sizes = args[0], args[1:first]
    hx, params, biases, layers, dropout, train, *rest = args[first:]
    states = [state.chunk(layers) for state in ((hx,) if isinstance(hx, Tensor) else hx)]  # an LSTM has two
    each, ends = len(params) // layers, []
    for layer in range(layers):
        begin = [state[layer] for state in states]
        own = params[layer * each : (layer + 1) * each]
        x, *end = operation(
            x, *sizes, begin[0] if isinstance(hx, Tensor) else begin, own, biases, 1, 0.0, train, *rest
        )
        ends.append(end)
        if layer + 1 < layers:
            x = torch.dropout(x, dropout, train)
    return x, *(torch.cat(states) for states in zip(*ends, strict=True))


_WITHOUT_GENERATOR: dict[str, Callable[..., Any]] = {
    "native_dropout": native_dropout,
    "scaled_dot_product_attention": attention,
    **{f"{kind}.{how}": recurrent for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for how in ("input", "data")},
}
