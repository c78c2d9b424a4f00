"""The benchmarks by name: a source of tasks, a network, a training regime and hyper-parameters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kenyon.errors import unknown
from kenyon.experiments.hyperparameters import HYPERPARAMETERS
from kenyon.nets import Backbone, Net, cifar_cnn, digits_mlp
from kenyon.streams import SourceSpec, find_source
from kenyon.train.regime import Training


@dataclass(frozen=True)
class Benchmark:
    name: str
    backbone: Backbone
    width: int  # of a single learner; several learners share its number of parameters
    training: Training
    hyperparameters: Mapping[str, Mapping[str, float]]  # method -> name -> value

    @property
    def source(self) -> SourceSpec:
        return find_source(self.name)

    def parameters(self, width: int, learners: int) -> int:
        return _parameters(self.backbone, width, learners, self.source.shape, self.source.class_counts)

    def width_for(self, learners: int) -> int:
        """The width at which so many learners have most nearly as many parameters as the single one.

        Five learners on the CIFAR network: 9, as published.
        """
        if learners == 1:
            return self.width
        budget = self.parameters(self.width, 1)
        over = bisect_left(range(1, self.width + 1), budget, key=lambda w: self.parameters(w, learners)) + 1
        return min((max(over - 1, 1), over), key=lambda w: abs(self.parameters(w, learners) - budget))


@cache
def _parameters(
    backbone: Backbone, width: int, learners: int, shape: tuple[int, int, int], counts: tuple[int, ...]
) -> int:
    return Net(backbone(width, learners), shape, counts, learners=learners).parameter_count


BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        Benchmark(
            "digits",
            digits_mlp,
            width=16,
            training=Training(epochs=20, batch=32, rate=1e-3),
            hyperparameters=HYPERPARAMETERS["digits"],
        ),
        *(
            Benchmark(name, cifar_cnn, width=32, training=Training(), hyperparameters=HYPERPARAMETERS[name])
            for name in ("r-cifar-100", "s-cifar-100", "r-cifar-10-100")
        ),
    )
}


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
