"""Import paths of version 0.1, which go on working with a DeprecationWarning.

`import kenyon.train` gives the module `kenyon.training` itself, under both names.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

RENAMED = {  # below kenyon; a package stands for its modules, unless they have a line of their own
    "analysis": "paper.analyses",
    "forces": "methods.penalties",
    "hooks": "methods.mechanism",
    "importance": "methods.importance",
    "mechanisms": "methods",
    "nets": "models",
    "penalties": "methods.penalties",
    "predictions": "methods.penalties",
    "reproduce": "paper.reproduce",
    "rl.policy": "experiments.policy",
    "strengths": "methods.penalties",
    "streams": "data",
    "streams.cifar": "benchmarks.cifar",
    "streams.core50": "benchmarks.core50",
    "streams.cub": "benchmarks.cub",
    "streams.digits": "benchmarks.digits",
    "streams.omniglot": "benchmarks.omniglot",
    "streams.tiny_imagenet": "benchmarks.tiny_imagenet",
    "sweep.processes": "sweep.local",
    "theory": "paper.theory",
    "tools": "regularizers",
    "tools.avalanche": "integrations.avalanche",
    "tools.huggingface": "integrations.huggingface",
    "tools.lightning": "integrations.lightning",
    "tracked": "methods.path_importance",
    "train": "training",
    "views": "utils.views",
}


class _Finder:
    """Finds modules by their old names, and only those."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("kenyon."):
            return None
        old = name.removeprefix("kenyon.")
        package, _, rest = old.partition(".")
        if old in RENAMED:
            new = RENAMED[old]
        elif package in RENAMED:
            new = f"{RENAMED[package]}.{rest}"
        else:
            return None
        origin = __file__.replace("renamed.py", new.replace(".", "/") + ".py")
        return ModuleSpec(name, _Loader(f"kenyon.{new}"), origin=origin)  # type: ignore[arg-type]


class _Loader:  # importlib.abc.Loader, which takes long to import
    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the usual module, in whose place `exec_module` puts the one that has the new name."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warnings.warn(f"{old} is {self.new} now.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = found = import_module(self.new)
        for name, new in RENAMED.items():
            if old == "kenyon.streams" and name.startswith("streams."):  # from kenyon.streams import cifar
                setattr(found, name.removeprefix("streams."), import_module(f"kenyon.{new}"))


def keep_old_imports() -> None:
    sys.meta_path.insert(0, _Finder)
