"""Executors for a CPU."""
