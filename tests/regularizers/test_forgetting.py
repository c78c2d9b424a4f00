"""AF-1, AF-2, AF-S and the module of several learners, by hand and against loops."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kenyon.regularizers import AF1, AF2, AFS, Collaborative
from tests.methods.test_penalties import divergence_by_hand
from tests.regularizers.small import batches, classifier, learners, moved, vectors

# ---------------------------------------------------------------------- several learners


def test_the_head_sees_the_sum_and_each_learner_alone() -> None:
    """Vectors x and 2x, head 3v + 1: together 9x + 1, alone 3x + 1 and 6x + 1."""
    one, two, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
    for layer, weight in ((one, 1.0), (two, 2.0), (head, 3.0)):
        nn.init.constant_(layer.weight, weight)
    nn.init.constant_(head.bias, 1.0)
    logits, own = Collaborative([one, two], head)(torch.tensor([[1.0], [10.0]]), own=True)
    assert logits.squeeze(1).tolist() == [10.0, 91.0]
    assert own.squeeze(2).tolist() == [[4.0, 31.0], [7.0, 61.0]]


def test_a_head_a_task() -> None:
    model, (x, _) = learners(3, tasks=2), vectors(4)
    assert not torch.equal(model(x, 0), model(x, 1))
    together, own = model(x, 1, own=True)
    torch.testing.assert_close(together, model(x, 1))
    alone = Collaborative([model.backbones[2]], model.heads[1])
    torch.testing.assert_close(own[2], alone(x))
    assert (model.learners, own.shape) == (3, (3, 4, 3))


# ---------------------------------------------------------------------- AF-1


def test_af1_by_hand() -> None:
    """Weights 1 and 2 of two learners, a head of 3: (1 + 4 + 9) / 2, times 0.1. With a = (0, ln 3) their shares are
    1/4 and 3/4: (2/4 * 1 + 6/4 * 4 + 9) / 2 * 0.1."""
    one, two, head = (nn.Linear(1, 1, bias=False) for _ in range(3))
    for layer, weight in ((one, 1.0), (two, 2.0), (head, 3.0)):
        nn.init.constant_(layer.weight, weight)
    model = Collaborative([one, two], head)
    uniform, adaptive = (AF1(model, strength=0.1, adaptive=adapt, exclude="heads") for adapt in (False, True))
    assert uniform(head).item() == pytest.approx(0.7)
    assert uniform().item() == pytest.approx(0.25)
    assert adaptive.learned is not None and adaptive.learned.shape == (1, 2)
    adaptive.learned.data.copy_(
        torch.tensor([[0.0, 3.0]]).log1p() - torch.tensor([[0.0, torch.log(torch.tensor(4 / 3))]])
    )
    assert adaptive(head).item() == pytest.approx((0.5 + 6.0 + 9.0) / 2 * 0.1)
    assert not list(uniform.parameters()) and len(list(adaptive.parameters())) == 1


def test_af1_counts_what_is_not_excluded_and_the_head_in_use_once() -> None:
    model = learners(2)
    expected = sum(float(p.detach().square().sum()) for p in model.backbones.parameters()) / 2
    head = sum(float(p.detach().square().sum()) for p in model.heads[1].parameters()) / 2
    other = sum(float(p.detach().square().sum()) for p in model.heads[0].parameters()) / 2
    assert AF1(model, strength=1.0, exclude=model.heads)(model.heads[1]).item() == pytest.approx(expected + head)
    assert AF1(model, strength=1.0)(model.heads[1]).item() == pytest.approx(expected + head + other)
    adaptive = AF1(model, strength=1.0, adaptive=True)  # heads have weight 1
    nn.init.zeros_(adaptive.learned)  # type: ignore[arg-type]
    assert adaptive().item() == pytest.approx(expected + head + other)


def test_af1_finds_learners_inside_another_module() -> None:
    model = nn.ModuleDict({"net": learners(2), "extra": nn.Linear(2, 2)})
    forgetting = AF1(model, strength=1.0, adaptive=True, exclude=["net.heads"])
    assert forgetting.tensors == [[f"net.backbones.{k}.0.{n}" for k in range(2)] for n in ("weight", "bias")]
    forgetting().backward()
    assert forgetting.learned is not None and forgetting.learned.grad is not None
    assert model.extra.weight.grad is not None and model.net.heads[0].weight.grad is None  # type: ignore[union-attr]


# ---------------------------------------------------------------------- AF-2


def test_af2_pulls_towards_the_expanded_network() -> None:
    model, (x, y) = classifier(), vectors(30)
    forgetting = AF2(model, strength=4.0, exclude="head")
    assert forgetting().item() == 0
    forgetting.measure(batches(x, y, 30))
    assert forgetting().item() == 0  # they are still equal
    moved(model.body, 0.5)
    expected = 4.0 / 2 * 0.25 * sum(float(i.sum()) for i in forgetting.importance.values())
    assert forgetting().item() == pytest.approx(expected) and expected > 0
    forgetting().backward()
    assert model.body[0].weight.grad is not None and model.head.weight.grad is None
    assert all(p.grad is None for p in forgetting.network.parameters())


def test_af2_is_saved_and_loaded() -> None:
    model = classifier()
    forgetting = AF2(model, strength=1.0)
    moved(forgetting.network)
    forgetting.measure(batches(*vectors(30), 30))
    file = io.BytesIO()
    torch.save(forgetting.state_dict(), file)
    file.seek(0)
    again = AF2(model, strength=1.0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again().item() == forgetting().item() > 0


# ---------------------------------------------------------------------- AF-S


def test_afs_by_hand() -> None:
    """Predictions (1/2, 1/2) and (1/4, 3/4): KL 1/2 ln 4/3 and 1/4 ln 1/2 + 3/4 ln 3/2, both counted."""
    own = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()
    expected = (
        0.5 * torch.log(torch.tensor(4 / 3))
        + 0.25 * torch.log(torch.tensor(0.5))
        + 0.75 * torch.log(torch.tensor(1.5))
    )
    for form in ("published", "paper"):
        assert AFS(2, strength=3.0, form=form)(own).item() == pytest.approx(3 * float(expected), rel=1e-5)  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 99),
    K=st.integers(2, 4),
    form=st.sampled_from(["published", "paper"]),
    tasks=st.integers(0, 3),
)
@settings(max_examples=20, deadline=None)
def test_afs_against_loops(seed: int, K: int, form: str, tasks: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(K, 4, 3, dtype=torch.float64)
    learning = AFS(K, strength=0.7, adaptive=True, form=form).double()  # type: ignore[arg-type]
    for _ in range(tasks):
        learning.begin_task()
    assert learning.learned is not None
    learning.learned.data.mul_(0.02)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    b = learning.learned.detach().clone().requires_grad_()
    value = learning(ours)
    expected = 0.7 * divergence_by_hand(theirs, b, torch.ones(4), form, tasks > 1)  # on the first task all are 1
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    if tasks > 1:
        torch.testing.assert_close(learning.learned.grad, b.grad)
    assert value.item() >= 0


@pytest.mark.parametrize(
    "make", [lambda m: AF1(m, strength=1.0, adaptive=True), lambda m: AFS(3, strength=1.0, adaptive=True)]
)
def test_what_is_learned_is_drawn_anew_and_saved(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    loss, other = make(learners(3)), make(learners(3))
    first = loss.learned.detach().clone()
    loss.begin_task()
    loss.begin_task()
    assert not torch.equal(loss.learned, first) and loss.tasks_begun == 2
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.learned, loss.learned) and other.tasks_begun == 2


def test_the_whole_method_learns() -> None:
    """CAF in a loop of one's own: the loss falls, and all parts have gradients."""
    model, (x, y) = learners(3), vectors(40)
    forgetting = AF1(model, strength=1e-4, adaptive=True, exclude="heads")
    learning = AFS(3, strength=0.02, adaptive=True)
    optimizer = torch.optim.Adam([*model.parameters(), *forgetting.parameters(), *learning.parameters()], 0.02)
    learning.begin_task()
    learning.begin_task()
    losses = []
    for _ in range(40):
        logits, own = model(x, 1, own=True)
        loss = F.cross_entropy(logits, y) + forgetting(model.heads[1]) + learning(own)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None and p.grad.any() for p in (forgetting.learned, learning.learned) if p is not None)
    assert all(p.grad is None for p in model.heads[0].parameters())
