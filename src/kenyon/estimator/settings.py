"""From the parameters of the estimator to a backbone, a method, a training regime and a network.

A `Setup` holds them for one task. Some parameters are fixed from the first task on: a later setup with other values
is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from kenyon.backends.torch.generators import seeded
from kenyon.backends.torch.module import split_backbone
from kenyon.data.tasks import Heads, Stream
from kenyon.errors import shown, unknown
from kenyon.estimator.errors import SettingError, as_setting_errors, flag, number, one_of, whole
from kenyon.methods import METHODS, Method, find_method
from kenyon.models import Diversity, Net, Start
from kenyon.training import Trainer, Training
from kenyon.training.device import choose_device
from kenyon.utils.threads import single_precision

if TYPE_CHECKING:
    from kenyon.estimator.inputs import Form

PRECISIONS = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
WORDS = {
    "precision": PRECISIONS,
    "heads": get_args(Heads),
    "diversity": get_args(Diversity),
    "start": get_args(Start),
}
# Parameters that cannot change after the first task; frozen: a checksum of constants of the backbone.
FIXED = ("method", "learners", "heads", "standardise", "diversity", "gate", "start", "seed", "frozen")
# Schedules of methods that cannot learn tasks one by one, with the reason.
UNSUITED = {
    "joint": "learns all tasks at once, and here they arrive one by one",
    "restart": "keeps nothing of the tasks before",
}

Backbone = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True, eq=False)
class Setup:
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
    def independent(self) -> int:
        """Number of networks that learn independently."""
        return int(self.fixed["learners"]) if self.method.apart else 1

    @single_precision()
    def net(self, class_counts: Sequence[int]) -> Net:
        method, K = self.method, self.fixed["learners"] // self.independent

        def build(learned: dict[str, tuple[int, ...]], dtype: torch.dtype | None) -> Net:
            shapes = (self.backbone, self.form.shape, class_counts)
            options = {**self.options, "learned": learned, "dtype": dtype}
            return Net(*shapes, learners=K, active_column=method.active_column, **options)

        with as_setting_errors():
            bare = build({}, self.options["dtype"])
            learned = method.learned(bare)
            return build(learned, bare.dtype) if learned else bare

    def trainer(self, stream: Stream) -> Trainer:
        net = self.net(stream.class_counts)
        with as_setting_errors():
            return Trainer(net, [stream], self.method, self.training, members=self.independent)

    def check_fixed(self, fixed: Mapping[str, Any]) -> None:
        """Raise SettingError if a fixed parameter differs from that of earlier tasks."""
        for name, before in fixed.items():
            if self.fixed[name] == before:
                continue
            if name == "frozen":
                raise SettingError(
                    "The backbone's frozen weights or constants have other values than when the tasks before were "
                    "learned. Give the backbone with the same ones, or begin with a new learner."
                )
            raise SettingError(
                f"{name} was {before!r} when the tasks before were learned; now it is {shown(self.fixed[name])}. "
                "Set it back with set_params, or begin with a new learner."
            )


def make_setup(parameters: Mapping[str, Any], form: Form, *, validated: bool) -> Setup:
    """Check the parameters of the estimator. `validated`: there are validation samples."""
    values, given = dict(parameters), parameters["backbone"]
    backbone = build_backbone(given, prod(form.shape))
    for name, known in WORDS.items():
        values[name] = one_of(name, values[name], known)
    for name in ("standardise", "gate"):
        values[name] = flag(name, values[name])
    values["seed"] = whole("seed", values["seed"], 0)
    with as_setting_errors():
        strengths = {name: values[name] for name in ("lambda_sp", "lambda_af", "gamma")}
        method = build_method(values["method"], strengths, values["options"])
        values["learners"] = count_learners(values["method"], method, values["learners"])
        validation = values["validation"] if validated else None
        training = build_training(values["epochs"], values["batch"], values["rate"], validation)
        options = {
            "diversity": values["diversity"],
            "gate": values["gate"],
            "shared_head": values["heads"] == "shared",
            "start": values["start"],
            "draw": None if given is backbone else given,
            "device": choose_device(values["device"]),
            "dtype": PRECISIONS[values["precision"]],
            "input_dtype": form.input_dtype,
            "in_place": form.kind == "bytes",
        }
        values["frozen"] = frozen_checksum(backbone)
    return Setup(backbone, form, method, training, {name: values[name] for name in FIXED}, options)


# ---------------------------------------------------------------------- backbone


@single_precision()
def build_backbone(backbone: Backbone, features: int) -> nn.Module:
    """Return the backbone as a module, for samples of `features` numbers."""
    if isinstance(backbone, nn.Module):
        return backbone
    if backbone is None:
        backbone = partial(default_backbone, features)
    module: Any = backbone
    if callable(backbone) and _callable_without_arguments(backbone):
        module = seeded(backbone, 0)  # without a trace in PyTorch's own generator
    if not isinstance(module, nn.Module):
        raise SettingError(
            "backbone must be a torch.nn.Module, or a function without arguments that builds one, not "
            f"{type(backbone if module is None else module).__name__}."
        )
    return module


def default_backbone(features: int) -> nn.Module:
    """Two dense layers of 64 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


def _callable_without_arguments(function: Callable[..., Any]) -> bool:
    try:
        signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        pass  # it has no signature
    return True


def takes_tokens(backbone: nn.Module) -> bool:
    """Return True if whole numbers are tokens: a layer embeds them."""
    return any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in backbone.modules())


def frozen_checksum(backbone: nn.Module) -> int:
    """Return a checksum of the constants of a backbone, which all learners share."""
    crc = 0
    for name, value in sorted(split_backbone(backbone).constants.items()):
        data = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        crc = zlib.crc32(data, zlib.crc32(name.encode(), crc))
    return crc


# ---------------------------------------------------------------------- method and training


def build_method(name: str, strengths: Mapping[str, float | None], options: Mapping[str, Any] | None) -> Method:
    """Return a method that can learn tasks one by one. `strengths`: None for the default; `options`: the rest."""
    if not isinstance(name, str) or name not in METHODS:
        raise SettingError(
            f"{unknown('method', name, METHODS)} If it is one of your own, import the module that defines it first."
        )
    spec = find_method(name)
    _check_schedule(name, spec.schedule)  # before asking for values
    given = {
        n: number(n, value, "a finite number, 0 or larger") for n, value in strengths.items() if value is not None
    }
    if options is not None and not isinstance(options, Mapping):
        raise SettingError(f"options must be a dictionary of settings by name, not {shown(options)}.")
    twice = sorted(set(given) & set(options or {}))
    if twice:
        raise SettingError(f"{twice[0]} is given twice, by itself and in options. Give it once.")
    settings = spec.resolve({**given, **(options or {})}, spec.defaults)
    missing = [needed for needed in spec.required if needed not in settings]
    if missing:
        arguments = [f"{needed}=VALUE" for needed in missing if needed in strengths]
        entries = [f'"{needed}": VALUE' for needed in missing if needed not in strengths]
        remedy = ", ".join([*arguments, *([f"options={{{', '.join(entries)}}}"] if entries else [])])
        raise SettingError(f"{name} needs {', '.join(missing)}: give it with {remedy}.")
    method = spec(settings)
    _check_schedule(name, method.schedule)
    return method


def _check_schedule(name: str, schedule: str) -> None:
    if schedule in UNSUITED:
        others = sorted(n for n in METHODS if find_method(n).schedule not in UNSUITED)
        raise SettingError(f"{name} {UNSUITED[schedule]}. Choose another method: {', '.join(others)}.")


def count_learners(name: str, method: Method, learners: int | None) -> int:
    """Return the number of learners of a method; None: its own."""
    if learners is None:
        return method.learners
    learners = whole("learners", learners, 1)
    if learners > 1 and not method.multi:
        several = sorted(n for n in METHODS if find_method(n).multi and find_method(n).schedule == "sequential")
        raise SettingError(
            f"{name} has one learner, not {shown(learners)}. Leave learners out, or choose {', '.join(several)}."
        )
    return learners


def build_training(epochs: int, batch: int, rate: float, validation: float | None) -> Training:
    """Return the training regime. `validation`: the share that chooses the best weights and lowers the rate, any
    share if the samples are given; None: there are none, the rate stays and the last weights are kept.
    """
    epochs, batch, rate = whole("epochs", epochs, 1), whole("batch", batch, 1), number("rate", rate)
    if validation is None:
        return Training(epochs=epochs, batch=batch, rate=rate, validation=0.0, schedule="step", drop=1.0)
    return Training(epochs=epochs, batch=batch, rate=rate, validation=validation or 0.1)
