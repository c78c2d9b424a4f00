"""Work side by side: who computes it, in what order it comes back, and what becomes of errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kenyon.utils.threads import SharedSetting, cpu_threads, parallel_map


@pytest.fixture(autouse=True, params=[1, 2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    with cpu_threads(request.param):
        yield request.param
        assert torch.get_num_threads() == request.param


def test_results_come_in_order(cores: int) -> None:
    def work(n: int) -> tuple[int, int]:
        time.sleep(0.001 * (n % 3))
        return n, threading.get_ident()

    found = parallel_map(work, range(12))
    assert [n for n, _ in found] == list(range(12))
    threads = {thread for _, thread in found}
    assert threads == {threading.get_ident()} if cores == 1 else 1 < len(threads) <= cores
    assert parallel_map(work, []) == []


def test_every_item_is_computed_by_one_thread(cores: int) -> None:
    """Also by threads that began while others could use more, and after PyTorch has computed in them."""

    def threads(_: int) -> int:
        x = torch.randn(300, 300, requires_grad=True)
        torch.autograd.grad((x @ x).sum(), x)
        return torch.get_num_threads()

    def twice(_: int) -> list[int]:
        return [threads(0), *parallel_map(threads, range(3)), threads(0)]

    assert parallel_map(threads, range(5)) == [1] * 5
    assert parallel_map(threads, [0]) == [1]
    assert parallel_map(twice, range(5)) == [[1] * 5] * 5
    assert parallel_map(twice, [0]) == [[1] * 5]
    started = []
    thread = threading.Thread(target=lambda: started.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert started == [cores]  # other threads are left alone


def test_work_may_be_cut_again(cores: int) -> None:
    """More items at both levels than threads: no deadlock. A third level is not shared."""

    def work(a: int) -> list[list[int]]:
        return parallel_map(lambda b: parallel_map(lambda c: 100 * a + 10 * b + c, range(2)), range(7))

    assert parallel_map(work, range(8)) == [
        [[100 * a + 10 * b + c for c in (0, 1)] for b in range(7)] for a in range(8)
    ]


def test_one_item_alone_is_cut_as_widely_as_several(cores: int) -> None:
    def threads(_: int) -> int:
        time.sleep(0.002)
        return threading.get_ident()

    found = parallel_map(lambda _: parallel_map(threads, range(9)), [0])[0]
    assert len(set(found)) == cores


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_are_wanted_as_by_the_caller(enabled: bool) -> None:
    with torch.set_grad_enabled(enabled):
        assert parallel_map(lambda _: torch.is_grad_enabled(), range(4)) == [enabled] * 4


def test_an_error_reaches_the_caller_when_the_others_have_ended() -> None:
    at_work: set[int] = set()

    def work(n: int) -> int:
        at_work.add(n)
        try:
            time.sleep(0.002)
            if n in (3, 5):
                raise ValueError(f"not {n}")
            return n
        finally:
            at_work.discard(n)

    with pytest.raises(ValueError, match="not 3"):
        parallel_map(work, range(30))
    assert not at_work
    assert parallel_map(work, [0, 1]) == [0, 1]


def test_an_interrupt_reaches_the_caller() -> None:
    def interrupted(n: int) -> int:
        if n == 1:
            raise KeyboardInterrupt
        return n

    with pytest.raises(KeyboardInterrupt):
        parallel_map(interrupted, range(4))
    assert parallel_map(interrupted, [2, 3]) == [2, 3]


def test_a_setting_of_the_process_lasts_until_the_last_thread_leaves() -> None:
    setting = ["before"]

    def set_it() -> Callable[[], object]:
        was, setting[0] = setting[0], "set"
        return lambda: setting.__setitem__(0, was)

    shared, entered, leave = SharedSetting(set_it), threading.Event(), threading.Event()

    def stay() -> None:
        with shared:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    with shared:
        thread.start()
        entered.wait()
    assert setting == ["set"]  # the first has left
    with shared:
        leave.set()
        thread.join()
        assert setting == ["set"]
    assert setting == ["before"]
