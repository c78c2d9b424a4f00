"""Streams of tasks and the sources they are cut from. Importing it registers the known sources."""

from kenyon.streams import cifar, core50, cub, digits, omniglot, tiny_imagenet
from kenyon.streams.arrays import from_arrays
from kenyon.streams.catalog import SOURCES, SourceSpec, find_source, register
from kenyon.streams.cuts import Classes, Domains, Groups, Times
from kenyon.streams.datasets import from_avalanche, from_dataset
from kenyon.streams.hugging_face import from_hugging_face
from kenyon.streams.image_folders import from_folder
from kenyon.streams.partition import FixedTest, GivenValidation, RandomTest, RandomTestByOrigin
from kenyon.streams.pool import Pool, Ragged
from kenyon.streams.source import Group, ShuffledClasses, Source
from kenyon.streams.task import Split, Stream, Task
from kenyon.streams.views import Augmentation, CentreCrop, Crop, ResizedCrop, Testing
from kenyon.streams.withheld import FIRST_SEED, SearchProtocol, withheld

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
    "cifar",
    "core50",
    "cub",
    "digits",
    "find_source",
    "from_arrays",
    "from_avalanche",
    "from_dataset",
    "from_folder",
    "from_hugging_face",
    "omniglot",
    "register",
    "tiny_imagenet",
    "withheld",
]
