"""Continual reinforcement learning: one network learns game after game."""

from kenyon.rl import atari, mini  # suites register themselves
from kenyon.rl.environment import SUITES, Games, Moment, Screen, Suite, find_suite, register

__all__ = ["SUITES", "Games", "Moment", "Screen", "Suite", "atari", "find_suite", "mini", "register"]
