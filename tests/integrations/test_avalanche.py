"""The plug-in in Avalanche's own training, against the same training in a plain loop."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from kenyon.errors import ConfigError
from kenyon.regularizers import Protection
from tests.regularizers.small import classifier, vectors

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche's and its dependencies'


def test_without_avalanche(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "avalanche", None)
    monkeypatch.delitem(sys.modules, "kenyon.integrations.avalanche", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'kenyon\[avalanche\]'"):
        import kenyon.integrations.avalanche  # noqa: F401


@pytest.mark.parametrize(("importance", "strength"), [("ewc", 500.0), ("mas", 5.0), ("si", 5.0)])
def test_the_same_as_a_plain_loop(importance: str, strength: float) -> None:
    pytest.importorskip("avalanche")
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.supervised import Naive

    from kenyon.integrations.avalanche import ProtectionPlugin

    def dataset(seed: int) -> Any:
        data: Any = TensorDataset(*vectors(12, seed))
        data.targets = data.tensors[1].tolist()
        return as_classification_dataset(data)

    plugin = ProtectionPlugin(importance, strength=strength, exclude="head")
    model = classifier()
    # One batch an epoch: Avalanche shuffles, and the order within a batch changes nothing but rounding.
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.2),
        criterion=F.cross_entropy,
        train_mb_size=12,
        train_epochs=6,
        plugins=[plugin],
        evaluator=None,
    )
    stream = benchmark_from_datasets(train=[dataset(seed) for seed in range(3)]).train_stream
    for experience in stream:
        strategy.train(experience)

    plain = classifier()
    protection = Protection(plain, importance, strength=strength, exclude="head")
    optimizer = torch.optim.SGD(plain.parameters(), 0.2)
    protection.track(optimizer)
    for seed in range(3):
        x, y = vectors(12, seed)
        for _ in range(6):
            optimizer.zero_grad()
            (F.cross_entropy(plain(x), y) + protection()).backward()
            optimizer.step()
        protection.consolidate([(x, y)])
    assert plugin.protection is not None and plugin.protection.tasks == 3
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)
    for name, found in protection.importance.items():
        torch.testing.assert_close(plugin.protection.importance[name], found, rtol=1e-3, atol=1e-5)
