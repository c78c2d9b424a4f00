"""The executor of any PyTorch module."""
