"""The parameters of a user's model that a loss covers, and those that a loss learns itself.

With torch.distributed, what is measured or learned is the same in all processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from kenyon.errors import ConfigError, expected, unknown


def processes() -> int:
    """Return the number of processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def summed(tensor: Tensor) -> Tensor:
    """Return the sum over all processes."""
    shared = tensor.to(_exchange_device(tensor), copy=True)
    dist.all_reduce(shared)
    return shared.to(tensor.device)


def of_first(tensor: Tensor) -> Tensor:
    """Return the tensor of the first process."""
    shared = tensor.to(_exchange_device(tensor), copy=True)
    dist.broadcast(shared, 0)
    return shared.to(tensor.device)


def _exchange_device(tensor: Tensor) -> torch.device:
    """The device on which processes can exchange a tensor: NCCL needs a GPU."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else tensor.device


class Learned(nn.Module):
    """A loss with parameters of its own, for the optimizer that trains the model.

    They are drawn from N(0, 1) at the start of every task. With several processes, all have those of the first and
    average their gradients, so that such a loss needs no DistributedDataParallel.
    """

    learned: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        """`shape`: of the parameters; None for a loss without any."""
        super().__init__()
        self.tasks_begun = 0
        self.register_parameter("learned", None if shape is None else nn.Parameter(torch.empty(shape)))
        self._draw()

    def begin_task(self) -> None:
        """Draw the parameters. Call it at the start of every task, before its optimizer is made."""
        self.tasks_begun += 1
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        if self.learned is not None:
            self.learned.normal_()
            if processes() > 1:
                self.learned.copy_(of_first(self.learned))

    def averaged(self) -> Tensor | None:
        """Return the parameters, with a gradient that is averaged over processes."""
        if self.learned is None or processes() == 1:
            return self.learned
        return _Averaged.apply(self.learned)  # type: ignore[no-untyped-call]

    def get_extra_state(self) -> dict[str, int]:
        return {"tasks_begun": self.tasks_begun}

    def set_extra_state(self, state: dict[str, int]) -> None:
        check_state(state, type(self).__name__, "tasks_begun")
        self.tasks_begun = state["tasks_begun"]


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return summed(gradient) / processes()


Excluded = str | nn.Module | Sequence[str | nn.Module]


def bare(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel, torch.compile or Fabric, which share its parameters."""
    while True:
        # torch.compile's module, and Fabric's
        inner = getattr(model, "_orig_mod", None), getattr(model, "_original_module", None)
        wrapped = next((module for module in inner if isinstance(module, nn.Module)), None)
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif wrapped is not None:
            model = wrapped
        else:
            return model


def bare_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper of Accelerate, Fabric or Lightning: its hooks see every step."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def listed(exclude: Excluded) -> list[str | nn.Module]:
    """Return one or several exclusions as a list."""
    if isinstance(exclude, (str, nn.Module)):
        return [exclude]
    if not isinstance(exclude, Iterable):
        raise expected("exclude", "names or modules of the model, such as 'head' or '2'", exclude)
    return list(exclude)


class Chosen:
    """All parameters of a model but the excluded ones.

    Exclusions are names of parameters or modules, or modules. Parameters of a loss (`Learned`) are always excluded.
    They are looked up every time, so that a changed model is noticed: only what is excluded may grow.
    """

    def __init__(self, model: nn.Module, exclude: Excluded = ()) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"The model must be a torch.nn.Module, not a {type(model).__name__}.")
        self.model = bare(model)
        if lazy := next((name for name, p in self.model.named_parameters() if is_lazy(p)), None):
            raise ConfigError(f"{lazy} has no shape yet. Send a batch through the model first.")
        self.exclude = listed(exclude)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self._find().items()}
        if not self.shapes:
            raise ConfigError(f"No parameter of {type(self.model).__name__} is left. Exclude less.")

    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name, or raise an error if they are not those of the beginning."""
        found = self._find()
        check_shapes(self.shapes, {name: tuple(p.shape) for name, p in found.items()}, "the model")
        return found

    def restored(self, saved: dict[str, Tensor], where: str) -> dict[str, Tensor]:
        """Return copies of saved tensors, one a parameter, on the devices of the parameters."""
        check_shapes(self.shapes, {name: tuple(tensor.shape) for name, tensor in saved.items()}, where)
        parameters = self.named()
        return {name: saved[name].to(p.device, precise(p), copy=True) for name, p in parameters.items()}

    def _find(self) -> dict[str, nn.Parameter]:
        own = [module for module in self.model.modules() if isinstance(module, Learned)]
        others = {id(p) for module in (*self._modules(), *own) for p in module.parameters()}
        names = [name for name in self.exclude if isinstance(name, str)]
        # Under all names: a weight that two layers share is excluded with either of them.
        every = list(self.model.named_parameters(remove_duplicate=False))
        known = {n for n, _ in (*every, *self.model.named_modules(remove_duplicate=False)) if n}
        for name in names:
            if name not in known:
                raise unknown(f"module or parameter of {type(self.model).__name__}", name, known)
        others |= {id(parameter) for name, parameter in every if _inside(name, names)}
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if id(parameter) not in others and parameter.is_floating_point()
        }

    def _modules(self) -> list[nn.Module]:
        inside = {id(module) for module in self.model.modules()}
        modules = [bare(module) for module in self.exclude if isinstance(module, nn.Module)]
        for module in modules:
            if id(module) not in inside:
                raise ConfigError(
                    f"A {type(module).__name__} is excluded that is no part of the model. Exclude by its name what "
                    "is replaced or made later."
                )
        return modules


def check_state(state: Any, owner: str, *keys: str) -> None:
    """Refuse what is not a state dictionary with these keys."""
    if not isinstance(state, dict) or not set(keys) <= set(state):
        raise ConfigError(f"This is no state of {owner}. Give what its state_dict() gave.")


def check_shapes(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], where: str) -> None:
    """Refuse parameters whose names or shapes are not the expected ones."""
    for name, shape in expected.items():
        if name not in found:
            raise ConfigError(
                f"{name} is not in {where} any more. Make a new loss for the model as it is; its names must stay."
            )
        if found[name] != shape:
            raise ConfigError(
                f"{name} was {shape} and is {found[name]} in {where}. Exclude what changes its shape, such as a head "
                "that grows."
            )
    for name in found:
        if name not in expected:
            raise ConfigError(f"{name} in {where} is new. Exclude it, or the module it is in, from the beginning.")


def like(stored: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return stored tensors on the devices of the parameters: a model may have moved."""
    if all(tensor.device == parameters[name].device for name, tensor in stored.items()):
        return stored
    return {name: tensor.to(parameters[name].device) for name, tensor in stored.items()}


def precise(parameter: Tensor) -> torch.dtype:
    """Return the dtype of statistics of a parameter: half precision is too coarse for squares of gradients."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _inside(name: str, names: Sequence[str]) -> bool:
    """Return True if a parameter's name, or that of a module around it, is among `names`."""
    return any(name == other or name.startswith(f"{other}.") for other in names)
