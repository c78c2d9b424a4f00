"""CIFAR-100 five classes at a time, a ResNet-18 for fine-tuning and EWC, and five narrow ones for CAF.

python examples/cifar_resnet.py --data FOLDER --device cuda
"""

from networks import resnet18
from side_by_side import compare, from_source, options

chosen = {"strengths": "ewc=3e6,caf-ewc=1e6", "rates": "caf-ewc=3e-4"}  # by training images that were held out
args = options(tasks=5, epochs=10, seeds=3, width=64, held_out=None, **chosen)
compare(from_source("r-cifar-100", args), resnet18, args, batch=128)
