"""Computing backbones on a device: layouts, layers, executors for CPU, PyTorch, Triton and CUDA, and optimizers."""
