"""Networks: backbones, and R runs x K learners of them with task heads."""

from kenyon.backends.cuda.interface import Pictures
from kenyon.backends.layout import Layout
from kenyon.models.backbones import (
    Backbone,
    alexnet,
    atari_cnn,
    cifar_cnn,
    digits_cnn,
    digits_mlp,
    omniglot_cnn,
    small_games_mlp,
)
from kenyon.models.ensemble import Diversity, Net
from kenyon.models.heads import Outputs
from kenyon.models.initial import Start

__all__ = [
    "Backbone",
    "Diversity",
    "Layout",
    "Net",
    "Outputs",
    "Pictures",
    "Start",
    "alexnet",
    "atari_cnn",
    "cifar_cnn",
    "digits_cnn",
    "digits_mlp",
    "omniglot_cnn",
    "small_games_mlp",
]
