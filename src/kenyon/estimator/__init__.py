"""The estimator: continual learning on data that arrive task by task, after the conventions of scikit-learn."""

from kenyon.estimator.errors import InputError, NothingLearnedError, SettingError
from kenyon.estimator.export import Export
from kenyon.estimator.learner import ContinualLearner, Readings

__all__ = ["ContinualLearner", "Export", "InputError", "NothingLearnedError", "Readings", "SettingError"]
