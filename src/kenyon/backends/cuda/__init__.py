"""Convolutions of all runs at once by custom CUDA kernels, compiled for each network at its first use."""
