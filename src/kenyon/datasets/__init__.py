"""Public datasets on this machine: where they lie, what they should be, and how to fetch them.

Imports nothing heavy, so that `kenyon data list` answers at once.
"""

from kenyon.datasets.archives import DATASETS, Archive, Copy, Dataset, data_folders, download_folder, find, locate
from kenyon.datasets.download import download

__all__ = ["DATASETS", "Archive", "Copy", "Dataset", "data_folders", "download", "download_folder", "find", "locate"]
