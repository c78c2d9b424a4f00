"""Flatness: the loss along lines through a solution in random directions (Fig. 4d-f).

"After disturbing the network parameters with random values, we evaluate the training error with cross-entropy, where
each line is a different direction of disturbance." Choices where the text is silent:
- every weight that takes part in predictions is disturbed, heads included;
- a direction is a vector of normal numbers. `scale="radius"` scales it to length 1, so that offsets are distances,
  like the radius b of Proposition 1; `scale="norm"` to the length of the weights; `scale="filter"` scales each filter
  (all weights into a unit) to the length of the unit's own and leaves biases unchanged, so that networks that differ
  in scale only have the same flatness;
- the loss is the mean over all tasks, each with its own head, without dropout.

Sharpness is the mean over directions of the largest rise of the loss along the line; `worst` is the largest of all
rises, a lower bound of the robust risk's excess max_{|d| <= b} L(theta + d) - L(theta) of Proposition 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import log
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.metrics import Array
from kenyon.paper.analyses.analysis import Analysis, Case, Compared, Runs, Values, mean_line
from kenyon.paper.analyses.model import Model, Probe, rows_at_once, thinned
from kenyon.random import Purpose, key, normal
from kenyon.utils.views import Series, View, lines

Scale = Literal["radius", "norm", "filter"]
REACH: dict[str, float] = {"radius": 10.0, "norm": 0.5, "filter": 0.5}


@dataclass(frozen=True)
class FlatnessSettings:
    """Directions, distances and samples at which the loss is computed."""

    directions: int = 10
    steps: int = 21  # offsets along a line, the solution itself in the middle
    scale: Scale = "radius"
    reach: float = 0.0  # the largest offset; 0: 10 for radius, 0.5 for norm and filter
    part: Literal["train", "test"] = "train"
    samples: int = 256  # of each task, evenly spread; 0: all
    seed: int = 0  # of the directions

    def __post_init__(self) -> None:
        if self.directions < 1 or self.steps < 3 or self.steps % 2 == 0:
            raise ConfigError(
                "Flatness needs at least one direction and an odd number of steps, at least 3, not "
                f"{self.directions} and {self.steps}."
            )
        if self.scale not in get_args(Scale):
            raise ConfigError(f"scale must be {', '.join(get_args(Scale))}, not '{self.scale}'.")
        if self.part not in ("train", "test"):
            raise ConfigError(f"part must be train or test, not '{self.part}'.")
        if self.reach < 0 or self.samples < 0:
            raise ConfigError(f"reach and samples must be 0 or larger, not {self.reach} and {self.samples}.")

    @property
    def offsets(self) -> Tensor:
        reach = self.reach or REACH[self.scale]
        return torch.linspace(-reach, reach, self.steps)


@dataclass(frozen=True)
class Flatness:
    """The loss along D random directions; `sharpness` is the mean of their largest rises, `worst` the largest."""

    offsets: Array  # (S,)
    losses: Array  # (D, S)
    loss: float  # of the solution
    sharpness: float
    worst: float


def flatness(model: Model, settings: FlatnessSettings | None = None) -> Flatness:
    """Measure the loss of a model along random directions (Fig. 4d-f)."""
    s = settings or FlatnessSettings()
    at_once = min(rows_at_once(model.rows.numel()), s.directions * s.steps)
    M = len(model.rows)
    per = 1 if model.answers == "per task" else M
    probe = Probe(model.net, thinned(model.stream, s.part, s.samples), at_once * per)

    def loss(rows: Tensor) -> Tensor:
        """Loss of whole models: (n, M * P) -> (n,)."""
        each = rows.unflatten(1, (M, -1))
        found = []
        for task in model.tasks:
            networks = each[:, model.rows_for(task)].flatten(0, 1).contiguous()
            log_p = probe.label_log_probabilities(networks, s.part, task).unflatten(0, (len(rows), -1))
            together = log_p.logsumexp(1) - log(log_p.shape[1])  # of the mean probability
            found.append(-together.mean(1))
        return torch.stack(found).mean(0)

    def direction(number: int) -> Tensor:
        return random_direction(model, s.scale, key(s.seed, Purpose.ANALYSIS, model.seed, number)).flatten()

    return along_lines(loss, model.rows.flatten(), direction, s.directions, s.offsets, at_once)


def along_lines(
    loss: Callable[[Tensor], Tensor],
    centre: Tensor,
    direction: Callable[[int], Tensor],
    directions: int,
    offsets: Tensor,
    at_once: int,
) -> Flatness:
    """Evaluate the loss at centre (P,) + offset * direction; `loss` takes up to `at_once` points, (n, P) -> (n,)."""
    offsets = offsets.to(centre)
    group = max(1, at_once // len(offsets))  # directions that are held at the same time
    found = []
    for first in range(0, directions, group):
        lines = torch.stack([direction(d).to(centre) for d in range(first, min(first + group, directions))])
        points = [(line, offset) for line in range(len(lines)) for offset in range(len(offsets))]
        values = []
        for start in range(0, len(points), at_once):
            which, where = torch.tensor(points[start : start + at_once], device=centre.device).T
            values.append(loss(torch.addcmul(centre, offsets[where].unsqueeze(1), lines[which])))
        found.append(torch.cat(values).view(len(lines), -1))
    losses = torch.cat(found).double().cpu()
    middle = losses[:, len(offsets) // 2].mean()
    rises = (losses - middle).amax(1)
    return Flatness(
        offsets.double().cpu().numpy(), losses.numpy(), float(middle), float(rises.mean()), float(rises.max())
    )


def random_direction(model: Model, scale: str, seed_key: int) -> Tensor:
    """Draw a direction (M, P), the same on every device."""
    drawn = normal(seed_key, tuple(model.rows.shape)).to(model.rows) * model.moved
    own = model.rows * model.moved
    if scale != "filter":
        length = 1.0 if scale == "radius" else own.norm()
        return drawn * (length / drawn.norm())
    out = torch.zeros_like(drawn)
    for name, segment in model.net.layout.segments.items():
        # A learner's (M, K, O, ...) or a head's (M, T, C, F): the axes after the third are the weights into a unit.
        if len(segment.shape) < 3 or name in model.net.learned:
            continue
        noise, weight = (model.net.layout.view(rows, name).flatten(3) for rows in (drawn, own))
        size = weight.norm(dim=3, keepdim=True) / noise.norm(dim=3, keepdim=True).clamp(min=1e-30)
        model.net.layout.view(out, name).flatten(3).copy_(noise * size)
    return out * model.moved


def _measure_flatness(case: Case, settings: FlatnessSettings) -> Values:
    """Also along directions scaled by filter: which of two solutions is flatter can depend on the scale."""
    by_filter = flatness(case.model, replace(settings, scale="filter", reach=0.0))
    found = asdict(flatness(case.model, settings))
    return found | {"scale": settings.scale, "filter_sharpness": by_filter.sharpness}


OFFSETS = {
    "radius": "distance from the solution (L2)",
    "norm": "distance from the solution, in lengths of the weights",
    "filter": "distance from the solution, in lengths of each filter",
}


def _draw_flatness(label: str, runs: Runs) -> View:
    first = runs[0]
    x, each = first["offsets"], np.array(first["losses"], dtype=float)
    series = [Series(f"direction {d + 1}", x, losses, thin=True) for d, losses in enumerate(each)]
    series.append(Series("mean", x, each.mean(0)))
    title = f"{label}: loss along random directions, seed {first['seed']}"
    note = f"Sharpness (mean of the largest rises) {first['sharpness']:.3g}, worst {first['worst']:.3g}."
    return lines(title, OFFSETS[first["scale"]], "cross-entropy, mean of all tasks", series, note)


def _compare_flatness(benchmark: str, results: Compared) -> View:
    series = []
    for label, runs in results.items():
        each = np.array([np.mean(np.array(run["losses"], dtype=float), axis=0) for run in runs])
        series.append(mean_line(label, runs[0]["offsets"], each))
    scale = next(iter(results.values()))[0]["scale"]
    title = f"{benchmark}: loss along random directions"
    note = "Mean over directions and runs; bands: standard error over runs."
    return lines(title, OFFSETS[scale], "cross-entropy, mean of all tasks", series, note)


FLATNESS = Analysis(
    "flatness",
    "the loss along random directions",
    _measure_flatness,
    _draw_flatness,
    _compare_flatness,
    settings=FlatnessSettings(),
    scalars=("loss", "sharpness", "worst", "filter_sharpness"),
)
