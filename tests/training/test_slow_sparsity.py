"""AGS-CL against its equations done slowly: float64, one run, node after node, PyTorch's own optimisers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.data import Stream
from kenyon.models import Net
from kenyon.random import Purpose, key, random_words
from kenyon.training import Training
from tests.references import hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import method

LAMBDA, ETA, RHO = 8.0, 0.9, 0.4


def small_cnn() -> nn.Module:
    """Without corners, so that rounding stays rounding; a node is idle when its group is exactly zero."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 5, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(20, 9),
        nn.Tanh(),
    )


@dataclass
class Slow:
    """One network and what AGS-CL knows of it. Layers are those with weights, in order."""

    module: nn.Sequential
    heads: list[nn.Linear]
    mu: float
    omega: list[list[float]] = field(default_factory=list)  # of every layer and node

    def __post_init__(self) -> None:
        self.layers = [m for m in self.module if isinstance(m, (nn.Conv2d, nn.Linear))]
        self.omega = [[0.0] * len(layer.weight) for layer in self.layers]
        self.old = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in self.layers]

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.module(x))

    def zero(self, number: int, *, everywhere: bool) -> None:
        """Weights from idle nodes into the nodes of a layer, or only into its important ones."""
        weight = self.layers[number].weight.data
        share = weight[0].numel() // len(self.omega[number - 1])
        for target in range(len(weight)):
            if everywhere or self.omega[number][target] > 0:
                incoming = weight[target].view(-1)
                for source, importance in enumerate(self.omega[number - 1]):
                    if importance == 0:
                        incoming[source * share : (source + 1) * share] = 0.0

    def proximal(self, rate: float) -> None:
        for number, layer in enumerate(self.layers):
            w, b = layer.weight.data, layer.bias.data
            for node, importance in enumerate(self.omega[number]):
                if importance == 0:
                    length = float((w[node].square().sum() + b[node] ** 2).sqrt())
                    kept = max(0.0, 1 - rate * self.mu / length) if length else 0.0
                    w[node] *= kept
                    b[node] *= kept
                else:
                    old_w, old_b = self.old[number][0][node], self.old[number][1][node]
                    dw, db = w[node] - old_w, b[node] - old_b
                    length = float((dw.square().sum() + db**2).sqrt())
                    kept = max(0.0, 1 - rate * LAMBDA * importance / length) if length else 0.0
                    w[node], b[node] = old_w + kept * dw, old_b + kept * db

    def weigh(self, x: Tensor) -> None:
        number = -1
        for layer in self.module:
            x = layer(x)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                number += 1
            elif isinstance(layer, nn.Tanh):
                for node in range(x.shape[1]):
                    self.omega[number][node] = ETA * self.omega[number][node] + float(x[:, node].abs().mean())

    def renew(self, net: Net, seed: int, task: int) -> None:
        fresh = list(net.fresh_learner(key(seed, Purpose.NODES, task, 0)).values())
        keys, zero = torch.tensor([key(seed, Purpose.NODES, task)]), torch.zeros(1, dtype=torch.long)
        lots, start = random_words(keys, zero, sum(map(len, self.omega)))[0].tolist(), 0
        for number, layer in enumerate(self.layers):
            if number:
                self.zero(number, everywhere=True)
            idle = [node for node, importance in enumerate(self.omega[number]) if importance == 0]
            for node in sorted(idle, key=lambda n: lots[start + n])[: ceil(RHO * len(idle))]:
                layer.weight.data[node] = fresh[2 * number][node].double()
                layer.bias.data[node] = fresh[2 * number + 1][node].double()
            start += len(self.omega[number])
        for node, importance in enumerate(self.omega[-1]):
            if importance == 0:
                self.heads[task].weight.data[:, node] = 0.0
        self.old = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in self.layers]

    def state(self) -> list[Tensor]:
        return [p.detach().clone() for m in (*self.layers, *self.heads) for p in m.parameters()]

    def load(self, state: list[Tensor]) -> None:
        for p, value in zip((p for m in (*self.layers, *self.heads) for p in m.parameters()), state, strict=True):
            p.data.copy_(value)


def learn(slow: Slow, net: Net, stream: Stream, training: Training) -> list[float]:
    """Every epoch is one batch of all samples. The share of important nodes after every task."""
    parameters = [p for m in (*slow.layers, *slow.heads) for p in m.parameters()]
    shares = []

    def new_optimizer(rate: float) -> torch.optim.Optimizer:
        if training.optimiser == "sgd":
            return torch.optim.SGD(parameters, lr=rate, momentum=training.momentum)
        return torch.optim.Adam(parameters, lr=rate)

    for task, part in enumerate(stream.tasks):
        x, held_out = normalised(part.train, stream), normalised(part.validation, stream)
        rate, best_loss, waited, best = training.rate, float("inf"), 0, slow.state()
        optimizer = new_optimizer(rate)
        for epoch in range(training.epochs):
            if training.schedule == "step" and epoch == training.drop_epoch:
                rate /= training.drop
                optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            F.cross_entropy(slow.logits(x, task), part.train.labels).backward()
            optimizer.step()
            if task > 0:
                for number in range(1, len(slow.layers)):
                    slow.zero(number, everywhere=False)
            slow.proximal(rate)
            if training.schedule == "step":
                continue
            with torch.no_grad():
                loss = float(F.cross_entropy(slow.logits(held_out, task), part.validation.labels))
            if loss < best_loss:
                best_loss, waited, best = loss, 0, slow.state()
            else:
                waited += 1
                if waited >= training.patience:
                    rate, waited = rate / training.drop, 0
                    optimizer = new_optimizer(rate)
        if training.schedule == "plateau":
            slow.load(best)
        with torch.no_grad():
            slow.weigh(x)
            slow.renew(net, stream.seed, task)
        every = [importance > 0 for layer in slow.omega for importance in layer]
        shares.append(sum(every) / len(every))
    return shares


ADAM = Training(epochs=14, batch=64, rate=0.02, patience=2)
SGD = replace(ADAM, optimiser="sgd", rate=0.1, schedule="step", drop_epoch=10, validation=0.0)


@pytest.mark.parametrize(("training", "mu"), [(ADAM, 4.0), (SGD, 0.7)])
@pytest.mark.parametrize("backbone", [plain_mlp(9, smooth=True), small_cnn()])
def test_a_training_equals_the_equations_done_slowly(training: Training, mu: float, backbone: nn.Module) -> None:
    stream = hand_stream([47, 35, 50], seed=6, held_out=13, noise=200)
    hyper = {"lambda_sp": LAMBDA, "mu": mu, "rho": RHO, "eta": ETA}
    trainer = make_trainer(method("agscl", **hyper), [stream], training, backbone=backbone)
    net, first = trainer.net, trainer.theta[0].clone()
    module = nn.Sequential(*copy.deepcopy(backbone)).double()
    heads = [nn.Linear(net.features, 2).double() for _ in stream.tasks]
    slow = Slow(module, heads, mu)
    own = [net.layout.view(first, name)[0] for name in net.backbone_names]
    for t in range(3):
        own += [net.layout.view(first, "head.weight")[t], net.layout.view(first, "head.bias")[t]]
    slow.load(own)
    shares = learn(slow, net, stream, training)
    trainer.run()
    assert 0 < shares[0] < 1 and shares[0] <= shares[1] <= shares[2]  # there were nodes of both kinds
    found = trainer.tensors()
    omega = torch.tensor([importance for layer in slow.omega for importance in layer], dtype=torch.float64)
    assert torch.equal(found["node_importance"][0] > 0, omega > 0)
    torch.testing.assert_close(found["node_importance"][0].double(), omega, rtol=2e-3, atol=1e-4)
    for name, expected in zip(net.backbone_names, slow.state(), strict=False):
        ours = net.layout.view(trainer.theta[0], name)[0].double()
        assert torch.equal(ours == 0, expected == 0), name
        torch.testing.assert_close(ours, expected, rtol=5e-3, atol=5e-4)
    for t, head in enumerate(slow.heads):
        ours = net.layout.view(trainer.theta[0], "head.weight")[t].double()
        torch.testing.assert_close(ours, head.weight.detach(), rtol=5e-3, atol=5e-4)
