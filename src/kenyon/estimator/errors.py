"""Errors of the estimator: Kenyon's, and of the kinds that scikit-learn's conventions ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sklearn.exceptions import NotFittedError

from kenyon.errors import ConfigError, DataError, KenyonError, ResultsError


class InputError(DataError, ValueError):
    """Data given to the estimator that it cannot use."""


class InputTypeError(InputError, TypeError):
    """Data of a type that it cannot use."""


class SettingError(ConfigError, ValueError):
    """A parameter of the estimator that it cannot use, or not any more."""


class NothingLearnedError(KenyonError, NotFittedError):  # type: ignore[misc]
    """Asked before anything was learned."""


@contextmanager
def as_setting_errors() -> Iterator[None]:
    """What the parts that the estimator stands on say of its parameters is a SettingError."""
    try:
        yield
    except ConfigError as error:
        raise error if isinstance(error, SettingError) else SettingError(str(error)) from error


@contextmanager
def as_token_errors() -> Iterator[None]:
    """A token that a table of the backbone does not have, in words. Only a CPU notices in time."""
    try:
        yield
    except IndexError as error:
        if "index out of range in self" not in str(error):
            raise
        raise InputError(
            "A token lies outside of the backbone's nn.Embedding. Tokens are whole numbers from 0 to below its "
            "num_embeddings: give it more, or number the tokens anew."
        ) from error


@contextmanager
def as_write_errors(path: Path) -> Iterator[None]:
    """A file that cannot be written, in the words of who asked for it."""
    try:
        yield
    except ResultsError as error:
        reason = getattr(error.__cause__, "strerror", None) or str(error)
        raise ResultsError(
            f"Cannot write {path}: {reason}. Make room, or save elsewhere; a file that was there is as it was."
        ) from error
