"""Protection: hand-worked numbers, slow references, any loader, checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kenyon.methods.importance import fisher_published
from kenyon.regularizers import Protection
from kenyon.regularizers.measuring import recut
from tests.regularizers.small import batches, classifier, moved, vectors

# ---------------------------------------------------------------------- by hand


def scale(weight: float) -> nn.Module:
    """x -> (w x, 0): two classes, one weight."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([weight]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.w * x, torch.zeros_like(x)], 1)

    return Scale()


def test_the_exact_fisher_by_hand() -> None:
    """w = 0: both classes have probability 1/2 and the gradient of a sample is -x/2 or x/2. Of x = 2 and 4 the mean
    square is (1 + 4) / 2; the weight moved by 3: 10 / 2 * 2.5 * 9."""
    model = scale(0.0)
    protection = Protection(model, "ewc-exact", strength=10.0)
    assert protection().item() == 0
    protection.consolidate([(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1]))])
    assert protection.importance["w"].tolist() == [2.5]
    moved(model, 3.0)
    assert protection().item() == pytest.approx(112.5)


def test_the_published_fisher_by_hand() -> None:
    """One batch of 2 samples: the mean gradient is (-1 + 2) / 2 = 1/2, so 20 * 1/4 / 2 = 2.5."""
    protection = Protection(scale(0.0), "ewc", strength=1.0)
    protection.consolidate([(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1]))])
    assert protection.importance["w"].tolist() == [2.5]


def test_memory_aware_synapses_by_hand() -> None:
    """w = 3: the norms of the logits are 3 |x|, their gradients |x|: (2 + 4) / 2 = 3. After a second task with
    importance 5 the sum is 8."""
    model = scale(3.0)
    protection = Protection(model, "mas", strength=2.0)
    protection.consolidate([(torch.tensor([[2.0], [-4.0]]), torch.tensor([0, 1]))])
    assert protection.importance["w"].tolist() == [3.0]
    protection.consolidate([(torch.tensor([[5.0]]), torch.tensor([0]))])
    assert protection.importance["w"].tolist() == [8.0]


def test_synaptic_intelligence_by_hand() -> None:
    """Loss w^2 / 2, rate 0.1, from 1: steps 1 -> 0.9 -> 0.81 with gradients 1 and 0.9. The path is 0.1 + 0.081, the
    change -0.19: 0.181 / (0.0361 + 0.01), and factor 1."""
    model = scale(1.0)
    protection = Protection(model, "si", strength=2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    protection.track(optimizer)
    protection.track(optimizer)  # twice is once
    for _ in range(2):
        optimizer.zero_grad()
        (model.w**2 / 2).sum().backward()  # type: ignore[operator, union-attr]
        optimizer.step()
    protection.consolidate()
    omega = 0.181 / 0.0461
    assert protection.importance["w"].item() == pytest.approx(omega)
    moved(model, 0.5)
    assert protection().item() == pytest.approx(2.0 * omega * 0.25)


@pytest.mark.parametrize(("how", "expected"), [("average", 2.0), ("sum", 6.0), ("last", 3.0), (0.5, 4.25), (1, 6.0)])
def test_accumulation_over_tasks(how: Any, expected: float) -> None:
    """Importances 1, 2 and 3, one after another."""
    protection = Protection(scale(1.0), "mas", strength=1.0, accumulate=how)
    for x in (1.0, 2.0, 3.0):
        protection.consolidate([(torch.tensor([[x]]), torch.tensor([0]))])
    assert protection.importance["w"].item() == pytest.approx(expected)
    assert protection.tasks == 3


# ---------------------------------------------------------------------- against loops


@given(samples=st.integers(1, 47), size=st.integers(1, 50), name=st.sampled_from(["ewc", "ewc-exact", "mas"]))
@settings(max_examples=25, deadline=None)
def test_any_loader_gives_the_definition(samples: int, size: int, name: str) -> None:
    """Whatever the size of the loader's batches, the importance is that of the definition's own."""
    model, (x, y) = classifier(), vectors(samples)
    protection = Protection(model, name, strength=1.0, exclude="head")
    protection.consolidate(batches(x, y, size))
    own = 1 if name == "ewc-exact" else 20
    names = [n for n, _ in model.named_parameters() if n.startswith("body")]
    expected = {n: torch.zeros_like(model.get_parameter(n)) for n in names}
    for start in range(0, samples, own):
        logits, labels = model(x[start : start + own]), y[start : start + own]
        if name == "mas":
            value = sum((row**2).sum().sqrt() for row in logits)
        else:
            value = sum(-row.log_softmax(0)[label] for row, label in zip(logits, labels, strict=True)) / len(labels)
        gradients = torch.autograd.grad(value, [model.get_parameter(n) for n in names])  # type: ignore[arg-type]
        for n, g in zip(names, gradients, strict=True):
            expected[n] += (g.abs() if name == "mas" else g**2 * own) / samples
    assert list(protection.importance) == names
    for n in names:
        torch.testing.assert_close(protection.importance[n], expected[n], rtol=1e-4, atol=1e-7)


@given(sizes=st.lists(st.integers(0, 9), max_size=6), size=st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_recut_keeps_samples_and_order(sizes: list[int], size: int) -> None:
    everything = torch.arange(sum(sizes))
    parts = [{"x": part, "more": (part * 2, [part * 3])} for part in everything.split(sizes)]
    cut = list(recut(parts, size, torch.device("cpu")))
    assert all(len(pieces) == 1 for pieces in cut)
    found = [pieces[0] for pieces in cut]
    assert all(len(batch["x"]) == size for batch in found[:-1]) and all(len(batch["x"]) <= size for batch in found)
    for key in (lambda b: b["x"], lambda b: b["more"][0] // 2, lambda b: b["more"][1][0] // 3):
        assert torch.equal(torch.cat([torch.empty(0, dtype=torch.long), *(key(b) for b in found)]), everything)


@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(2, 4)), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", ["ewc", "ewc-exact", "mas"])
def test_padded_sequences_measure_the_same(name: str, lengths: list[tuple[int, int]]) -> None:
    """Batches padded to unequal lengths, and the same samples padded to one: zeros add nothing to the mean here."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4)

    def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch["x"].sum(1)), batch["y"]

    ragged = [{"x": torch.randn(n, length, 3), "y": torch.randint(4, (n,))} for n, length in lengths]
    whole = [{"x": torch.cat([F.pad(b["x"], (0, 0, 0, 4 - b["x"].shape[1])) for b in ragged])}]
    whole[0]["y"] = torch.cat([b["y"] for b in ragged])
    found = []
    for batches_ in (ragged, whole):
        protection = Protection(model, name, strength=1.0)
        protection.consolidate(batches_, predict)
        found.append(protection.importance["weight"])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


@given(seed=st.integers(0, 99), strength=st.floats(0, 100))
@settings(max_examples=20, deadline=None)
def test_value_and_gradient_of_the_penalty(seed: int, strength: float) -> None:
    model, (x, y) = classifier(seed), vectors(25, seed)
    protection = Protection(model, strength=strength, exclude=model.head)
    protection.consolidate(batches(x, y, 25))
    assert protection().item() == 0  # where it is held nothing pulls
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    expected = torch.zeros(())
    for name, importance in protection.importance.items():
        for m, weight in enumerate(model.get_parameter(name).flatten()):
            change = weight - protection.anchor[name].flatten()[m]
            expected = expected + strength / 2 * importance.flatten()[m] * change**2
    penalty = protection()
    torch.testing.assert_close(penalty, expected, rtol=1e-4, atol=1e-6)
    parameters = [model.get_parameter(name) for name in protection.importance]
    ours, theirs = (torch.autograd.grad(value, parameters) for value in (penalty, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert penalty.item() >= 0


def test_the_penalty_has_second_derivatives() -> None:
    """strength * importance on the diagonal, for those who go back through gradients."""
    model = scale(0.0)
    protection = Protection(model, "ewc-exact", strength=10.0)
    protection.consolidate([(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1]))])
    (first,) = torch.autograd.grad(protection(), model.w, create_graph=True)  # type: ignore[arg-type]
    (second,) = torch.autograd.grad(first, model.w)  # type: ignore[arg-type]
    assert second.item() == 25.0


# ---------------------------------------------------------------------- what measuring leaves alone


def test_measuring_changes_nothing_of_the_model() -> None:
    model, (x, y) = classifier(dropout=0.5, norm=True), vectors(23)
    model.body[1](torch.randn(8, 5))  # statistics that are not those of the start
    model.train()
    model.body[3].eval()
    F.cross_entropy(model(x), y).backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    modes = [module.training for module in model.modules()]
    protection = Protection(model, strength=1.0)
    with torch.no_grad():  # measured all the same
        protection.consolidate(batches(x, y, 20))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))  # type: ignore
    assert any(importance.any() for importance in protection.importance.values())


def test_dropout_is_on_where_the_definition_says_so() -> None:
    model, (x, y) = classifier(dropout=0.5), vectors(40)
    model.eval()
    exact, published = (Protection(model, name, strength=1.0) for name in ("ewc-exact", "ewc"))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        for protection in (exact, published):
            protection.tasks, protection.importance = 0, {}
            protection.consolidate(batches(x, y, 40))
            found.append(protection.importance["body.0.weight"])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[1], found[3])


def test_a_loader_and_a_prediction_of_ones_own() -> None:
    model, (x, y) = classifier(), vectors(30)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    dictionaries = [{"pixels": a, "target": b} for a, b in batches(x, y, 11)]
    plain, named = (Protection(model, strength=1.0) for _ in range(2))
    plain.consolidate(loader)
    named.consolidate(dictionaries, lambda m, batch: (m(batch["pixels"]), batch["target"]))
    for name in plain.importance:
        torch.testing.assert_close(plain.importance[name], named.importance[name])


def test_a_definition_of_ones_own() -> None:
    """Least squares: any objective of outputs, targets and which samples count."""

    def half_squares(outputs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        return ((outputs - targets).square().sum(-1) / 2 * valid).sum()

    definition = fisher_published()
    mine = type(definition)("mine", half_squares, 1, True, 1.0, False, "sum")
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    protection = Protection(model, mine, strength=1.0)
    protection.consolidate([(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [5.0]]))])
    assert protection.importance["weight"].item() == (1**2 + 3**2) / 2  # gradients (2x - y) x: 1 and 3


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", ["ewc", "si"])
@pytest.mark.parametrize("tasks", [0, 1])
def test_a_checkpoint_carries_it(name: str, tasks: int) -> None:
    """Saved in the middle of a task and loaded beside a new model, everything goes on as without it."""

    def made() -> tuple[nn.Module, Protection, torch.optim.Optimizer]:
        model = classifier()
        protection = Protection(model, name, strength=5.0, exclude="head")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        protection.track(optimizer)
        return model, protection, optimizer

    def train(model: nn.Module, protection: Protection, optimizer: torch.optim.Optimizer, seed: int) -> None:
        x, y = vectors(25, seed)
        for _ in range(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + protection()).backward()
            optimizer.step()

    def consolidate(protection: Protection, seed: int) -> None:
        protection.consolidate(batches(*vectors(25, seed), 10))

    model, protection, _ = whole = made()
    for seed in range(tasks):
        train(*whole, seed)
        consolidate(protection, seed)
    train(*whole, 8)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "protection": protection.state_dict()}, file)
    train(*whole, 9)
    consolidate(protection, 9)

    again, second, _ = resumed = made()
    file.seek(0)
    state = torch.load(file, weights_only=True)
    again.load_state_dict(state["model"])
    second.load_state_dict(state["protection"])
    train(*resumed, 9)
    consolidate(second, 9)
    assert second.tasks == tasks + 1
    for kind in ("importance", "anchor"):
        for parameter, tensor in getattr(protection, kind).items():
            torch.testing.assert_close(getattr(second, kind)[parameter], tensor, rtol=0, atol=0)


def test_copies_are_their_own() -> None:
    """Pickled or copied with the model, as programs that keep whole strategies do; optimisers are tracked anew."""
    model = classifier()
    protection = Protection(model, "si", strength=1.0)
    protection.track(torch.optim.SGD(model.parameters(), 0.1))
    for other in (pickle.loads(pickle.dumps(protection)), copy.deepcopy(protection)):
        optimizer = torch.optim.SGD(other.chosen.model.parameters(), 0.1)
        other.track(optimizer)
        F.cross_entropy(other.chosen.model(vectors(9)[0]), vectors(9)[1]).backward()
        optimizer.step()
        other.consolidate()
        assert other.tasks == 1 and protection.tasks == 0
        assert not torch.equal(other.chosen.model.head.weight, model.head.weight)


def test_a_state_is_a_copy() -> None:
    model = classifier()
    protection = Protection(model, strength=1.0)
    protection.consolidate(batches(*vectors(20), 20))
    state = protection.state_dict()
    other = Protection(classifier(1), strength=1.0)
    other.load_state_dict(state)
    other.importance["head.bias"].fill_(-1.0)
    assert (protection.importance["head.bias"] >= 0).all()


def test_measuring_leaves_every_buffer_as_it_was() -> None:
    """Also those of spectral normalisation, which follow the weight whenever it computes in training."""
    model = classifier(dropout=0.1, norm=True)
    torch.nn.utils.parametrizations.spectral_norm(model.get_submodule("body.0"))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    Protection(model, strength=1.0, exclude="head").consolidate(batches(*vectors(50), 10))
    assert len(before) > 3 and all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_tied_weight_is_excluded_with_either_layer_by_name_and_by_module() -> None:
    """A language model's head that has the weight of its embedding; PyTorch names the weight after the first."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
            self.head.weight = self.embedding.weight
            self.decoder = self.head

    model = Tied()
    ways = [
        model.head,
        "head",
        model.decoder,
        "decoder",
        ["decoder.weight", "head.bias"],
        ["head.weight", "decoder.bias"],
    ]
    for exclude in ways:
        assert set(Protection(model, strength=1.0, exclude=exclude).chosen.shapes) == {"body.weight", "body.bias"}
    for exclude in (model.embedding, "embedding", "head.weight"):
        found = Protection(model, strength=1.0, exclude=exclude).chosen.shapes
        assert set(found) == {"body.weight", "body.bias", "head.bias"}
