"""Stability protection and active forgetting as plain losses, for models and training loops of one's own.

`kenyon.tools.lightning`, `.huggingface` and `.avalanche` put them into the training of those programs.
"""

from kenyon.tools.af1 import AF1
from kenyon.tools.af2 import AF2
from kenyon.tools.afs import AFS
from kenyon.tools.collaborative import Collaborative
from kenyon.tools.protection import Protection

__all__ = ["AF1", "AF2", "AFS", "Collaborative", "Protection"]
