"""Any nn.Module, one learner after another through torch.func.

A backbone is split into a template without storage and its tensors:

    trained     parameters that every learner has: they are stored in the runs' rows
    constants   frozen parameters (requires_grad=False) and buffers that never change: one copy for all learners
    statistics  running statistics of batch normalization, of every learner and every task, like heads

Nothing else may change while a backbone computes.

A module that draws random numbers in training draws them from generators that the host seeds for every step. If its
first step shows that it draws none, it may be captured in a CUDA graph.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from kenyon.backends.executor import Executor, Request
from kenyon.backends.layers import Params, known_layers, shapes_through
from kenyon.backends.layout import aligned
from kenyon.backends.torch.generators import OwnGenerators, UserCode
from kenyon.errors import ConfigError, expected


class FunctionalCall:
    """torch.func.functional_call that supports modules with two names in a backbone.

    PyTorch swaps the tensors of such a module twice, and in the end restores the ones that were passed in.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        # Every place of a tensor once, for any number of names of its module, with the first name of its tensor.
        self.places = {
            f"{place}.{own}".lstrip("."): names[id(tensor)]
            for place, submodule in module.named_modules()
            for own, tensor in (*submodule._parameters.items(), *submodule._buffers.items())
            if tensor is not None
        }

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Any:
        """Return the module's output for images with `tensors`, each by the first of its names."""
        from torch.func import functional_call

        swapped = {place: tensors[name] for place, name in self.places.items()}
        return functional_call(self.module, swapped, (images,), tie_weights=False)


@dataclass(frozen=True)
class SplitBackbone:
    """A backbone's template and its tensors."""

    template: nn.Module  # without storage, in training mode
    trained: dict[str, Tensor]  # the tensors of the given module
    constants: dict[str, Tensor]  # on the CPU
    statistics: dict[str, Tensor]  # the tensors of the given module


def split_backbone(backbone: nn.Module) -> SplitBackbone:
    """Split a module. Submodules in eval() inside a module in train() stay so, and their statistics are constants."""
    if not isinstance(backbone, nn.Module):
        raise expected("The backbone", "a torch.nn.Module that gives a vector for every sample", backbone)
    for place, module in backbone.named_modules():
        if isinstance(module, _BatchNorm) and not module.track_running_stats:
            raise ConfigError(
                f"The backbone's {place or type(module).__name__} normalizes by the statistics of the batch in tests "
                "too: a prediction would depend on the other samples. Set track_running_stats=True."
            )
    named = dict(backbone.named_parameters())
    if lazy := next((name for name, p in named.items() if is_lazy(p)), None):
        raise ConfigError(
            f"The backbone's {lazy} has no shape yet. Call the module with a batch once, where it is built."
        )
    trained = {name: p.detach() for name, p in named.items() if p.requires_grad}
    frozen = {name: p.detach() for name, p in named.items() if not p.requires_grad}
    if not trained:
        raise ConfigError(
            "Every parameter of the backbone is frozen. Set requires_grad=True for some of them."
            if frozen
            else "The backbone has no parameters: only heads would learn. Add a layer with parameters."
        )
    if no_numbers := next((name for name, p in trained.items() if not p.is_floating_point()), None):
        raise ConfigError(
            f"The backbone's {no_numbers} holds complex numbers, and learners' weights are real ones. Keep it as a "
            "real parameter with a last axis of 2, and use torch.view_as_complex where it is needed."
        )
    running = _running_statistics(backbone)
    buffers = {name: b.detach() for name, b in backbone.named_buffers()}
    constants = frozen | {name: b for name, b in buffers.items() if name not in running}
    for name, value in constants.items():
        if value.is_meta:
            raise ConfigError(
                f"The backbone's {name} is a constant without a value. Build the module on a real device."
            )
    template = rebuilt(backbone, lambda name, t: torch.empty_like(t, device="meta"))
    template.train()
    for place in _in_eval(backbone):
        template.get_submodule(place).training = False
    return SplitBackbone(
        template,
        trained,
        {name: value.cpu().clone() for name, value in constants.items()},
        {name: buffers[name] for name in buffers if name in running},
    )


def has_constants(backbone: nn.Module) -> bool:
    running = _running_statistics(backbone)
    frozen = any(not p.requires_grad for p in backbone.parameters())
    return frozen or any(name not in running for name, _ in backbone.named_buffers())


def rebuilt(module: nn.Module, make: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Copy a module with other tensors as its parameters and buffers; shared tensors stay shared."""
    memo: dict[int, Any] = {}
    for name, p in module.named_parameters():
        memo[id(p)] = nn.Parameter(make(name, p.detach()), requires_grad=p.requires_grad)
    for name, b in module.named_buffers():
        memo[id(b)] = make(name, b.detach())
    try:
        return copy.deepcopy(module, memo)
    except RuntimeError as error:
        raise ConfigError(f"The backbone cannot be copied: {error}") from error


def on_cpu(split: SplitBackbone) -> nn.Module:
    """Return the module in real memory, with its constants, and zeros as all other tensors."""
    values = split.constants
    return rebuilt(
        split.template, lambda name, t: values[name].clone() if name in values else torch.zeros_like(t, device="cpu")
    )


def _precision_hint(split: SplitBackbone) -> str:
    other = next((p.dtype for p in split.trained.values() if p.dtype != torch.float32), None)
    return f" Its weights are {_dtype_name(other)}: make them float32 first, with .float()." if other else ""


def feature_count(split: SplitBackbone, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the number of features of a sample.

    A module of unknown layers is called with a batch in real memory; the meta device would import PyTorch's compiler,
    which is slow.
    """
    if known_layers(split.template, shape) and dtype.is_floating_point and not _precision_hint(split):
        # Not children(), which omits the second occurrence of a layer object.
        *_, last = shapes_through((m for m in split.template._modules.values() if m is not None), shape)
        if last is not None and len(last) == 1:
            return last[0]
    module, batch = on_cpu(split), torch.zeros(2, *shape, dtype=dtype)
    before = {name: b.clone() for name, b in module.named_buffers() if name not in split.statistics}
    try:
        with torch.no_grad(), OwnGenerators(lambda: 0):  # any random numbers will do
            features = module(batch)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"The backbone cannot take a batch of the shape {tuple(batch.shape)} ({_dtype_name(dtype)}): "
            f"{str(error).rstrip('.')}.{_precision_hint(split)}"
        ) from error
    after = {name: b for name, b in module.named_buffers() if name not in split.statistics}
    changed = [n for n in before | after if n not in before or n not in after or not torch.equal(before[n], after[n])]
    if changed:
        raise ConfigError(
            f"The backbone's buffer {changed[0]} changes while it computes: it would leak between learners and "
            "tasks. Only running statistics of nn.BatchNorm may change; make it a parameter, or remove it."
        )
    return vectors(features, len(batch)).shape[1]


def vectors(features: Any, batch: int) -> Tensor:
    """Return the output of a backbone if it is one feature vector per sample, or raise."""
    if isinstance(features, Tensor) and features.ndim == 2 and len(features) == batch:
        return features
    found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
    raise ConfigError(
        f"A backbone must map a batch to one feature vector a sample; for {batch} samples it returns {found}, not "
        f"({batch}, features). End it with nn.Flatten(), or return the features alone."
    )


def _in_eval(backbone: nn.Module) -> set[str]:
    """Return the names of submodules in eval() while the backbone is in train()."""
    return {place for place, module in backbone.named_modules() if backbone.training and not module.training}


def _running_statistics(backbone: nn.Module) -> set[str]:
    """Return the names of running statistics that training updates."""
    fixed = _in_eval(backbone)
    return {
        f"{place}.{name}".lstrip(".")
        for place, module in backbone.named_modules()
        if isinstance(module, _NormBase) and place not in fixed
        for name, _ in module.named_buffers(recurse=False)
    }


def _dtype_name(dtype: torch.dtype) -> str:
    return "tokens" if dtype == torch.int64 else str(dtype).removeprefix("torch.")


TEST_SEED = 67280421310721  # of modules that draw in tests too: the default seed of PyTorch's global generator
BACKWARD = 2**56  # added to the seed in the backward pass


def _seed(noise: Tensor | None) -> int:
    return TEST_SEED if noise is None else int.from_bytes(bytes(noise[:7].tolist()), "little")


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert floating-point values; tokens and other whole numbers stay."""
    return values.to(dtype) if values.is_floating_point() else values


class General(Executor):
    """One run, one learner after another. Modules draw from own generators, seeded for the run and step."""

    checks = True
    threads = False  # operations of one run use all cores

    @classmethod
    def for_backbone(cls, request: Request) -> General:
        if any(isinstance(module, nn.RNNBase) for module in request.backbone.modules()):
            # The order of weights in rows is fixed: flatten_parameters() cannot change it.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        constants = {n: cast(value.to(request.device), request.dtype) for n, value in request.constants.items()}
        return cls(request.backbone, request.learners, constants, request.features)

    def __init__(
        self,
        backbone: nn.Module,
        learners: int,
        constants: Mapping[str, Tensor] | None = None,
        features: int | None = None,
    ) -> None:
        """`backbone`: in training mode; `constants`: tensors that all learners share; `features`: the number
        expected, or None for any.
        """
        self.backbone, self.learners = backbone, learners
        self.constants, self.features = dict(constants or {}), features
        self.by_batch = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in backbone.modules())
        self.code = UserCode("The backbone")
        self.refused = False
        self.of_thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "of_thread"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, of_thread=threading.local())

    @property
    def draws(self) -> bool | None:
        """True if training draws random numbers; None until the first step."""
        return self.code.draws

    @property
    def capturable(self) -> bool:
        """True unless the module draws random numbers, keeps batch statistics (untested in CUDA graphs), or was
        refused.
        """
        return self.draws is False and not self.by_batch and not self.refused

    def refuse_capture(self) -> bool:
        """Return True: a module may depend on values in a way that cannot be captured."""
        self.refused = True
        return True

    def noise_size(self, batch: int) -> int:
        return 8

    def forward(self, params: Params, images: Tensor, noise: Tensor | None, *, rows: Tensor | None = None) -> Tensor:
        """`params` (K, ...) include running statistics, which a batch in training updates in place."""
        if noise is not None and self.by_batch and len(images) < 2:
            raise ConfigError("nn.BatchNorm cannot learn from a batch of one sample. Choose a larger batch.")
        call = self._module(training=noise is not None)
        if self.capturable and images.is_cuda:
            each = self._each(
                call, params, images
            )  # a capture may be in progress: no synchronization with the device
        else:
            each = self._seeded(call, params, images, noise)
        if self.features is not None and each[0].shape[1] != self.features:
            raise ConfigError(
                f"The backbone returned {self.features} features at first and {each[0].shape[1]} now. Its output "
                "must have one size."
            )
        return torch.stack(each)

    def prepared(self, views: Mapping[str, Tensor], names: Iterable[str], dtype: torch.dtype) -> Params:
        return aligned({name: views[name] for name in names}, dtype)

    def _module(self, *, training: bool) -> FunctionalCall:
        """Return the backbone in this mode: a copy for each thread, since tensors are swapped while it computes."""
        local = self.of_thread
        if not hasattr(local, "call"):
            copied = rebuilt(self.backbone, lambda _, t: torch.empty_like(t))
            local.call, local.modes = FunctionalCall(copied), {module: module.training for module in copied.modules()}
        for module, trains in local.modes.items():
            module.training = trains and training
        return local.call

    def _each(self, call: FunctionalCall, params: Params, images: Tensor) -> list[Tensor]:
        each = {name: p.unbind() for name, p in params.items()}  # its backward is one stack
        learners = ({name: values[k] for name, values in each.items()} for k in range(self.learners))
        return [vectors(call(self.constants | own, images), len(images)) for own in learners]

    def backward(self, noise: Tensor | None) -> AbstractContextManager[object]:
        """Return a context with own generators: a backward pass may draw, or repeat parts of the forward pass
        (torch.utils.checkpoint). On a GPU it runs in threads of PyTorch, out of reach.
        """
        if noise is None or noise.is_cuda:
            return nullcontext()
        return self.code.generators(lambda: _seed(noise) + BACKWARD)

    def _seeded(self, call: FunctionalCall, params: Params, images: Tensor, noise: Tensor | None) -> list[Tensor]:
        devices = [images.device] if images.is_cuda else []
        seed = partial(_seed, noise)
        if noise is None or self.code.draws is not None:
            with self.code.generators(seed, devices):
                return self._each(call, params, images)
        before = [(p, p.clone()) for p in params.values() if not p.requires_grad]  # running statistics among them

        def attempt() -> list[Tensor]:
            for p, value in before:
                p.copy_(value)
            return self._each(call, params, images)

        return self.code.watched(attempt, list, seed, *devices)
