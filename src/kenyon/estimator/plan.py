"""How to learn: the estimator's parameters as a method, a training regime and a network."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from typing import Any, get_args

import torch
from torch import nn

from kenyon.errors import shown
from kenyon.estimator.errors import SettingError, as_setting_errors
from kenyon.estimator.form import Form
from kenyon.estimator.settings import (
    build_method,
    build_training,
    default_backbone,
    flag,
    learners_of,
    one_of,
    single_precision,
    whole,
)
from kenyon.methods import Method
from kenyon.nets import Diversity, Net, Start
from kenyon.nets.fresh import seeded
from kenyon.nets.parts import take_apart
from kenyon.streams.task import Heads, Stream
from kenyon.train import Trainer, Training
from kenyon.train.device import choose_device

PRECISIONS = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
# From the first task on.
FIXED = ("method", "learners", "heads", "standardise", "diversity", "gate", "start", "seed", "frozen")

Backbone = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True, eq=False)
class Plan:
    backbone: nn.Module
    form: Form
    method: Method
    training: Training
    fixed: dict[str, Any]  # the values of FIXED
    options: Mapping[str, Any]  # of `Net`

    @property
    def seed(self) -> int:
        return int(self.fixed["seed"])

    @property
    def members(self) -> int:
        """How many networks learn independently."""
        return int(self.fixed["learners"]) if self.method.apart else 1

    @single_precision()
    def net(self, class_counts: Sequence[int]) -> Net:
        method, K = self.method, self.fixed["learners"] // self.members

        def build(learned: dict[str, tuple[int, ...]], dtype: torch.dtype | None) -> Net:
            place = (self.backbone, self.form.shape, class_counts)
            options = {**self.options, "learned": learned, "dtype": dtype}
            return Net(*place, learners=K, active_column=method.active_column, **options)

        with as_setting_errors():
            bare = build({}, self.options["dtype"])
            learned = method.learned(bare)
            return build(learned, bare.dtype) if learned else bare

    def trainer(self, stream: Stream) -> Trainer:
        net = self.net(stream.class_counts)
        with as_setting_errors():
            return Trainer(net, [stream], self.method, self.training, members=self.members)

    def check_against(self, fixed: Mapping[str, Any]) -> None:
        """That nothing has changed that other tasks were learned with."""
        for name, was in fixed.items():
            if self.fixed[name] == was:
                continue
            if name == "frozen":
                raise SettingError(
                    "The backbone's frozen weights or constants have other values than when the tasks before were "
                    "learned. Give the backbone with the same ones, or begin with a new learner."
                )
            raise SettingError(
                f"{name} was {was!r} when the tasks before were learned; now it is {shown(self.fixed[name])}. "
                "Set it back with set_params, or begin with a new learner."
            )


@single_precision()
def built(backbone: Backbone, features: int) -> nn.Module:
    """The backbone as a module, whatever it was given as; `features`: numbers of a sample."""
    if isinstance(backbone, nn.Module):
        return backbone
    if backbone is None:
        backbone = partial(default_backbone, features)
    module = None
    if callable(backbone) and _takes_nothing(backbone):
        module = seeded(backbone, 0)  # PyTorch's own generator shall not notice
    if not isinstance(module, nn.Module):
        raise SettingError(
            "backbone must be a torch.nn.Module, or a function without arguments that builds one, not "
            f"{type(backbone if module is None else module).__name__}."
        )
    return module


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments, as far as it tells."""
    try:
        signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        pass  # it does not tell
    return True


def frozen_parts(backbone: nn.Module) -> int:
    """A checksum of what all learners share and nothing changes."""
    found = 0
    for name, value in sorted(take_apart(backbone).constants.items()):
        data = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found = zlib.crc32(data, zlib.crc32(name.encode(), found))
    return found


def make_plan(parameters: Mapping[str, Any], form: Form, *, validated: bool) -> Plan:
    """From the parameters of the estimator; `validated`: see `build_training`."""
    values, given = dict(parameters), parameters["backbone"]
    backbone = built(given, prod(form.shape))
    words = {
        "precision": PRECISIONS,
        "heads": get_args(Heads),
        "diversity": get_args(Diversity),
        "start": get_args(Start),
    }
    for name, known in words.items():
        values[name] = one_of(name, values[name], known)
    for name in ("standardise", "gate"):
        values[name] = flag(name, values[name])
    values["seed"] = whole("seed", values["seed"], 0)
    with as_setting_errors():
        strengths = {name: values[name] for name in ("lambda_sp", "lambda_af", "gamma")}
        method = build_method(values["method"], strengths, values["options"])
        values["learners"] = learners_of(values["method"], method, values["learners"])
        share = values["validation"] if validated else None
        training = build_training(values["epochs"], values["batch"], values["rate"], share)
        options = {
            "diversity": values["diversity"],
            "gate": values["gate"],
            "shared_head": values["heads"] == "shared",
            "start": values["start"],
            "draw": None if isinstance(given, nn.Module) else given,
            "device": choose_device(values["device"]),
            "dtype": PRECISIONS[values["precision"]],
            "input_dtype": form.input_dtype,
            "in_place": form.kind == "bytes",
        }
        values["frozen"] = frozen_parts(backbone)
    return Plan(backbone, form, method, training, {name: values[name] for name in FIXED}, options)
