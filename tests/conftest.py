from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kenyon.benchmarks.registry import BENCHMARKS
from kenyon.data.sources import SOURCES
from kenyon.methods import METHODS
from kenyon.rl.suites import SUITE_BENCHMARKS
from tests.interpreter import RUNS_KERNELS

torch.set_num_threads(1)  # small tensors everywhere: threads only cost

REGISTRIES: tuple[dict[str, Any], ...] = (SOURCES, BENCHMARKS, METHODS, SUITE_BENCHMARKS)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """What a test registers, from a user's file for instance, is gone after it."""
    before = [dict(one) for one in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        if registry.keys() != entries.keys():
            registry.clear()
            registry.update(entries)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernels") and not RUNS_KERNELS:
        pytest.skip("needs a GPU, or Triton's interpreter in a process of its own")


BEGAN = time.monotonic()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Record what came out, where KENYON_RECORD names a section of benchmarks/soundness.json."""
    section, _, what = os.environ.get("KENYON_RECORD", "").partition(": ")
    if not section or hasattr(config, "workerinput"):
        return
    from benchmarks.soundness import record

    from tests.backends.test_zoo import METHODS as METHODS_OF_ZOO
    from tests.backends.test_zoo import USABLE
    from tests.backends.zoo import ZOO

    counts = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    counts["failed"] += counts.pop("error")
    if section == "gpu-tests":
        counts |= {
            "backbones": len(ZOO),
            "of_them_refused_in_words": len(ZOO) - len(USABLE),
            "methods": len(METHODS_OF_ZOO),
        }
    record(section, what, **counts, seconds=round(time.monotonic() - BEGAN))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: at the end all others would wait for it."""
    items.sort(key=lambda item: item.name != "test_every_figure_at_smoke_scale")
