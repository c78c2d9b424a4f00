"""A training loop of one's own with Kenyon's losses: `python examples/own_loop.py`.

Five tasks of two handwritten digits each, one drawing in five to learn from, as in the benchmark `digits`; an
ordinary module, an ordinary optimizer. Prints the average accuracy of all tasks in the end.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kenyon.regularizers import AF1, AFS, Collaborative, Protection

EPOCHS, SEEDS = 40, 5
Task = tuple[TensorDataset, TensorDataset]  # to learn from, to test on


def make_tasks(seed: int) -> list[Task]:
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().sub(4.9).div(6.0).flatten(1)
    labels = torch.from_numpy(digits.target).long()
    generator = torch.Generator().manual_seed(seed)
    learned = torch.rand(len(labels), generator=generator) < 0.2
    tasks = []
    for first in torch.randperm(5, generator=generator).mul(2).tolist():
        mine = (labels == first) | (labels == first + 1)
        parts = [TensorDataset(images[mine & some], labels[mine & some] - first) for some in (learned, ~learned)]
        tasks.append((parts[0], parts[1]))
    return tasks


def learner(width: int) -> nn.Module:
    dense = nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.25)
    return nn.Sequential(*dense, nn.Linear(width, 128), nn.ReLU(), nn.Dropout(0.5))


def run(method: str, seed: int) -> float:
    torch.manual_seed(seed)
    tasks = make_tasks(seed)
    learners = 5 if method == "caf-ewc" else 1
    width = 3 if method == "caf-ewc" else 16  # about as many parameters
    model = Collaborative([learner(width) for _ in range(learners)], [nn.Linear(128, 2) for _ in tasks])

    importance, strength = {"finetune": ("ewc", 0.0), "si": ("si", 1.0)}.get(method, ("ewc", 1e6))
    protection = Protection(model, importance, strength=strength, exclude="heads")
    forgetting = AF1(model, strength=1e-6, adaptive=True, exclude="heads") if method == "caf-ewc" else None
    learning = AFS(learners, strength=0.02, adaptive=True) if method == "caf-ewc" else None

    for task, (train, _) in enumerate(tasks):
        loader = DataLoader(train, batch_size=16, shuffle=True)
        parameters = [*model.parameters()]
        if forgetting is not None and learning is not None:
            forgetting.begin_task()
            learning.begin_task()
            parameters += [*forgetting.parameters(), *learning.parameters()]
        optimizer = torch.optim.Adam(parameters, 0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, EPOCHS // 2, 1 / 3)
        protection.track(optimizer)
        model.train()
        for _ in range(EPOCHS):
            for x, y in loader:
                logits, own = model(x, task, own=True)
                loss = F.cross_entropy(logits, y) + protection()
                if learning is not None:
                    loss = loss + learning(own)
                if forgetting is not None and task > 0:
                    loss = loss + forgetting(model.heads[task])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()

        def predict(model: nn.Module, batch: tuple[Tensor, Tensor], task: int = task) -> tuple[Tensor, Tensor]:
            return model(batch[0], task), batch[1]

        protection.consolidate(loader, predict)

    model.eval()
    right = []
    for task, (_, test) in enumerate(tasks):
        x, y = test.tensors
        right.append((model(x, task).argmax(1) == y).double().mean().item())
    return 100 * statistics.mean(right)


if __name__ == "__main__":
    for method in ("finetune", "si", "ewc", "caf-ewc"):
        found = [run(method, seed) for seed in range(SEEDS)]
        error = statistics.stdev(found) / SEEDS**0.5
        print(f"{method:9} {statistics.mean(found):.2f} ± {error:.2f} %")
