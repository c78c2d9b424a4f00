"""Errors of the estimator: Kenyon's, and of the kinds that scikit-learn's conventions ask for."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from kenyon.errors import ConfigError, DataError, KenyonError


class InputError(DataError, ValueError):
    """Data given to the estimator that it cannot use."""


class InputTypeError(InputError, TypeError):
    """Data of a type that it cannot use."""


class SettingError(ConfigError, ValueError):
    """A parameter of the estimator that it cannot use, or not any more."""


class NothingLearnedError(KenyonError, NotFittedError):  # type: ignore[misc]
    """Asked before anything was learned."""
