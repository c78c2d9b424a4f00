"""Streams of tasks and the sources they are cut from.

Names are imported when they are first asked for, and the known sources registered then: `kenyon data list`
needs only `folders` and `archives` from here, and must not wait for PyTorch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kenyon.streams.catalog import SOURCES, find_source, source
    from kenyon.streams.source import Group, Source
    from kenyon.streams.task import Split, Stream, Task

__all__ = ["SOURCES", "Group", "Source", "Split", "Stream", "Task", "find_source", "source"]

HOMES = {
    "SOURCES": "catalog",
    "find_source": "catalog",
    "source": "catalog",
    "Group": "source",
    "Source": "source",
    "Split": "task",
    "Stream": "task",
    "Task": "task",
}
KNOWN = ("digits", "cifar")  # the modules that register sources


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    for module in KNOWN:
        import_module(f"{__name__}.{module}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


class _Streams(ModuleType):
    """Keeps `source` the decorator, although Python binds the submodule of that name when it is imported."""

    @property
    def source(self) -> object:
        return __getattr__("source")

    @source.setter
    def source(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Streams
