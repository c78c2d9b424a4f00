"""Which devices there are to choose from."""

from __future__ import annotations

import pytest
import torch

from kenyon.errors import ConfigError
from kenyon.train import choose_device


@pytest.mark.parametrize(("count", "there"), [(1, "cuda:0 alone"), (4, "cuda:0 to cuda:3")])
def test_a_gpu_that_is_not_there(count: int, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError, match=f"no device 'cuda:7': PyTorch sees {there}"):
        choose_device("cuda:7")
    for name in ("cuda", "cuda:0", f"cuda:{count - 1}", "cpu"):
        assert choose_device(name) == torch.device(name)


def test_no_gpu_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA device here"):
        choose_device("cuda:7")
