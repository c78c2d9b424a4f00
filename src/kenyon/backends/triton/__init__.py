"""Kernels in Triton with a plain PyTorch version of each, and the executor made of them."""
