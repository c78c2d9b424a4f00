"""Many fits in threads of every execution, counted in benchmarks/soundness.json."""

from __future__ import annotations

import os

import pytest
import torch
from benchmarks.soundness import record

from kenyon.utils.threads import cpu_threads
from tests.estimator.threaded import CASES, FITS, METHODS, TASKS, differing

REPEATS, THREADS = 4, (2, 4, 8)


@pytest.mark.torture
def test_many_fits_in_threads() -> None:
    """Also where PyTorch shares a sum among two cores, as a fit alone does."""
    differ = {}
    for cores in (1, 2):
        with cpu_threads(cores):
            torch.set_num_threads(cores)  # threads that start here have as many
            for threads in THREADS:
                differ[cores, threads] = list(differing(FITS, REPEATS, threads))
    assert not any(differ.values()), differ
    if os.environ.get("KENYON_TORTURE"):
        record(
            "threads",
            "fits of two tasks in 2, 4 and 8 threads, beside one that draws from and seeds the global generators of "
            "PyTorch, NumPy and Python: weights, predictions and accuracies are bit for bit those of fits made alone",
            fits=2 * len(THREADS) * REPEATS * len(FITS),
            differing=0,
            backbones=len(CASES),
            executions=len({execution for execution, _, _ in CASES.values()}),
            methods=len(METHODS),
            tasks_a_fit=TASKS,
        )
