"""Where the weights and biases of convolutions lie, in runs' rows and in the order of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kenyon.nets.cuda.maps import Map, backward_map, forward_map, gradient_map
from kenyon.nets.cuda.stages import Stage


class Packing:
    """Places (int32) in a row at which what the kernels need is to be found, in their order; -1: there is none. With
    learners apart, a row has the networks of so many runs, each with its part of every segment, and what one of them
    needs lies behind what the one before it does.
    """

    def __init__(self, stages: Sequence[Stage], apart: int, device: torch.device) -> None:
        # Parameters of the convolutions lie at the beginning of a row, layer by layer.
        parameters = max(s.layer.bias + apart * s.layer.learners * s.layer.outputs for s in stages)
        maps = [
            (
                forward_map(s.layer, s.tiling),
                np.empty(0, np.int64) if s.backward is None else backward_map(s.layer, s.backward),
                gradient_map(s.layer, s.sharing),
            )
            for s in stages
        ]
        weights: list[Map] = []
        biases: list[Map] = []
        gradients = np.empty(parameters, np.int64)
        column = 0
        for number in range(apart):
            for s, (forward, backward, gradient) in zip(stages, maps, strict=True):
                layer, count = s.layer, s.layer.learners * s.layer.outputs
                later, bias = number * layer.weight_count, layer.bias + number * count
                weights += [np.where(places >= 0, places + later, -1) for places in (forward, backward)]
                biases.append(bias + np.arange(count))
                gradients[layer.weight + later :][: layer.weight_count] = column + gradient
                column += s.sharing.record
                gradients[bias : bias + count] = column + np.arange(count)
                column += layer.channels_out

        def here(places: Sequence[Map]) -> Tensor:
            return torch.from_numpy(np.concatenate(places)).to(torch.int32).to(device)

        self.weights, self.biases = here(weights), here(biases)
        self.gradients = here([gradients])  # of each parameter, in a row of totals
        # Of one run: how many weights and biases, and where those of each layer begin.
        self.weight_count, self.bias_count = len(self.weights) // apart, len(self.biases) // apart
        ends = np.cumsum([0, *(len(places) for each in maps for places in each[:2])])
        self.forwards, self.backwards = ends[:-1:2].tolist(), ends[1:-1:2].tolist()
        self.first_biases = np.cumsum([0, *(s.layer.learners * s.layer.outputs for s in stages)])[:-1].tolist()
