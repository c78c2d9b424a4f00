"""A user's own file, named on the command line where a benchmark or a method is expected."""

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
_CODE: dict[str, str] = {}  # of each such module: a digest of what it was when it was imported


def is_user_file(name: str) -> bool:
    return name.endswith(".py")


def import_file(path: Path, kind: str) -> ModuleType:
    """Run the file, which registers what it defines. `kind`: what it is expected to define."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Give a {kind}'s name, or a file that defines one.")
    # Never that of a real module, whatever the file is called, nor that of a file of the same name elsewhere.
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
    """Where in a user's own file an error arose: mine.py, line 7, in forces. Nothing if it did not."""
    files = {sys.modules[name].__file__: name for name in _CODE if name in sys.modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            inside = "" if frame.name.startswith("<") else f", in {frame.name}"
            return f"{_near(Path(frame.filename))}, line {frame.lineno}{inside}"
    return ""


def code_digests(**parts: Callable[..., Any]) -> dict[str, str]:
    """Of the parts that are a user's own: a digest of their code, in which layout, comments and docstrings do not
    count. Of a file that is all of it; of what was defined elsewhere, in a notebook say, the function alone.
    """
    found = {name: _code(made) for name, made in parts.items()}
    return {name: digest for name, digest in found.items() if digest}


def _code(made: Callable[..., Any]) -> str:
    module = getattr(made, "__module__", None) or ""
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return ""  # Kenyon's: results name its version
    if module.startswith(MODULE_PREFIX):
        return _CODE.get(module, "")
    try:
        return _digest(textwrap.dedent(inspect.getsource(made)))
    except (OSError, TypeError):
        return ""


def _digest(source: str) -> str:
    """Nothing where it is no Python: then it says so itself."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[1:] if documented else node.body
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def command_name(name: str, made: Callable[..., Any]) -> str:
    """What a command must call a benchmark or a method: its name, or the user's own file with what `made` it."""
    module = getattr(made, "__module__", None) or ""
    if not module.startswith(MODULE_PREFIX) or module not in sys.modules:
        return name
    return str(_near(Path(str(sys.modules[module].__file__))))


def _near(file: Path) -> Path:
    """As it is called from here."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
