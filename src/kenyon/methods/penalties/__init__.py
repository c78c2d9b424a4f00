"""Penalties that a method adds to the loss of the current task: on weights, and on predictions."""

from kenyon.backends.triton.updates import Force, QuadraticPull, WeightDecay
from kenyon.methods.penalties.predictions import Confidence, Divergence, PredictionPenalty, Predictions
from kenyon.methods.penalties.strength import Strength, check_strength, per_run, strength_of
from kenyon.methods.penalties.weights import (
    ActiveForgetting1,
    ActiveForgetting2,
    DecayingHeads,
    ParameterPenalty,
    Penalty,
    StabilityProtection,
    Weights,
    square_distance,
    square_sums,
    weighed,
)

Decay = WeightDecay  # names of version 0.1
Pull = QuadraticPull

__all__ = [
    "ActiveForgetting1",
    "ActiveForgetting2",
    "Confidence",
    "Decay",
    "DecayingHeads",
    "Divergence",
    "Force",
    "ParameterPenalty",
    "Penalty",
    "PredictionPenalty",
    "Predictions",
    "Pull",
    "QuadraticPull",
    "StabilityProtection",
    "Strength",
    "WeightDecay",
    "Weights",
    "check_strength",
    "per_run",
    "square_distance",
    "square_sums",
    "strength_of",
    "weighed",
]
