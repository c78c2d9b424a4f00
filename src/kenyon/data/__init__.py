"""Streams of tasks and the sources they are cut from."""

from kenyon.data.arrays import Classes, Domains, Groups, Times, from_arrays
from kenyon.data.external import from_avalanche, from_dataset, from_hugging_face
from kenyon.data.folders import from_folder
from kenyon.data.holdout import FIRST_SEED, SearchProtocol, withheld
from kenyon.data.sources import SOURCES, Group, ShuffledClasses, Source, SourceSpec, find_source, register
from kenyon.data.tasks import (
    Augmentation,
    CentreCrop,
    Crop,
    FixedTest,
    GivenValidation,
    Pool,
    Ragged,
    RandomTest,
    RandomTestByOrigin,
    ResizedCrop,
    Split,
    Stream,
    Task,
    Testing,
)

__all__ = [
    "FIRST_SEED",
    "SOURCES",
    "Augmentation",
    "CentreCrop",
    "Classes",
    "Crop",
    "Domains",
    "FixedTest",
    "GivenValidation",
    "Group",
    "Groups",
    "Pool",
    "Ragged",
    "RandomTest",
    "RandomTestByOrigin",
    "ResizedCrop",
    "SearchProtocol",
    "ShuffledClasses",
    "Source",
    "SourceSpec",
    "Split",
    "Stream",
    "Task",
    "Testing",
    "Times",
    "find_source",
    "from_arrays",
    "from_avalanche",
    "from_dataset",
    "from_folder",
    "from_hugging_face",
    "register",
    "withheld",
]
