"""The version, alone, so that asking for it imports nothing else."""

__version__ = "0.2.0"
