"""Streams of tasks and the sources they are cut from. Importing it registers the known sources."""

from kenyon.streams import cifar, digits
from kenyon.streams.catalog import SOURCES, SourceSpec, find_source, register
from kenyon.streams.source import Group, Source
from kenyon.streams.task import Split, Stream, Task

__all__ = [
    "SOURCES",
    "Group",
    "Source",
    "SourceSpec",
    "Split",
    "Stream",
    "Task",
    "cifar",
    "digits",
    "find_source",
    "register",
]
