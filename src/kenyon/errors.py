"""Errors a user can mend. The command line prints them as one message, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

SHOWN = 60  # characters of a value in a message
# What other programs call it -> what it is called here.
ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate"), "rate"),
    **dict.fromkeys(("batch_size", "bs"), "batch"),
    **dict.fromkeys(("n_epochs", "num_epochs"), "epochs"),
    **dict.fromkeys(("lambda", "lamb", "ewc_lambda", "strength"), "lambda_sp"),
    **dict.fromkeys(("memory_size", "buffer_size", "mem_size"), "memory"),
}


class KenyonError(Exception):
    """Something the user can put right: the message names it, says what was expected and what to do."""


class ConfigError(KenyonError):
    """A name, option or value that cannot be used."""


class DeviceMemoryError(KenyonError):
    """Work that the device has no room for, even in the smallest pieces."""


class DataError(KenyonError):
    """Data files that are missing, damaged or not what they claim to be."""


class ResultsError(KenyonError):
    """A results folder that cannot be written, read or continued."""


def shown(value: Any) -> str:
    """A value as a message has it: whatever it is, a few words."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, or somebody's own __repr__
        return f"a very large {type(value).__name__}" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def expected(name: str, kind: str, value: Any) -> ConfigError:
    """The error for an argument or a setting that is not of its kind."""
    return ConfigError(f"{name} must be {kind}, not {shown(value)}.")


def listed_names(kind: str, given: Any) -> list[str]:
    """Names that were given with commas between them, or as a list. They need not be known."""
    names = given.split(",") if isinstance(given, str) else given
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise expected(kind, "a name in quotes, or a list of names", given)
    found = [name.strip() if isinstance(name, str) else name for name in names]
    strange = [name for name in found if not isinstance(name, str)]
    if strange:
        raise expected(kind, "a name in quotes, or a list of names", given)
    return found


def unknown(kind: str, name: Any, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among `known`, with the nearest ones."""
    names = sorted(known)
    if not isinstance(name, str):
        return ConfigError(
            f"A {kind} goes by its name in quotes, not by {shown(name)}. There are: {', '.join(names)}."
        )
    typed = name.lower()
    if (meant := ELSEWHERE.get(typed)) in names:
        return ConfigError(f"There is no {kind} called '{name}'. Here it is called {meant}.")
    begun = [
        n for n in names if len(typed) > 1 and n.lower().startswith(typed)
    ]  # a name that was not typed to its end
    near = begun[:3] or get_close_matches(typed, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names)}."
    return ConfigError(f"There is no {kind} called '{name}'. {hint}")


@contextmanager
def optional_import(what: str, extra: str, *packages: str) -> Iterator[None]:
    """Import optional packages inside, and report a failure as what it is: a package that is not installed, or one
    that is there and cannot be imported, with the reason.

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
            f"{str(error).rstrip('.')}. Mend that, or install matching versions: pip install -U 'kenyon[{extra}]'."
        ) from error


def _installed(package: str) -> bool:
    """A folder that happens to have the name of a package, such as the one where wandb keeps runs, is none."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was put in place by hand
        return True
    return spec is not None and spec.origin is not None
