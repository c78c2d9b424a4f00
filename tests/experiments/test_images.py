"""Every method on every benchmark of image files, from miniature replicas in their public layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kenyon.benchmarks.registry import BENCHMARKS, find_benchmark
from kenyon.experiments.config import configure
from kenyon.experiments.runner import execute, plan
from kenyon.methods import METHODS, find_method
from tests.experiments.small import strengths_of
from tests.image_replicas import (
    OMNIGLOT_CHARACTERS,
    write_core50,
    write_cub,
    write_omniglot,
    write_tiny_imagenet,
)

IMAGES = ("omniglot", "omniglot-clean", "cub-200", "tiny-imagenet", "core50")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("images")
    write_omniglot(folder)
    write_cub(folder)
    write_tiny_imagenet(folder)
    write_core50(folder, frames=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kenyon.datasets.cache.decoded_folder", lambda: folder / "decoded")
        patch.setattr("kenyon.benchmarks.omniglot.CHARACTERS", OMNIGLOT_CHARACTERS)
        patch.setattr("kenyon.benchmarks.omniglot.VERSIONS", 2)
        patch.setattr("kenyon.benchmarks.cub.IMAGES", 1100)
        patch.setattr("kenyon.benchmarks.cub.SHORTER", 72)
        patch.setattr("kenyon.benchmarks.cub.SIDE", 64)  # windows of 224 pixels take long on a CPU
        yield folder


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_every_benchmark(name: str, method: str, data: Path, tmp_path: Path) -> None:
    spec = find_method(method)
    # Few and narrow: what is tested is that everything fits together.
    overrides = strengths_of([method]) | {"epochs": 1, "width": 1} | ({"learners": 2} if spec.multi else {})
    asked = plan(name, [method], 1, tasks=2, overrides=overrides, device="cpu", data=data, out=tmp_path, fwt=False)
    result = execute(asked)[method]
    (run,) = result.runs
    assert run.diverged is None and len(run.tasks) == 2
    assert len(run.accuracy) == (1 if spec.schedule == "joint" else 2)
    assert all(0 <= a <= 100 for row in run.accuracy for a in row)
    assert all(math.isnan(c) != spec.multi for c in (*run.cosine, *run.euclidean))


def test_all_benchmarks_have_their_contract() -> None:
    assert set(IMAGES) < set(BENCHMARKS)


@pytest.mark.parametrize(
    ("name", "single", "several"),
    [("omniglot", (64, 1_774_999), (28, 1_842_147)), ("cub-200", (64, 57_823_240), (34, 57_230_190))],
)
def test_published_sizes(name: str, single: tuple[int, int], several: tuple[int, int]) -> None:
    """1.8M parameters on Omniglot, 57.8M and 57.2M for AlexNet (Supplementary Tables 2 and 3)."""
    bench = find_benchmark(name)
    for learners, (width, parameters) in ((1, single), (5, several)):
        assert bench.width_for(learners) == width
        assert bench.parameters(width, learners) == parameters


def test_regimes_and_forms() -> None:
    """Where large images differ from CIFAR."""
    for name in ("cub-200", "tiny-imagenet"):
        config = configure(name, "caf-ewc")
        training = config.training
        assert (training.optimiser, training.momentum, training.rate) == ("sgd", 0.9, 0.005)
        assert (training.batch, training.epochs, training.schedule) == (64, 40, "step")
        assert (training.drop_epoch, training.drop) == (30, 10.0) and training.carry
        assert training.validation == 0 and training.penalties_from == 1
        assert config.hyper["fisher"] == "large" and config.hyper["afs"] == "uniform"
        assert configure(name, "caf-mas").hyper["omega"] == "large"
        assert configure(name, "pnc").hyper["fisher"] == "large"
    omniglot = configure("omniglot", "caf-ewc")
    assert (omniglot.training.optimiser, omniglot.training.epochs, omniglot.hyper["afs"]) == ("adam", 100, "uniform")
    assert configure("core50", "caf-mas").hyper.items() >= {"omega": "core50", "accumulate": "average"}.items()
    core50 = configure("core50", "ewc").training
    assert (core50.momentum, core50.batch, core50.rate, core50.drop, core50.penalties_from) == (
        0.0,
        32,
        0.003,
        1.0,
        2,
    )
