"""Public datasets on this machine: where they are, what they contain, and how to download them.

Imports nothing heavy, so that `kenyon data list` is quick.
"""

from kenyon.datasets.archives import DATASETS, Archive, Copy, Dataset, data_folders, download_folder, find, locate
from kenyon.datasets.download import download

__all__ = ["DATASETS", "Archive", "Copy", "Dataset", "data_folders", "download", "download_folder", "find", "locate"]
