"""A user's own file, named on the command line where a benchmark or a method is expected."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from kenyon.errors import ConfigError, KenyonError

OWN = "kenyon_user_"  # begins the names of their modules


def is_user_file(name: str) -> bool:
    return name.endswith(".py")


def import_file(path: Path, kind: str) -> ModuleType:
    """Run the file, which registers what it defines. `kind`: what it is expected to define."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Give a {kind}'s name, or a file that defines one.")
    # Never that of a real module, whatever the file is called, nor that of a file of the same name elsewhere.
    name = f"{OWN}{path.stem}_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KenyonError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be imported: {type(error).__name__}: {error}. Mend it and run again."
        ) from error
    return module


def name_or_file(name: str, made: Callable[..., Any]) -> str:
    """What a command must call a benchmark or a method: its name, or the user's own file with what `made` it."""
    module = getattr(made, "__module__", None) or ""
    if not module.startswith(OWN) or module not in sys.modules:
        return name
    file = Path(str(sys.modules[module].__file__))
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
