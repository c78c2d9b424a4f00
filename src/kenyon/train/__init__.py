"""The training loop and what it stands on."""

from kenyon.train.device import choose_device
from kenyon.train.fleet import Fleet
from kenyon.train.loop import Interrupted, Trainer
from kenyon.train.regime import Training

__all__ = ["Fleet", "Interrupted", "Trainer", "Training", "choose_device"]
