"""Errors of the estimator, which are also those of scikit-learn's conventions, and checks of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from kenyon.errors import ConfigError, DataError, KenyonError, ResultsError, shown
from kenyon.utils.checks import as_integer, as_number


class InputError(DataError, ValueError):
    """Data that the estimator cannot use."""


class InputTypeError(InputError, TypeError):
    """Data of a type that the estimator cannot use."""


class SettingError(ConfigError, ValueError):
    """A parameter that the estimator cannot use, or that can no longer change."""


class NothingLearnedError(KenyonError, NotFittedError):  # type: ignore[misc]
    """A call that needs a learned task, before the first."""


# ---------------------------------------------------------------------- checks of parameters


def whole(name: str, value: Any, least: int) -> int:
    """Return a whole number, Python's or NumPy's."""
    number = as_integer(value)
    if number is None or number < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, not {shown(value)}.")
    return number


def number(name: str, value: Any, kind: str = "a number") -> Any:
    """Return a number, Python's, NumPy's, or that of an array or tensor with one element."""
    checked = as_number(value)
    if checked is None:
        raise SettingError(f"{name} must be {kind}, not {shown(value)}.")
    return checked


def share(name: str, value: Any) -> float:
    """Return a share, at least 0 and below 1."""
    checked = as_number(value)
    if checked is None or not 0 <= checked < 1:
        raise SettingError(f"{name} is a share of at least 0 and below 1, not {shown(value)}.")
    return float(checked)


def flag(name: str, value: Any) -> bool:
    """Return True or False, also NumPy's, and for 1 or 0."""
    if type(value) not in (bool, np.bool_) and as_integer(value) not in (0, 1):
        raise SettingError(f"{name} must be True or False, not {shown(value)}.")
    return bool(value)


def one_of(name: str, value: Any, words: Iterable[str]) -> str:
    """Return one of some words."""
    words = list(words)
    if not isinstance(value, str) or value not in words:
        known = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
        raise SettingError(f"{name} must be {known}, not {shown(value)}.")
    return str(value)


# ---------------------------------------------------------------------- errors of other parts


@contextmanager
def as_setting_errors() -> Iterator[None]:
    """Raise errors of other parts of Kenyon about parameters as SettingError."""
    try:
        yield
    except SettingError:
        raise
    except ConfigError as error:
        raise SettingError(str(error)) from error


@contextmanager
def as_token_errors() -> Iterator[None]:
    """Explain a token outside of the backbone's embedding. Only a CPU raises in time."""
    try:
        yield
    except IndexError as error:
        if "index out of range in self" not in str(error):
            raise
        raise InputError(
            "A token lies outside of the backbone's nn.Embedding. Tokens are whole numbers from 0 to below its "
            "num_embeddings: give it more, or renumber the tokens."
        ) from error


@contextmanager
def as_write_errors(path: Path) -> Iterator[None]:
    """Raise errors of writing with the path and the remedy of the estimator."""
    try:
        yield
    except ResultsError as error:
        reason = getattr(error.__cause__, "strerror", None) or str(error)
        raise ResultsError(
            f"Cannot write {path}: {reason}. Make room, or save elsewhere; a file that was there is as it was."
        ) from error
