"""The estimator: continual learning on data that arrive task by task."""
