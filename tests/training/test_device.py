"""Which devices there are to choose from, and how work is captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kenyon.errors import ConfigError
from kenyon.training import choose_device
from kenyon.training.device import Captured


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


class Anything:
    """Work that may be captured."""

    capturable = True

    def refuse_capture(self) -> bool:
        return False


class Graph:
    """Stands in for a CUDA graph that is captured, and knows which of its kind may be destroyed."""

    destroyed_in_capture = 0
    capturing = False

    def __del__(self) -> None:
        Graph.destroyed_in_capture += Graph.capturing

    def replay(self) -> None:
        pass


class Refusing(Anything):
    """Work that turns out to be none for a graph."""

    def refuse_capture(self) -> bool:
        self.capturable = False
        return True


class Generator:
    """Stands in for a GPU's generator."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def clone_state(self) -> str:
        return "before"

    def graphsafe_set_state(self, state: str) -> None:
        self.states.append(state)


@contextmanager
def capture(graph: Graph, pool: object) -> Iterator[None]:
    Graph.capturing = True
    try:
        yield
    finally:
        Graph.capturing = False


@pytest.mark.parametrize("fails", [False, True])
def test_no_graph_is_destroyed_while_another_is_captured(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers refer to themselves: those of before are garbage that Python may come upon at any moment."""
    cuda = {"CUDAGraph": Graph, "graph": capture, "synchronize": lambda: None, "graph_pool_handle": lambda: (0, 0)}
    cuda |= {"default_generators": [Generator()], "current_device": lambda: 0}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Graph, "destroyed_in_capture", 0)
    many = 10 * gc.get_threshold()[0]

    def work() -> None:
        kept = [[number] for number in range(many)]  # enough new objects for Python to look for garbage
        assert len(kept) == many
        if fails and Graph.capturing:
            raise ValueError("the work of a user")

    captured = Captured(work, torch.device("cuda"), Anything())
    captured()
    garbage = [Graph()]
    garbage.append(garbage)  # type: ignore[arg-type]
    del garbage
    if fails:
        with pytest.raises(ValueError, match="of a user"):
            captured()
    else:
        captured()
    assert Graph.destroyed_in_capture == 0 and gc.isenabled()


def test_a_capture_that_breaks_off_puts_the_generator_back(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, times = Generator(), [0]
    cuda = {"CUDAGraph": Graph, "graph": capture, "synchronize": lambda: None, "graph_pool_handle": lambda: (0, 0)}
    cuda |= {"default_generators": [generator], "current_device": lambda: 0}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def work() -> None:
        times[0] += 1
        if Graph.capturing:
            raise RuntimeError("what a graph cannot hold")

    captured = Captured(work, torch.device("cuda"), Refusing())
    for _ in range(3):
        captured()
    assert generator.states == ["before"] and times == [4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_draws_works_after_a_capture_that_broke_off() -> None:
    x = torch.ones(1000, device="cuda")

    def looks() -> None:
        if float(x.sum()) > 0:  # which no graph can hold
            x.add_(1)

    captured = Captured(looks, torch.device("cuda"), Refusing())
    state = torch.cuda.get_rng_state()
    for _ in range(3):
        captured()
    assert float(x[0]) == 4 and torch.equal(torch.cuda.get_rng_state(), state)
    dropped = torch.nn.functional.dropout(x, 0.5)
    assert 300 < int((dropped == 0).sum()) < 700
