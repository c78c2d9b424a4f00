"""Sweeps: runs on many machines, planned as fleets, leased to workers, and merged into one results folder."""

from kenyon.sweep.driver import Place, Unfinished, carry_out, collect
from kenyon.sweep.plan import Sweep, plan_sweep
from kenyon.sweep.storage import Storage, open_storage

# Names of version 0.1.
Space = Storage
open_space = open_storage

__all__ = [
    "Place",
    "Space",
    "Storage",
    "Sweep",
    "Unfinished",
    "carry_out",
    "collect",
    "open_space",
    "open_storage",
    "plan_sweep",
]
