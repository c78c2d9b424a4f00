"""Continual reinforcement learning: one network learns game after game."""
