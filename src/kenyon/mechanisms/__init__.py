"""What methods do besides adding penalties, one mechanism a file."""

from kenyon.mechanisms.expanded import ExpandedNetwork
from kenyon.mechanisms.sparsity import GroupSparsity

__all__ = ["ExpandedNetwork", "GroupSparsity"]
