"""`python -m kenyon` is the same as `kenyon`."""

from kenyon.cli import main

main()
