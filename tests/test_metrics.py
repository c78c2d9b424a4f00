"""The paper's measures on small matrices, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kenyon.metrics import (
    Summary,
    average_accuracy,
    average_curve,
    backward_transfer,
    expertise,
    forward_transfer,
    learning_accuracy,
    prediction_diversity,
    rounded,
)

# Row t: after learning task t; column i: tested on task i.
A = np.array(
    [
        [90.0, 52.0, 47.0],
        [80.0, 88.0, 55.0],
        [60.0, 75.0, 96.0],
    ]
)
ALONE = np.array([91.0, 85.0, 90.0])


def test_average_accuracy() -> None:
    assert average_accuracy(A) == pytest.approx((60 + 75 + 96) / 3) == pytest.approx(77.0)


def test_forward_transfer() -> None:
    # i = 2: A[1,2] - a_2 = 52 - 85 = -33;  i = 3: A[2,3] - a_3 = 55 - 90 = -35;  mean -34. a_1 plays no part.
    assert forward_transfer(A, ALONE) == pytest.approx(-34.0)
    assert forward_transfer(A, np.array([math.nan, 85.0, 90.0])) == pytest.approx(-34.0)


def test_backward_transfer() -> None:
    # A[3,1] - A[1,1] = 60 - 90 = -30;  A[3,2] - A[2,2] = 75 - 88 = -13;  mean -21.5.
    assert backward_transfer(A) == pytest.approx(-21.5)


def test_backward_transfer_can_be_positive() -> None:
    # 70 - 50 = 20, over T - 1 = 1 task.
    assert backward_transfer(np.array([[50.0, 10.0], [70.0, 90.0]])) == pytest.approx(20.0)


def test_learning_accuracy() -> None:
    assert learning_accuracy(A) == pytest.approx((90 + 88 + 96) / 3)


def test_average_curve() -> None:
    # after 1: 90;  after 2: (80 + 88) / 2 = 84;  after 3: (60 + 75 + 96) / 3 = 77.
    np.testing.assert_allclose(average_curve(A), [90.0, 84.0, 77.0])


def test_a_single_task_has_no_transfer() -> None:
    one = np.array([[80.0]])
    assert average_accuracy(one) == 80.0
    assert math.isnan(forward_transfer(one, np.array([70.0])))
    assert math.isnan(backward_transfer(one))
    np.testing.assert_allclose(average_curve(one), [80.0])


def test_joint_training_has_one_row() -> None:
    joint = np.array([[80.0, 90.0, 70.0]])
    assert average_accuracy(joint) == pytest.approx(80.0)


def test_expertise() -> None:
    # Task 1: mean (60 + 90) / 2 = 75 -> -15, +15. Task 2: mean 70 -> 0, 0.
    np.testing.assert_allclose(expertise(np.array([[60.0, 90.0], [70.0, 70.0]])), [[-15.0, 15.0], [0.0, 0.0]])


def test_prediction_diversity_of_two() -> None:
    """Sample 1: p_1 = (1, 0), p_2 = (0, 1): cosine 0, distance sqrt 2.
    Sample 2: p_1 = p_2 = (1/2, 1/2): cosine 1, distance 0."""
    p = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]], dtype=torch.float64)
    cos, euc = prediction_diversity(p)
    assert float(cos) == pytest.approx(1 - (0 + 1) / 2)
    assert float(euc) == pytest.approx((math.sqrt(2) + 0) / 2)


def test_prediction_diversity_of_three() -> None:
    """One sample: a = (0.8, 0.2), b = (0.6, 0.4), c = (0.2, 0.8).
    a.b = 0.48 + 0.08 = 0.56, a.c = 0.16 + 0.16 = 0.32, b.c = 0.12 + 0.32 = 0.44;
    |a|^2 = |c|^2 = 0.68, |b|^2 = 0.52; |a-b| = 0.2 sqrt 2, |a-c| = 0.6 sqrt 2, |b-c| = 0.4 sqrt 2.
    Each pair counts twice in the sum over i and j != i, over K (K-1) = 6."""
    p = torch.tensor([[[0.8, 0.2]], [[0.6, 0.4]], [[0.2, 0.8]]], dtype=torch.float64)
    cos, euc = prediction_diversity(p)
    ab, ac, bc = 0.56 / math.sqrt(0.68 * 0.52), 0.32 / 0.68, 0.44 / math.sqrt(0.52 * 0.68)
    assert float(cos) == pytest.approx(1 - 2 * (ab + ac + bc) / 6)
    assert float(euc) == pytest.approx(2 * (0.2 + 0.6 + 0.4) * math.sqrt(2) / 6)


def test_prediction_diversity_by_loops() -> None:
    p = torch.rand(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(2)
    cos = euc = 0.0
    for i in range(4):
        for j in range(4):
            for n in range(5):
                if i != j:
                    a, b = p[i, n].tolist(), p[j, n].tolist()
                    dot = sum(x * y for x, y in zip(a, b, strict=True))
                    cos += dot / math.hypot(*a) / math.hypot(*b) / (4 * 3 * 5)
                    euc += math.dist(a, b) / (4 * 3 * 5)
    ours = prediction_diversity(p)
    assert float(ours[0]) == pytest.approx(1 - cos)
    assert float(ours[1]) == pytest.approx(euc)


def test_summary() -> None:
    # mean 20; squared deviations 100 + 0 + 100, / (3 - 1) = 100, root 10, / sqrt 3.
    summary = Summary.of([10.0, 20.0, 30.0])
    assert summary is not None
    assert summary.mean == pytest.approx(20.0)
    assert summary.sem == pytest.approx(10 / math.sqrt(3))
    assert summary.runs == (10.0, 20.0, 30.0)


def test_summary_of_one_and_of_none() -> None:
    one = Summary.of([10.0])
    assert one is not None and one.mean == 10.0 and math.isnan(one.sem)
    assert Summary.of([]) is None
    assert Summary.of([math.nan, math.inf]) is None


def test_summary_leaves_out_what_was_not_measured() -> None:
    summary = Summary.of([10.0, math.nan, 30.0])
    assert summary is not None
    assert summary.mean == 20.0
    assert summary.sem == pytest.approx(math.sqrt(200) / math.sqrt(2))


def test_summaries_in_files_have_four_decimals() -> None:
    found = rounded(Summary(1.23456789, 0.98765432, (1.000049, 2.00005001)))
    assert found == {"mean": 1.2346, "sem": 0.9877, "runs": [1.0, 2.0001]}
    assert rounded(None) is None
