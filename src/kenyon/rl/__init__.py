"""Continual reinforcement learning: one network learns game after game."""

from kenyon.rl import mini  # suites register themselves
from kenyon.rl.environment import SUITES, Games, Moment, Suite, find_suite, register

__all__ = ["SUITES", "Games", "Moment", "Suite", "find_suite", "mini", "register"]
