"""Stability protection and active forgetting as plain losses, for models and training loops of your own.

`kenyon.integrations.lightning`, `.huggingface` and `.avalanche` put them into the training of those programs.
"""

from kenyon.regularizers.active_forgetting import AF1, AF2, AFS, Collaborative
from kenyon.regularizers.protection import Protection

__all__ = ["AF1", "AF2", "AFS", "Collaborative", "Protection"]
