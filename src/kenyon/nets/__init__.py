"""Backbones, and fleets of R runs x K learners of them."""

from kenyon.nets.backbones import (
    Backbone,
    alexnet,
    atari_cnn,
    cifar_cnn,
    digits_cnn,
    digits_mlp,
    omniglot_cnn,
    small_games_mlp,
)
from kenyon.nets.cuda.interface import Pictures
from kenyon.nets.fresh import Start
from kenyon.nets.heads import Outputs
from kenyon.nets.layout import Layout
from kenyon.nets.net import Diversity, Net

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
