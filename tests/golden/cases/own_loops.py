"""Losses of `kenyon.regularizers` in a loop of one's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.regularizers import AF1, AF2, AFS, Collaborative, Protection
from tests.golden.cases.registry import add
from tests.golden.values import Exact, Values
from tests.golden.workbench import Bench, clouds


def own_loop(bench: Bench, importance: str, *, learners: int = 1, forget: str = "", **settings: Any) -> Values:
    """Three tasks in plain PyTorch; losses of every step, weights and importances in the end."""
    torch.manual_seed(0)
    bodies = [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 8), nn.ReLU()) for _ in range(learners)]
    model = Collaborative(bodies, [nn.Linear(8, 2) for _ in range(3)]).to(bench.device)
    protection = Protection(model, importance, strength=3.0, exclude="heads", **settings)
    adaptive: dict[str, Any] = {"adaptive": settings.get("accumulate") is None}
    af1 = AF1(model, strength=1e-2, exclude="heads", **adaptive).to(bench.device) if "af1" in forget else None
    afs = AFS(learners, strength=0.3, **adaptive).to(bench.device) if "afs" in forget else None
    losses: list[Tensor] = []
    for task in range(3):
        batches = loader(task, bench.device)
        learned = [*model.parameters()]
        for one in (af1, afs):
            if one is not None:
                one.begin_task()
                learned += [*one.parameters()]
        optimizer = torch.optim.Adam(learned, 1e-2)
        protection.track(optimizer)
        for x, y in batches * 3:
            logits, own = model(x, task, own=True)
            loss = F.cross_entropy(logits, y) + protection()
            if afs is not None:
                loss = loss + afs(own)
            if af1 is not None and task:
                loss = loss + af1(model.heads[task])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        def predict(model: nn.Module, batch: tuple[Tensor, Tensor], task: int = task) -> tuple[Tensor, Tensor]:
            return model(batch[0], task), batch[1]

        protection.consolidate(batches, predict)
    state = protection.state_dict()
    found: Values = {"losses": torch.stack(losses), "tasks": Exact(state["tasks"])}
    found |= {f"importance {name}": value for name, value in state["importance"].items()}
    found |= {f"weight {name}": value for name, value in model.state_dict().items()}
    for name, one in (("af1", af1), ("afs", afs)):
        if one is not None:
            found |= {f"{name} {key}": value for key, value in one.named_parameters()}
    return found


def loader(task: int, device: str) -> list[tuple[Tensor, Tensor]]:
    x, y = (torch.from_numpy(part).to(device) for part in clouds(task, 6))
    return list(zip(x.split(16), (y - 2 * task).split(16), strict=True))


def expanded_loop(bench: Bench) -> Values:
    """AF-2, with a network that learns each task alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(bench.device)
    protection = Protection(model, "ewc", strength=3.0, exclude="2")
    forgetting = AF2(model, strength=1.0, exclude="2")
    losses: list[Tensor] = []
    for task in range(2):
        batches = loader(task, bench.device)
        optimizers = [torch.optim.Adam(one.parameters(), 1e-2) for one in (model, forgetting.network)]
        for _ in range(2):
            for x, y in batches:
                optimizers[1].zero_grad()
                F.cross_entropy(forgetting.network(x), y).backward()
                optimizers[1].step()
            forgetting.measure(batches)
            for x, y in batches:
                loss = F.cross_entropy(model(x), y) + protection() + (forgetting() if task else 0.0)
                optimizers[0].zero_grad()
                loss.backward()
                optimizers[0].step()
                losses.append(loss.detach())
        protection.consolidate(batches)
    found: Values = {"losses": torch.stack(losses)}
    found |= {f"weight {name}": value for name, value in model.state_dict().items()}
    return found | {f"importance {name}": value for name, value in protection.state_dict()["importance"].items()}


for name, asked in {
    "ewc": {"importance": "ewc"},
    "ewc exact": {"importance": "ewc-exact"},
    "mas": {"importance": "mas"},
    "si": {"importance": "si"},
    "ewc, averaged": {"importance": "ewc-exact", "accumulate": "average"},
    "mas, decaying": {"importance": "mas", "accumulate": 0.5},
    "caf": {"importance": "ewc", "learners": 3, "forget": "af1 afs"},
    "caf uniform": {"importance": "mas", "learners": 3, "forget": "af1 afs", "accumulate": "last"},
}.items():
    add(f"own loop/{name}", partial(own_loop, **asked), quick=True)  # type: ignore[arg-type]
add("own loop/af2", expanded_loop, quick=True)
