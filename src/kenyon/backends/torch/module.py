"""A module that computes with tensors lent to it, and has its own again afterwards.

What a backbone is made of, whatever module it is.

    trained     parameters that every learner has for itself: they live in the fleet's rows
    constants   frozen parameters (requires_grad=False) and buffers that never change: one copy for all learners
    statistics  what batch normalisation has seen: every learner's own, kept for every task beside its head

Nothing else may change while a backbone computes.

Any nn.Module, one learner after another through torch.func.

A module that draws random numbers in training does so from generators that the host seeds for every step. One that
draws none, as its first step shows, may go into a CUDA graph, and then costs what its kernels cost.
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


class Lent:
    """torch.func.functional_call, also for modules that are in a backbone under two names: PyTorch swaps the tensors
    of such a module twice, and what it puts back in the end are those that were lent.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        # Every place of a tensor once, however many names its module has: the name under which its tensor is lent.
        self.places = {
            f"{place}.{own}".lstrip("."): names[id(tensor)]
            for place, part in module.named_modules()
            for own, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None
        }

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Any:
        """What the module makes of images with `tensors` by their names, each under the first that it has."""
        from torch.func import functional_call

        lent = {place: tensors[name] for place, name in self.places.items()}
        return functional_call(self.module, lent, (images,), tie_weights=False)


@dataclass(frozen=True)
class Parts:
    template: nn.Module  # without storage, in the mode of training
    trained: dict[str, Tensor]  # as they are in the module that was given
    constants: dict[str, Tensor]  # on the CPU
    statistics: dict[str, Tensor]  # as they are in the module that was given


def take_apart(backbone: nn.Module) -> Parts:
    """A part in eval() inside a module in train() stays so; statistics that are held in this way are constants."""
    if not isinstance(backbone, nn.Module):
        raise expected("The backbone", "a torch.nn.Module that gives a vector for every sample", backbone)
    for place, part in backbone.named_modules():
        if isinstance(part, _BatchNorm) and not part.track_running_stats:
            raise ConfigError(
                f"The backbone's {place or type(part).__name__} normalises by the batch at hand in tests too: a "
                "prediction would depend on the samples beside it. Set track_running_stats=True."
            )
    named = dict(backbone.named_parameters())
    if lazy := next((name for name, p in named.items() if is_lazy(p)), None):
        raise ConfigError(
            f"The backbone's {lazy} has no shape yet. Send a batch through the module once, where it is built."
        )
    trained = {name: p.detach() for name, p in named.items() if p.requires_grad}
    frozen = {name: p.detach() for name, p in named.items() if not p.requires_grad}
    if not trained:
        raise ConfigError(
            "Every parameter of the backbone is frozen. Leave some of them to learn (requires_grad=True)."
            if frozen
            else "The backbone has no parameters: there is nothing to learn but heads. Give it a layer that learns."
        )
    if no_numbers := next((name for name, p in trained.items() if not p.is_floating_point()), None):
        raise ConfigError(
            f"The backbone's {no_numbers} holds complex numbers, and learners' weights are real ones. Keep it as a "
            "real parameter with a last axis of 2, and use torch.view_as_complex where it is needed."
        )
    moving = _moving(backbone)
    buffers = {name: b.detach() for name, b in backbone.named_buffers()}
    constants = frozen | {name: b for name, b in buffers.items() if name not in moving}
    for name, value in constants.items():
        if value.is_meta:
            raise ConfigError(
                f"The backbone's {name} is a constant without a value. Build the module on a real device."
            )
    template = rebuilt(backbone, lambda name, t: torch.empty_like(t, device="meta"))
    template.train()
    for place in _held(backbone):
        template.get_submodule(place).training = False
    return Parts(
        template,
        trained,
        {name: value.cpu().clone() for name, value in constants.items()},
        {name: buffers[name] for name in buffers if name in moving},
    )


def has_constants(backbone: nn.Module) -> bool:
    moving = _moving(backbone)
    frozen = any(not p.requires_grad for p in backbone.parameters())
    return frozen or any(name not in moving for name, _ in backbone.named_buffers())


def rebuilt(module: nn.Module, make: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy of a module with other tensors in the places of its parameters and buffers; what is shared stays so."""
    memo: dict[int, Any] = {}
    for name, p in module.named_parameters():
        memo[id(p)] = nn.Parameter(make(name, p.detach()), requires_grad=p.requires_grad)
    for name, b in module.named_buffers():
        memo[id(b)] = make(name, b.detach())
    try:
        return copy.deepcopy(module, memo)
    except RuntimeError as error:
        raise ConfigError(f"The backbone cannot be copied: {error}") from error


def on_cpu(parts: Parts) -> nn.Module:
    """The module in real memory: constants as they are, all else zeros."""
    values = parts.constants
    return rebuilt(
        parts.template, lambda name, t: values[name].clone() if name in values else torch.zeros_like(t, device="cpu")
    )


def _other_precision(parts: Parts) -> str:
    other = next((p.dtype for p in parts.trained.values() if p.dtype != torch.float32), None)
    return f" Its weights are {_told(other)}: make them float32 first, with .float()." if other else ""


def feature_count(parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many numbers the backbone makes of a sample. Unless its layers are known it is tried out, in real memory:
    shapes on the meta device would import PyTorch's compiler, which is slow.
    """
    if known_layers(parts.template, shape) and dtype.is_floating_point and not _other_precision(parts):
        # Not children(), which leaves out a layer object when it comes a second time.
        *_, last = shapes_through((m for m in parts.template._modules.values() if m is not None), shape)
        if last is not None and len(last) == 1:
            return last[0]
    module, batch = on_cpu(parts), torch.zeros(2, *shape, dtype=dtype)
    before = {name: b.clone() for name, b in module.named_buffers() if name not in parts.statistics}
    try:
        with torch.no_grad(), OwnGenerators(lambda: 0):  # what is drawn does not matter
            features = module(batch)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"The backbone cannot take a batch of the shape {tuple(batch.shape)} ({_told(dtype)}): "
            f"{str(error).rstrip('.')}.{_other_precision(parts)}"
        ) from error
    after = {name: b for name, b in module.named_buffers() if name not in parts.statistics}
    changed = [n for n in before | after if n not in before or n not in after or not torch.equal(before[n], after[n])]
    if changed:
        raise ConfigError(
            f"The backbone's buffer {changed[0]} changes while it computes: it would leak between learners and "
            "tasks. Only the running statistics of nn.BatchNorm may; make it a parameter, or do without it."
        )
    return vectors(features, len(batch)).shape[1]


def vectors(features: Any, batch: int) -> Tensor:
    """What a backbone gives, if it is one feature vector a sample."""
    if isinstance(features, Tensor) and features.ndim == 2 and len(features) == batch:
        return features
    found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
    raise ConfigError(
        f"A backbone must map a batch to one feature vector a sample; for {batch} samples it gives {found}, not "
        f"({batch}, features). End it with nn.Flatten(), or give back the features alone."
    )


def _held(backbone: nn.Module) -> set[str]:
    """The places of modules that are in eval() while the whole is in train()."""
    return {place for place, part in backbone.named_modules() if backbone.training and not part.training}


def _moving(backbone: nn.Module) -> set[str]:
    """The names of running statistics that are not held."""
    held = _held(backbone)
    return {
        f"{place}.{name}".lstrip(".")
        for place, part in backbone.named_modules()
        if isinstance(part, _NormBase) and place not in held
        for name, _ in part.named_buffers(recurse=False)
    }


def _told(dtype: torch.dtype) -> str:
    return "tokens" if dtype == torch.int64 else str(dtype).removeprefix("torch.")


# Of a module that draws in tests too. With it an untouched global generator of PyTorch begins.
TEST_SEED = 67280421310721


BACKWARD = 2**56  # what seeds of the backward pass are larger by


def _seed(noise: Tensor | None) -> int:
    return TEST_SEED if noise is None else int.from_bytes(bytes(noise[:7].tolist()), "little")


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert floating-point values; tokens and other whole numbers stay."""
    return values.to(dtype) if values.is_floating_point() else values


class General(Executor):
    """One run, one learner after another. Dropout of any kind draws from generators of its own, seeded for run and
    step.
    """

    checks = True
    threads = False  # cores share the operations of one run

    @classmethod
    def for_backbone(cls, request: Request) -> General:
        if any(isinstance(part, nn.RNNBase) for part in request.backbone.modules()):
            # Rows hold weights in an order of their own, which flatten_parameters() could not change.
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
        """`backbone` is in the mode of training. `constants`: what all learners share; `features`: how many there
        should be, None for any number.
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
        """Whether training draws random numbers; None until a step has been seen."""
        return self.code.draws

    @property
    def capturable(self) -> bool:
        """Statistics of batches have not been seen in a CUDA graph yet, so modules that keep them run as they are."""
        return self.draws is False and not self.by_batch and not self.refused

    def refuse_capture(self) -> bool:
        """What the module does may depend on values, which only the host can look at."""
        self.refused = True
        return True

    def noise_size(self, batch: int) -> int:
        return 8

    def forward(self, params: Params, images: Tensor, noise: Tensor | None, *, rows: Tensor | None = None) -> Tensor:
        """`params` (K, ...): also running statistics, to which a batch in training is added in place."""
        if noise is not None and self.by_batch and len(images) < 2:
            raise ConfigError("nn.BatchNorm cannot learn from a batch of one sample. Choose a larger batch.")
        lent = self._module(training=noise is not None)
        if self.capturable and images.is_cuda:
            found = self._each(lent, params, images)  # perhaps while it is captured: nothing may wait for the device
        else:
            found = self._seeded(lent, params, images, noise)
        if self.features is not None and found[0].shape[1] != self.features:
            raise ConfigError(
                f"The backbone gave {self.features} features at first and {found[0].shape[1]} now. Its output must "
                "have one size."
            )
        return torch.stack(found)

    def prepared(self, views: Mapping[str, Tensor], names: Iterable[str], dtype: torch.dtype) -> Params:
        return aligned({name: views[name] for name in names}, dtype)

    def _module(self, *, training: bool) -> Lent:
        """The backbone in this mode: a copy for each thread, since tensors are put into it while it computes."""
        here = self.of_thread
        if not hasattr(here, "lent"):
            module = rebuilt(self.backbone, lambda _, t: torch.empty_like(t))
            here.lent, here.in_training = Lent(module), {part: part.training for part in module.modules()}
        for part, learns in here.in_training.items():
            part.training = learns and training
        return here.lent

    def _each(self, lent: Lent, params: Params, images: Tensor) -> list[Tensor]:
        each = {name: p.unbind() for name, p in params.items()}  # its backward is one stack
        found = []
        for k in range(self.learners):
            mine = self.constants | {name: learners[k] for name, learners in each.items()}
            found.append(vectors(lent(mine, images), len(images)))
        return found

    def backward(self, noise: Tensor | None) -> AbstractContextManager[object]:
        """To be entered while gradients are computed, in which parts may be computed again (torch.utils.checkpoint)
        or draw for the first time. A GPU's are computed by threads of PyTorch's.
        """
        if noise is None or noise.is_cuda:
            return nullcontext()
        return self.code.generators(lambda: _seed(noise) + BACKWARD)

    def _seeded(self, lent: Lent, params: Params, images: Tensor, noise: Tensor | None) -> list[Tensor]:
        devices = [images.device] if images.is_cuda else []
        seed = partial(_seed, noise)
        if noise is None or self.code.draws is not None:
            with self.code.generators(seed, devices):
                return self._each(lent, params, images)
        before = [(p, p.clone()) for p in params.values() if not p.requires_grad]  # running statistics among them

        def attempt() -> list[Tensor]:
            for p, value in before:
                p.copy_(value)
            return self._each(lent, params, images)

        return self.code.watched(attempt, list, seed, *devices)
