"""Public datasets on this machine: where they lie, what they should be, and how to fetch them.

Imports nothing heavy, so that `kenyon data list` answers at once.
"""

from kenyon.data.archives import Copy, find, locate
from kenyon.data.datasets import DATASETS, Archive, Dataset
from kenyon.data.download import download
from kenyon.data.folders import data_folders, download_folder

__all__ = ["DATASETS", "Archive", "Copy", "Dataset", "data_folders", "download", "download_folder", "find", "locate"]
