"""What methods do besides adding penalties, one mechanism a file."""

from kenyon.mechanisms.active_column import ActiveColumn
from kenyon.mechanisms.expanded import ExpandedNetwork
from kenyon.mechanisms.sparsity import GroupSparsity

__all__ = ["ActiveColumn", "ExpandedNetwork", "GroupSparsity"]
