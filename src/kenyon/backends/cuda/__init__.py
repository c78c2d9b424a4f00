"""Convolutions of a whole fleet as CUDA kernels of our own, compiled for each network when it is first used."""
