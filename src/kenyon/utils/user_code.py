"""Python files of the user's own, named on the command line where a benchmark or a method is expected."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from kenyon.errors import ConfigError, KenyonError

MODULE_PREFIX = "kenyon_user_"  # begins the names of their modules
_CODE: dict[str, str] = {}  # module name -> digest of its source when it was imported
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)  # nodes that may have a docstring


def is_user_file(name: str) -> bool:
    return name.endswith(".py")


def import_file(path: Path, kind: str) -> ModuleType:
    """Import a file, which registers what it defines. `kind`: what it should define, for messages."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Give a {kind}'s name, or a file that defines one.")
    # Unlike the name of any real module, and of a file of the same name in another folder.
    name = f"{MODULE_PREFIX}{path.stem}_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]}"
    _CODE[name] = _digest(path.read_text(encoding="utf-8", errors="replace"))
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KenyonError:
        raise
    except Exception as error:
        where = location_in_user_file(error) or f"{path} cannot be imported"
        raise ConfigError(f"{where}: {type(error).__name__}: {error}. Mend it and run again.") from error
    return module


def location_in_user_file(error: BaseException) -> str:
    """Return the place in a user's file where an error arose, such as "own.py, line 7, in penalty"; else ""."""
    files = {sys.modules[name].__file__: name for name in _CODE if name in sys.modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            inside = "" if frame.name.startswith("<") else f", in {frame.name}"
            return f"{_relative(Path(frame.filename))}, line {frame.lineno}{inside}"
    return ""


def code_digests(**parts: Callable[..., Any]) -> dict[str, str]:
    """Return a digest of the code of each part that is the user's own: of the whole file, or, for a function defined
    elsewhere (in a notebook), of the function. Layout, comments and docstrings do not count.
    """
    digests = {name: _code(part) for name, part in parts.items()}
    return {name: digest for name, digest in digests.items() if digest}


def _code(part: Callable[..., Any]) -> str:
    module = getattr(part, "__module__", None) or ""
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return ""  # Kenyon's: results name its version
    if module.startswith(MODULE_PREFIX):
        return _CODE.get(module, "")
    try:
        return _digest(textwrap.dedent(inspect.getsource(part)))
    except (OSError, TypeError):
        return ""


def _digest(source: str) -> str:
    """Return a digest of source code; "" if it is no Python, for which importing it raises."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def command_name(name: str, part: Callable[..., Any]) -> str:
    """Return how a command names a benchmark or a method: by its name, or by the user's file that defines it."""
    module = getattr(part, "__module__", None) or ""
    if not module.startswith(MODULE_PREFIX) or module not in sys.modules:
        return name
    return str(_relative(Path(str(sys.modules[module].__file__))))


def _relative(file: Path) -> Path:
    """Return a path relative to the current folder, where it lies below."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
