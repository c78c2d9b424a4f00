"""Fits of every execution, to be run one after another and in threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon import ContinualLearner
from kenyon.backends.cpu.looped import Looped
from kenyon.backends.executor import Executor, Request
from kenyon.backends.triton.stacked import Stacked
from kenyon.models import ensemble as nets
from tests.estimator.small import blobs
from tests.noise import noise

METHODS = ("finetune", "ewc", "mas", "caf-ewc", "er")
TASKS = 2


class Residual(nn.Module):
    """With dropout of units and of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.units, self.channels = nn.GroupNorm(2, 4), nn.Dropout(0.3), nn.Dropout2d(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.units((x + self.channels(self.norm(self.second(x)).relu())).mean((2, 3)))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.first(x).view(len(x), -1, 3, 8).unbind(2)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 if self.training else 0.0).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(6, 5, 2, dropout=0.4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0][:, -1]


class Drawing(nn.Module):
    """Draws in its own way, in tests too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.alpha_dropout(self.layer(x), 0.1, self.training)
        return F.rrelu(y[:, torch.randperm(8)] + 0.01 * torch.randn_like(y), training=True)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.25), nn.Linear(12, 8), nn.ReLU())


def convolving() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.25), nn.Flatten(), nn.Linear(64, 8))


def statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Dropout(0.3), nn.Linear(12, 8))


# name: execution, backbone, shape of a sample
CASES: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": ("Dense", dense, (6,)),
    "looped": ("Looped", convolving, (1, 6, 6)),
    "stacked": ("Stacked", convolving, (1, 6, 6)),
    "residual": ("General", Residual, (1, 6, 6)),
    "attending": ("General", Attending, (4, 6)),
    "recurrent": ("General", Recurrent, (4, 6)),
    "drawing": ("General", Drawing, (6,)),
    "statistics": ("General", statistics, (6,)),
}
FITS = [(case, method) for case in CASES for method in METHODS if (case, method) != ("statistics", "er")]
QUICK = [
    *(("looped", m) for m in METHODS),
    *(("drawing", m) for m in METHODS),
    *(("residual", m) for m in ("ewc", "caf-ewc")),
    *((case, "caf-ewc") for case in ("dense", "stacked", "attending", "recurrent", "statistics")),
]


@contextmanager
def stacked_on_a_cpu() -> Iterator[None]:
    """Usually a GPU has this execution: here three learners have it, of layers that are known."""
    with pytest.MonkeyPatch.context() as patch:
        choose = nets.choose_executor

        def chosen(request: Request) -> Executor:
            found = choose(request)
            if isinstance(found, Looped) and isinstance(request.backbone, nn.Sequential) and request.learners == 3:
                return Stacked(request.backbone, request.shape, request.learners)
            return found

        patch.setattr(nets, "choose_executor", chosen)
        yield


def fit(case: str, method: str, backbone: nn.Module | None = None, **settings: object) -> ContinualLearner:
    """Two tasks. What is stacked has three learners."""
    execution, build, shape = CASES[case]
    several = method.startswith("caf")
    given = {"epochs": 2, "batch": 16, "rate": 1e-2, "device": "cpu", "seed": len(method)} | settings
    if several:
        given["learners"] = 3 if case == "stacked" else 2
    learner = ContinualLearner(build if backbone is None else backbone, method, **given)  # type: ignore[arg-type]
    for task in range(TASKS):
        learner.fit(*blobs(task, size=40, shape=shape), task=f"t{task}", test=blobs(task, size=20, shape=shape))
    found = type(learner.knowledge_.net.executor).__name__
    assert found == execution or (case == "stacked" and not several), (case, found)
    return learner


def digest(learner: ContinualLearner, case: str) -> str:
    """Return a digest of all weights, predictions and accuracies."""
    shape, found = CASES[case][2], hashlib.sha256()
    for name, value in sorted(learner.knowledge_.tensors.items()):
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    found.update(learner.predict_proba(blobs(0, shape=shape)[0]).tobytes())
    found.update(learner.accuracy_matrix().tobytes())
    return found.hexdigest()


def fitted(which: tuple[str, str]) -> str:
    return digest(fit(*which), which[0])


def differing(fits: Sequence[tuple[str, str]], repeats: int, threads: int) -> Iterable[tuple[str, str]]:
    """Return the fits that differ in threads, next to a disturbing one, from fits made alone."""
    with stacked_on_a_cpu():
        expected = {which: fitted(which) for which in fits}
        with noise(), ThreadPoolExecutor(threads) as pool:
            many = [which for _ in range(repeats) for which in fits]
            return [
                which for which, found in zip(many, pool.map(fitted, many), strict=True) if found != expected[which]
            ]
