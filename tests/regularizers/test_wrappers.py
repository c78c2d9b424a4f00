"""The losses with models that are wrapped, compiled, half-precise, partly frozen or trained by several optimisers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kenyon.regularizers import AF1, AF2, AFS, Protection
from tests.regularizers.small import batches, classifier, learners, moved, vectors


def test_compiled() -> None:
    """Made for the compiled model or for the one inside, names and values are the same."""
    model, data = classifier(), batches(*vectors(30), 30)
    compiled = torch.compile(model, backend="eager")
    inside, outside = (Protection(m, strength=3.0, exclude="head") for m in (model, compiled))
    for protection in (inside, outside):
        protection.consolidate(data)
    moved(model)
    assert outside().item() == inside().item() > 0
    assert list(outside.importance) == ["body.0.weight", "body.0.bias"]
    (F.cross_entropy(compiled(data[0][0]), data[0][1]) + outside()).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own, in tracing
def test_part_of_a_compiled_step() -> None:
    """A whole loss as one graph, traced without a break."""
    model, (x, y) = learners(3), vectors(30)
    protection = Protection(model, strength=3.0, exclude="heads")
    forgetting = AF1(model, strength=0.1, adaptive=True, exclude="heads")
    learning = AFS(3, strength=0.5)
    protection.consolidate(batches(x, y, 30))
    moved(model)

    def loss() -> torch.Tensor:
        logits, own = model(x, own=True)
        return F.cross_entropy(logits, y) + protection() + forgetting(model.heads[0]) + learning(own)

    traced = torch.compile(loss, backend="eager", fullgraph=True)()
    torch.testing.assert_close(traced, loss())
    gradients = [torch.autograd.grad(value, list(model.backbones.parameters())) for value in (traced, loss())]
    torch.testing.assert_close(*gradients)


def test_autocast() -> None:
    """Halves in the model; penalties and importances stay in float32."""
    model, (x, y) = learners(3), vectors(40)
    protection = Protection(model, strength=100.0, exclude="heads")
    protection.consolidate(batches(x, y, 20))
    learning, forgetting = AFS(3, strength=1.0), AF2(model, strength=1.0, exclude="heads")
    forgetting.measure(batches(x, y, 20))
    moved(model.backbones, 0.01)
    exact = [protection(), forgetting(), AF1(model, strength=1.0)()]
    with torch.autocast("cpu", torch.bfloat16):
        logits, own = model(x, own=True)
        assert logits.dtype is torch.bfloat16
        inside = [protection(), forgetting(), AF1(model, strength=1.0)()]
        divergence = learning(own)
        loss = F.cross_entropy(logits, y) + sum(inside) + divergence
        again = Protection(model, strength=1.0, exclude="heads")
        again.consolidate(batches(x, y, 20))
    assert all(a.item() == b.item() for a, b in zip(exact, inside, strict=True))
    assert divergence.dtype is torch.float32 and divergence.item() == learning(own.float()).item()
    assert all(importance.dtype is torch.float32 for importance in again.importance.values())
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.backbones.parameters() if p.grad is not None)


def test_a_model_in_halves() -> None:
    """Squares of small gradients would vanish in float16; what is kept does not."""
    model = nn.Linear(4, 3).to(torch.float16)
    x, y = vectors(20)
    protection = Protection(model, strength=1.0)
    protection.consolidate([(x.half() * 1e-3, y)])
    assert protection.importance["weight"].dtype is torch.float32
    assert (protection.importance["weight"] > 0).all() and protection.importance["weight"].max() < 6e-5
    moved(model, 1.0)
    protection().backward()
    assert model.weight.grad is not None and model.weight.grad.dtype is torch.float16


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips(fused: bool) -> None:
    """Infinite gradients: the weights stay, and so does the path. A step that is taken counts unscaled."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    protection = Protection(model, "si", strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
    protection.track(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((model.weight**2 / 2 * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    protection.consolidate()  # two steps, as in the numbers by hand: 1 -> 0.9 -> 0.81
    assert model.weight.item() == pytest.approx(0.81)
    assert protection.importance["weight"].item() == pytest.approx(0.181 / 0.0461)


def test_several_optimizers_are_one_path() -> None:
    """A weight in each of two, with a new one in the middle: the same path as by one that has them all."""

    def path(parts: int) -> dict[str, torch.Tensor]:
        model, (x, y) = classifier(), vectors(30)
        protection = Protection(model, "si", strength=1.0)
        for _ in range(2):
            groups = [model.body.parameters(), model.head.parameters()] if parts == 2 else [model.parameters()]
            optimizers = [torch.optim.SGD(group, 0.1) for group in groups]
            protection.track(*optimizers)
            for _ in range(3):
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
        protection.consolidate()
        return protection.importance

    one, two = path(1), path(2)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=0)


def test_frozen_parameters() -> None:
    """They matter nothing and pull nothing, and may be unfrozen later."""
    model, (x, y) = classifier(), vectors(30)
    model.body[0].weight.requires_grad_(False)
    protection = Protection(model, strength=10.0)
    protection.consolidate(batches(x, y, 30))
    assert not protection.importance["body.0.weight"].any() and protection.importance["body.0.bias"].any()
    moved(model)
    protection().backward()
    assert model.body[0].weight.grad is None and model.body[0].bias.grad is not None
    model.body[0].weight.requires_grad_(True)
    protection.consolidate(batches(x, y, 30))
    assert protection.importance["body.0.weight"].any()


def test_a_loss_inside_the_model_is_no_part_of_it() -> None:
    model = learners(3)
    model.forgetting = AF1(model, strength=1.0, adaptive=True, exclude="heads")
    assert all("forgetting" not in name for name in Protection(model, strength=1.0).chosen.shapes)
    assert model.forgetting(model.heads[0]).item() > 0


# ---------------------------------------------------------------------- several processes


def distributed(rank: int, folder: str) -> None:
    """One of two processes, with half of the data."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, (x, y) = learners(3), vectors(80)
    mine = slice(40 * rank, 40 * rank + 40)
    wrapped = DistributedDataParallel(model, find_unused_parameters=False)
    torch.manual_seed(rank)  # what is learned is drawn differently, were it not shared
    protection = Protection(wrapped, strength=20.0, exclude="heads")
    learning = AFS(3, strength=0.5, adaptive=True, form="paper")
    learning.begin_task()
    protection.consolidate(batches(x[mine], y[mine], 40))
    learning.begin_task()
    drawn = learning.learned.detach().clone()  # type: ignore[union-attr]
    moved(model)
    optimizer = torch.optim.SGD([*wrapped.parameters(), *learning.parameters()], 0.1)
    for task in (0, 1):
        optimizer.zero_grad()
        logits, own = wrapped(x[mine], task, own=True)
        other = sum(p.sum() * 0 for p in model.heads[1 - task].parameters())  # DDP wants all to have gradients
        (F.cross_entropy(logits, y[mine]) + protection() + learning(own) + other).backward()
        optimizer.step()
    state = {
        "model": model.state_dict(),
        "protection": protection.state_dict(),
        "learned": learning.learned,
        "drawn": drawn,
    }
    torch.save(state, f"{folder}/{rank}.pt")
    dist.barrier()  # nobody leaves while the other still speaks
    dist.destroy_process_group()


def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    """Importances are those of all data, and weights and what is learned stay the same everywhere."""
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    workers = [context.Process(target=distributed, args=(rank, str(tmp_path)), daemon=True) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
    assert [worker.exitcode for worker in workers] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name in first["model"]:
        assert torch.equal(first["model"][name], second["model"][name])
    assert torch.equal(first["learned"], second["learned"]) and not torch.equal(first["learned"], first["drawn"])

    model, (x, y) = learners(3), vectors(80)
    protection, learning = (
        Protection(model, strength=20.0, exclude="heads"),
        AFS(3, strength=0.5, adaptive=True, form="paper"),
    )
    learning.begin_task()
    protection.consolidate(batches(x, y, 40))
    learning.begin_task()
    learning.learned.data.copy_(first["drawn"])  # type: ignore[union-attr]
    moved(model)
    optimizer = torch.optim.SGD([*model.parameters(), *learning.parameters()], 0.1)
    for task in (0, 1):
        optimizer.zero_grad()
        logits, own = model(x, task, own=True)
        (F.cross_entropy(logits, y) + protection() + learning(own)).backward()
        optimizer.step()
    for name, importance in protection.importance.items():
        torch.testing.assert_close(first["protection"]["importance"][name], importance)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(first["model"][name], tensor, rtol=1e-4, atol=1e-6)
