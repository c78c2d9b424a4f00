"""Fits in threads, next to a thread that draws and seeds all the time, equal sequential fits bit for bit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score

from kenyon import ContinualLearner
from kenyon.backends.torch.module import General
from kenyon.utils.threads import cpu_threads
from tests.estimator.small import blobs, quick
from tests.estimator.threaded import CASES, QUICK, Drawing, Residual, differing, digest, fit
from tests.noise import noise, untouched


def test_fits_in_threads_are_those_made_alone() -> None:
    assert not differing(QUICK, repeats=1, threads=4)


def test_cross_validation_in_threads() -> None:
    """Scored by probabilities, which show every bit of the weights; accuracies show few."""
    learner, (x, y) = quick(backbone=Drawing), blobs(0, size=80)

    def scores(jobs: int) -> object:
        return cross_val_score(learner, x, y, cv=4, scoring="neg_log_loss", n_jobs=jobs).tolist()

    alone = scores(1)
    with noise(), joblib.parallel_backend("threading"):
        for _ in range(3):
            assert scores(4) == alone


@pytest.mark.parametrize("start", ["drawn", "given"])
def test_learners_that_share_a_backbone(start: str) -> None:
    """One module, two learners, two threads: neither sees the other's weights, nor changes the module."""
    module = Residual()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = [digest(fit("residual", m, module, start=start), "residual") for m in ("ewc", "caf-ewc")]
    with noise(), ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            work = [pool.submit(fit, "residual", m, module, start=start) for m in ("ewc", "caf-ewc")]
            assert [digest(one.result(), "residual") for one in work] == expected
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_one_learner_asked_by_many_threads() -> None:
    learner = fit("statistics", "caf-ewc")
    asked = [(n % 2, blobs(n, size=30)[0]) for n in range(6)]
    expected = [learner.predict_proba(x, task=f"t{task}") for task, x in asked]
    assert isinstance(learner.knowledge_.net.executor, General)
    with noise(), ThreadPoolExecutor(6) as pool:
        for _ in range(60):
            said = pool.map(lambda one: learner.predict_proba(one[1], task=f"t{one[0]}"), asked)
            assert all(map(np.array_equal, said, expected))


@pytest.mark.parametrize("case", CASES)
def test_global_generators_stay_as_they_are(case: str, tmp_path: Path) -> None:
    shape = CASES[case][2]
    with untouched():
        learner = fit(case, "ewc")
        learner.predict(blobs(0, shape=shape)[0])
        learner.save(tmp_path / "learner")
        ContinualLearner.load(tmp_path / "learner", CASES[case][1], device="cpu")


def test_what_a_module_draws_in_tests_does_not_depend_on_what_was_drawn_before() -> None:
    learner, x = fit("drawing", "ewc"), blobs(0)[0]
    first = learner.predict_proba(x)
    torch.manual_seed(9)
    assert np.array_equal(learner.predict_proba(x), first)


@pytest.mark.parametrize("others", [0, 1])
def test_threads_that_start_while_others_limit_theirs(others: int) -> None:
    """PyTorch gives a new thread the number of cores that any thread has set last, and how many share a sum decides
    how it rounds. So limits of one fit must not reach another.
    """
    found: list[int] = []
    over = threading.Event()

    def asks() -> None:
        with cpu_threads(None):
            found.append(torch.get_num_threads())

    def limits() -> None:
        while not over.is_set():
            with cpu_threads(1):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 3

    before = torch.get_num_threads()
    busy = [threading.Thread(target=limits), *(threading.Thread(target=over.wait) for _ in range(others))]
    torch.set_num_threads(3)  # of the process, and not of this thread alone as by cpu_threads(3)
    try:
        for thread in busy:
            thread.start()
        for _ in range(300):
            thread = threading.Thread(target=asks)
            thread.start()
            thread.join()
    finally:
        over.set()
        for thread in busy:
            thread.join()
        torch.set_num_threads(before)
    assert found == [3] * 300
