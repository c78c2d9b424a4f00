"""CIFAR-100 five classes at a time, a small vision transformer for fine-tuning and EWC, and five narrow ones for CAF.

python examples/cifar_transformer.py --data FOLDER --device cuda
"""

from networks import VisionTransformer
from side_by_side import compare, from_source, options

args = options(tasks=5, epochs=20, seeds=3, width=192, held_out=None, strengths="ewc=1e5,caf-ewc=1e5")
compare(from_source("r-cifar-100", args), VisionTransformer, args, batch=128, rate=5e-4)
