"""Conformance of every kernel: see `inventory`."""
