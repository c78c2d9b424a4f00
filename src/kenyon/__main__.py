"""`python -m kenyon` is the same as `kenyon`."""

from kenyon.cli import program

program()
