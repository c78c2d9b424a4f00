"""The training loop and what it stands on."""

from kenyon.training.batches import Fleet
from kenyon.training.checkpoint import Interrupted
from kenyon.training.device import choose_device
from kenyon.training.regime import Training
from kenyon.training.trainer import Trainer

__all__ = ["Fleet", "Interrupted", "Trainer", "Training", "choose_device"]
