"""Errors that a user can fix. The command line prints their message without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

SHOWN = 60  # characters of a value in a message
# Name in other programs -> name in Kenyon.
ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate"), "rate"),
    **dict.fromkeys(("batch_size", "bs"), "batch"),
    **dict.fromkeys(("n_epochs", "num_epochs"), "epochs"),
    **dict.fromkeys(("lambda", "lamb", "ewc_lambda", "strength"), "lambda_sp"),
    **dict.fromkeys(("memory_size", "buffer_size", "mem_size"), "memory"),
}


class KenyonError(Exception):
    """An error that the user can fix: the message names the cause, what was expected, and the remedy."""


class ConfigError(KenyonError):
    """A name, option or value that cannot be used."""


class DeviceMemoryError(KenyonError):
    """Work that does not fit the memory of the device, even in the smallest chunks."""


class DataError(KenyonError):
    """Data that are missing, damaged or not of the expected form."""


class ResultsError(KenyonError):
    """A results folder that cannot be written, read or continued."""


def shown(value: Any) -> str:
    """Return a short text for any value, for a message."""
    try:
        text = repr(value)
    except Exception:  # a whole number of thousands of digits, or a failing __repr__
        return f"a very large {type(value).__name__}" if type(value) is int else f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def expected(name: str, kind: str, value: Any) -> ConfigError:
    """Return the error for an argument or a setting of the wrong kind."""
    return ConfigError(f"{name} must be {kind}, not {shown(value)}.")


def listed_names(kind: str, given: Any) -> list[str]:
    """Return names given as text with commas, or as a list. They need not be known."""
    try:
        return [str.strip(name) for name in (given.split(",") if isinstance(given, str) else given)]
    except TypeError:  # not a list, or an entry is not a name
        raise expected(kind, "a name in quotes, or a list of names", given) from None


def unknown(kind: str, name: Any, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among `known`, with the nearest ones."""
    names = sorted(known)
    if not isinstance(name, str):
        return ConfigError(
            f"A {kind} goes by its name in quotes, not by {shown(name)}. There are: {', '.join(names)}."
        )
    typed = name.lower()
    if (meant := ELSEWHERE.get(typed)) in names:
        return ConfigError(f"There is no {kind} called '{name}'. Here it is called {meant}.")
    completions = [n for n in names if len(typed) > 1 and n.lower().startswith(typed)]
    near = completions[:3] or get_close_matches(typed, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names)}."
    return ConfigError(f"There is no {kind} called '{name}'. {hint}")


@contextmanager
def optional_import(what: str, extra: str, *packages: str) -> Iterator[None]:
    """Import optional packages inside; raise ConfigError if one is not installed, or is and cannot be imported.

        with optional_import("ProtectionCallback", "lightning", "lightning"):
            from lightning.pytorch.callbacks import Callback

    `what` needs `packages` (names to import), which the extra `kenyon[extra]` installs.
    """
    try:
        yield
    except Exception as error:  # packages built for other versions of their dependencies raise errors of all kinds
        missing = [package for package in packages if not _installed(package)]
        if missing:
            raise ConfigError(
                f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
                f"pip install 'kenyon[{extra}]'."
            ) from error
        broken = next((package for package in packages if package not in sys.modules), packages[0])
        raise ConfigError(
            f"{what} needs {broken}, which is installed but cannot be imported: {type(error).__name__}: "
            f"{str(error).rstrip('.')}. Fix that, or install matching versions: pip install -U 'kenyon[{extra}]'."
        ) from error


def _installed(package: str) -> bool:
    """Return True for an installed package. A folder of that name, as wandb makes for runs, is none."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was put in place by hand
        return True
    return spec is not None and spec.origin is not None
