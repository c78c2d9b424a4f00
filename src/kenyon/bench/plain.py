"""The same training in plain PyTorch, as the reference for Kenyon's speed.

One run; an ordinary nn.Module for every learner, one learner after another; penalties as sums over parameter
tensors, differentiated by autograd; torch.optim.Adam; no CUDA graph. It is as fast as such code gets without tricks:
images are normalized and on the device already, and nothing is logged or copied to the host in a step. It computes
the same function as the library (a test compares losses, gradients, importances and accuracies), for EWC and for CAF
on EWC with the published, adaptive forms of AF-1 and AF-S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.bench.result import Piece
from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Split, Stream
from kenyon.experiments.config import Config

if TYPE_CHECKING:
    from kenyon.bench.subject import State

FISHER_BATCH = 20
SLOPE = 100.0  # of the softmax over AF-S's adaptive weights


class Plain(nn.Module):
    """One run of EWC or CAF at a task. `precision` is that of the learners: float32, or bfloat16 by autocast."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        task: int,
        device: torch.device,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        bench, K = find_benchmark(config.benchmark), config.architecture.learners
        self.task, self.device, self.precision = task, device, precision
        self.batch = config.training.batch
        self.lambda_sp = config.hyper["lambda_sp"]
        self.lambda_af, self.gamma = config.hyper.get("lambda_af", 0.0), config.hyper.get("gamma", 0.0)

        self.learners = nn.ModuleList(bench.backbone(config.architecture.width, K) for _ in range(K))
        with torch.no_grad():
            features = self.learners[0](torch.zeros(1, *stream.input_shape)).shape[1]
        self.heads = nn.ModuleList(nn.Linear(features, count) for count in stream.class_counts)
        tensors = len(list(self.learners[0].parameters()))
        self.af1_weights = nn.Parameter(torch.randn(tensors, K))
        self.afs_weights = nn.Parameter(torch.randn(K, K))
        self.to(device)
        self.old = {name: p.detach().clone() for name, p in self.learners.named_parameters()}
        self.fisher = {name: torch.zeros_like(p) for name, p in self.learners.named_parameters()}
        self.optimizer = torch.optim.Adam(self.parameters(), lr=config.training.rate)

        self.images, self.labels = self._load(stream.tasks[task].train, stream)
        self.tests = [self._load(t.test, stream) for t in stream.tasks]

    @property
    def pieces(self) -> dict[Piece, Callable[[], object]]:
        return {"step": self.train_epoch, "importance": self.importance_pass, "evaluation": self.evaluation}

    def train_epoch(self) -> None:
        self.train()
        for chosen in torch.randperm(len(self.labels), device=self.device).split(self.batch):
            self.optimizer.zero_grad()
            self.loss(self.images[chosen], self.labels[chosen]).backward()
            self.optimizer.step()

    def importance_pass(self) -> dict[str, Tensor]:
        """The published Fisher information: squared gradients of batches of 20."""
        self.train()
        fisher = {name: torch.zeros_like(p) for name, p in self.learners.named_parameters()}
        for images, labels in zip(self.images.split(FISHER_BATCH), self.labels.split(FISHER_BATCH), strict=True):
            self.zero_grad()
            F.cross_entropy(self(images, self.task)[0], labels).backward()
            for name, p in self.learners.named_parameters():
                assert p.grad is not None
                fisher[name] += FISHER_BATCH * p.grad.square()
        return {name: value / len(self.labels) for name, value in fisher.items()}

    @torch.no_grad()
    def evaluation(self) -> list[list[float]]:
        """Return the accuracy on every task, per cent: of the learners together, then of each alone if several."""
        self.eval()
        right = []
        for task, (images, labels) in enumerate(self.tests):
            logits, own = self(images, task, own=len(self.learners) > 1)
            right.append(torch.stack([(one.argmax(1) == labels).float().mean() for one in (logits, *own)]))
        return (100 * torch.stack(right)).tolist()

    def forward(self, images: Tensor, task: int, own: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Return predictions of the learners together, and with `own` of each alone."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16):
            features = [learner(images) for learner in self.learners]
        features = [f.float() for f in features]
        head = self.heads[task]
        return head(sum(features[1:], features[0])), [head(f) for f in features] if own else []

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        logits, own = self(images, self.task, own=self.gamma > 0)
        loss = F.cross_entropy(logits, labels)
        if self.gamma:
            loss = loss + self.gamma * self.divergence(own)
        if self.task > 0:
            loss = loss + self.lambda_sp / 2 * self.stability()
            if self.lambda_af:
                loss = loss + self.lambda_af / 2 * self.decay()
        return loss

    def stability(self) -> Tensor:
        """EWC: the squared distance from the old weights, weighted by their Fisher information."""
        total = torch.zeros((), device=self.device)
        for name, p in self.learners.named_parameters():
            total = total + (self.fisher[name] * (p - self.old[name]).square()).sum()
        return total

    def decay(self) -> Tensor:
        """AF-1: the squared norm of the weights; learners of a parameter tensor are weighted by K * softmax."""
        total = torch.zeros((), device=self.device)
        weights = len(self.learners) * torch.softmax(self.af1_weights, dim=1)
        for k, learner in enumerate(self.learners):
            for number, p in enumerate(learner.parameters()):
                total = total + weights[number, k] * p.square().sum()
        for p in self.heads[self.task].parameters():
            total = total + p.square().sum()
        return total

    def divergence(self, own: list[Tensor]) -> Tensor:
        """AF-S: the KL divergence of each learner's prediction from those of the others."""
        total, K = torch.zeros((), device=self.device), len(own)
        weights = K * torch.softmax(SLOPE * self.afs_weights, dim=1)
        log_p = [F.log_softmax(logits, dim=1) for logits in own]
        for k in range(K):
            for other in range(K):
                if other != k:
                    kl = F.kl_div(log_p[k], log_p[other].detach().exp(), reduction="batchmean")
                    total = total + (weights[k, other] * kl if self.task > 0 else kl)
        return total

    @torch.no_grad()
    def take(self, state: State) -> None:
        """Copy the state of a run of the library."""
        theta = state["theta"]
        for name, p in self.learners.named_parameters():
            k, _, tensor = name.partition(".")
            p.copy_(theta[tensor][int(k)])
            self.fisher[name].copy_(state["importance"][tensor][int(k)])
            self.old[name].copy_(state["anchor"][tensor][int(k)])
        for task, head in enumerate(self.heads):
            for name, p in head.named_parameters():
                p.copy_(theta[f"head.{name}"][task][: len(p)])
        if "af1" in theta:
            self.af1_weights.copy_(theta["af1"])
            self.afs_weights.copy_(theta["afs"])

    def _load(self, split: Split, stream: Stream) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v, device=self.device).view(-1, 1, 1) for v in (stream.mean, stream.std))
        return (split.images.to(self.device) / 255 - mean) / std, split.labels.to(self.device)
