"""Kenyon inside other programs: Lightning, Hugging Face, Avalanche; and loggers: TensorBoard, Weights & Biases."""
