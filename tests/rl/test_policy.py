"""A policy by hand: a network whose logits are sums of pixels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kenyon.errors import DataError
from kenyon.experiments.policy import Policy
from kenyon.models import Outputs

ROW = torch.tensor([1.0, 2.0])


def policy(together: bool) -> Policy:
    """Images of one channel and two pixels, two games of 2 and 3 actions. The first game's logits are the pixels by
    the row; the second's are reversed, and a third action is as likely as its first.
    """

    def forward(row: Tensor, images: Tensor, heads: Tensor) -> Outputs:
        assert row.shape == ((1, 2) if together else (2,)) and images.shape[-3:] == (1, 1, 2)
        logits = images.flatten(-3) * (row.unsqueeze(-2) if together else row)
        logits = logits if int(heads) == 0 else logits.flip(-1)
        return Outputs(torch.cat([logits, logits[..., :1]], dim=-1), None)

    net: Any = SimpleNamespace(
        together=together,
        forward=forward,
        device=torch.device("cpu"),
        dtype=torch.float32,
        executor=SimpleNamespace(input_channels=None),
        class_counts=(2, 3),
        input_shape=(1, 1, 2),
    )
    return Policy(net, ROW, ("pong", "chess"), "pong")


PIXELS = np.array([[255, 0], [0, 51], [204, 51]], dtype=np.uint8).reshape(3, 1, 1, 2)
LOGITS = np.array([[1.0, 0.0], [0.0, 0.4], [0.8, 0.4]])


def softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.parametrize("together", [False, True])
def test_probabilities_of_the_actions_that_a_game_has(together: bool) -> None:
    first = policy(together)
    np.testing.assert_allclose(first.probabilities(PIXELS), softmax(LOGITS), rtol=1e-6)
    assert first.act(PIXELS).tolist() == [0, 1, 0]
    second = first.playing("chess")
    flipped = LOGITS[:, ::-1]
    np.testing.assert_allclose(second.probabilities(PIXELS), softmax(np.hstack([flipped, flipped[:, :1]])), rtol=1e-6)
    assert first.probabilities(PIXELS[:0]).shape == (0, 2) and second.probabilities(PIXELS[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    "wrong", [PIXELS[0], PIXELS[:, :, :, :1], PIXELS[None], PIXELS.astype(np.float32), PIXELS.astype(np.int64)]
)
def test_other_observations_than_bytes_of_its_shape_are_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match=r"Observations of pong are bytes \(uint8\) of the shape \(N, 1, 1, 2\)"):
        policy(False).probabilities(wrong)
