"""From the estimator's parameters to a method and a training regime, with values for data nobody has tuned on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import nn

from kenyon.errors import shown, unknown
from kenyon.estimator.errors import SettingError
from kenyon.methods import METHODS, Method, find_method
from kenyon.training import Training
from kenyon.utils.threads import Shared


def build_method(name: str, strengths: Mapping[str, float | None], options: Mapping[str, Any] | None) -> Method:
    """One whose tasks may arrive one by one. `strengths`: None stands for the default; `options`: anything else that
    the method takes.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise SettingError(
            f"{unknown('method', name, METHODS)} If it is one of your own, import the module that defines it first."
        )
    spec = find_method(name)
    _check_growing(name, spec.schedule)  # before it asks for values
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
        by_itself = [f"{needed}=VALUE" for needed in missing if needed in strengths]
        among = [f'"{needed}": VALUE' for needed in missing if needed not in strengths]
        told = ", ".join([*by_itself, *([f"options={{{', '.join(among)}}}"] if among else [])])
        raise SettingError(f"{name} needs {', '.join(missing)}: give it with {told}.")
    made = spec(settings)
    _check_growing(name, made.schedule)
    return made


def _check_growing(name: str, schedule: str) -> None:
    words = {
        "joint": "learns all tasks at once, and here they arrive one by one",
        "restart": "keeps nothing of the tasks before",
    }
    if schedule in words:
        others = sorted(n for n in METHODS if find_method(n).schedule not in words)
        raise SettingError(f"{name} {words[schedule]}. Choose another method: {', '.join(others)}.")


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, Python's or NumPy's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, not {shown(value)}.")
    return int(value)


def number(name: str, value: Any, kind: str = "a number") -> Any:
    """A number, Python's, NumPy's, or alone in an array or a tensor."""
    try:
        found = value.item() if isinstance(value, (np.ndarray, torch.Tensor)) else value
    except (RuntimeError, ValueError):  # of several, or without data
        found = None
    if isinstance(found, (bool, np.bool_)) or not isinstance(found, Real):
        raise SettingError(f"{name} must be {kind}, not {shown(value)}.")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False, also as 1 or 0."""
    if not isinstance(value, (bool, np.bool_, Integral)) or value not in (0, 1):
        raise SettingError(f"{name} must be True or False, not {shown(value)}.")
    return bool(value)


def one_of(name: str, value: Any, words: Iterable[str]) -> str:
    """One of some words."""
    words = list(words)
    if not isinstance(value, str) or value not in words:
        known = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
        raise SettingError(f"{name} must be {known}, not {shown(value)}.")
    return str(value)


def learners_of(name: str, made: Method, learners: int | None) -> int:
    """How many learners a method of that name has."""
    if learners is None:
        return made.learners
    learners = whole("learners", learners, 1)
    if learners > 1 and not made.multi:
        several = sorted(n for n in METHODS if find_method(n).multi and find_method(n).schedule == "sequential")
        raise SettingError(
            f"{name} has one learner, not {shown(learners)}. Leave learners out, or choose {', '.join(several)}."
        )
    return learners


def build_training(epochs: int, batch: int, rate: float, validation: float | None) -> Training:
    """`validation`: the share that is held out to tell the best weights, and when the rate should fall; any where
    such samples are given. None: there are none, the rate stays and the last weights are kept.
    """
    epochs, batch, rate = whole("epochs", epochs, 1), whole("batch", batch, 1), number("rate", rate)
    if validation is None:
        return Training(epochs=epochs, batch=batch, rate=rate, validation=0.0, schedule="step", drop=1.0)
    return Training(epochs=epochs, batch=batch, rate=rate, validation=validation or 0.1)


def _float32() -> Callable[[], None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return partial(torch.set_default_dtype, before)


_single_precision = Shared(_float32)


@contextmanager
def single_precision() -> Iterator[None]:
    """Networks are made and asked in float32, whatever torch.set_default_dtype says elsewhere."""
    with _single_precision:
        yield


def default_backbone(features: int) -> nn.Module:
    """Two dense layers, where the user has no network of their own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


def takes_tokens(backbone: nn.Module) -> bool:
    """Whether whole numbers are meant as such: there is a layer that looks them up."""
    return any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in backbone.modules())
