"""Test accuracy of a fleet on every task, learners together and each alone, and how much the learners differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.metrics import prediction_diversity
from kenyon.nets import Net
from kenyon.train.device import Lanes
from kenyon.train.fleet import Fleet

CHUNK = 1024


@dataclass(frozen=True)
class Evaluation:
    accuracy: Tensor  # (R, T) per cent
    own_accuracy: Tensor  # (R, T, K) of each learner alone
    cosine: Tensor  # (R, T) diversity of the learners' predictions
    euclidean: Tensor  # (R, T)


@torch.no_grad()
def evaluate(net: Net, theta: Tensor, fleet: Fleet, lanes: Lanes, runs: Sequence[int]) -> Evaluation:
    """All tasks of the streams, also those not learned yet. Runs left out have no numbers (NaN)."""
    R, T, K = len(fleet), fleet.tasks, net.learners
    own = torch.full((R, T, K), torch.nan, device=fleet.device)
    together, cosine, euclidean = (torch.full((R, T), torch.nan, device=fleet.device) for _ in range(3))
    tests = [fleet.samples("test", (t,)) for t in range(T)]

    def one_run(run: int) -> None:
        for t, stream_task in enumerate(fleet.streams[run].tasks):
            size = len(stream_task.test)
            right = torch.zeros((), device=fleet.device)
            right_alone = torch.zeros(K, device=fleet.device)
            distance = torch.zeros(2, device=fleet.device)
            head = torch.full((1,), t, device=fleet.device)
            for index, labels in zip(
                tests[t].index[run, :size].split(CHUNK), tests[t].labels[run, :size].split(CHUNK), strict=True
            ):
                out = net.forward(theta[run], fleet.images(run, index), head, own=True)
                assert out.own_logits is not None
                right += (out.logits.argmax(1) == labels).sum()
                right_alone += (out.own_logits.argmax(2) == labels).sum(1)
                if K > 1:
                    distance += torch.stack(prediction_diversity(out.own_logits.softmax(2))) * len(labels)
            together[run, t] = 100 * right / size
            own[run, t] = 100 * right_alone / size
            if K > 1:
                cosine[run, t], euclidean[run, t] = distance[0] / size, distance[1] / size

    lanes.each(runs, one_run)
    return Evaluation(together.cpu(), own.cpu(), cosine.cpu(), euclidean.cpu())
