"""The network of runs and learners against learners written out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.models import Layout, Net, cifar_cnn, digits_mlp
from tests.backends.by_hand import SHAPES, gradient, head, images, make, mixed

# ---------------------------------------------------------------------- size


@pytest.mark.parametrize(("K", "width", "published"), [(1, 32, 837_252), (5, 9, 879_100)])
def test_published_parameter_counts(K: int, width: int, published: int) -> None:
    """6 convolutions, a dense layer 64 nc -> 256 per learner, and 20 heads 256 -> 5."""
    chain = [3, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
    convolutions = sum(i * o * 9 + o for i, o in pairwise(chain))
    by_hand = K * (convolutions + 64 * width * 256 + 256) + 20 * (256 * 5 + 5)
    assert by_hand == published
    net = Net(cifar_cnn(width), SHAPES["cifar"], (5,) * 20, learners=K, learned={"afs": (K, K)})
    assert net.parameter_count == published
    assert net.layout.size == published + K * K
    assert net.layout.protected == published - 20 * (256 * 5 + 5)


def test_count_leaves_out_absent_classes() -> None:
    net = Net(digits_mlp(4), SHAPES["digits"], (2, 5, 3), learners=2)
    assert net.parameter_count == 2 * (64 * 4 + 4 + 4 * 128 + 128) + 10 * 129


# ---------------------------------------------------------------------- heads, classes, gates


def test_absent_classes_never_win() -> None:
    counts = (2, 5, 3)
    net, hand = make("digits", 6, 3, counts)
    row, x = net.initial([1])[0].double(), images("digits", 20)
    net.layout.view(row, "head.bias")[0, 2:] = 1e6  # in the unused part of a row
    net.layout.view(row, "head.weight")[2, 3:] = 1e6
    for task, count in enumerate(counts):
        out = net.forward(row, x, head(task), own=True)
        assert out.own_logits is not None
        together, own = hand.logits(row, x, task)
        torch.testing.assert_close(out.logits[:, :count], together)
        torch.testing.assert_close(out.own_logits[..., :count], own)
        for logits, alone in ((out.logits, together), (out.own_logits, own)):
            assert int(logits.argmax(-1).max()) < count
            assert torch.equal(logits.argmax(-1), alone.argmax(-1))
            p = logits.softmax(-1)
            assert torch.equal(p[..., count:], torch.zeros_like(p[..., count:]))
            torch.testing.assert_close(p[..., :count], alone.softmax(-1))
    labels = torch.arange(20) % 2

    def loss(leaf: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net.forward(leaf, x, head(0)).logits, labels)

    parts = hand.cut(gradient(row, loss))
    assert not parts["head.weight"][0, 2:].any() and not parts["head.weight"][1:].any()
    assert not parts["head.bias"][0, 2:].any() and not parts["head.bias"][1:].any()


def test_initial_rows_are_empty_where_there_is_no_class() -> None:
    net, hand = make("digits", 6, 1, (2, 5))
    parts = hand.cut(net.initial([1])[0].double())
    assert not parts["head.weight"][0, 2:].any() and not parts["head.bias"][0, 2:].any()
    assert parts["head.weight"][0, :2].all() and parts["head.weight"][1].all()


def test_heads_may_begin_at_zero() -> None:
    """Only heads: backbones have the same initial weights as without the option."""
    drawn, (zero, hand) = make("digits", 6, 2, (2, 5))[0], make("digits", 6, 2, (2, 5), first_heads="zero")
    rows = [net.initial([1])[0].double() for net in (drawn, zero)]
    parts = hand.cut(rows[1])
    assert not parts["head.weight"].any() and not parts["head.bias"].any()
    assert torch.equal(rows[0][: drawn.layout.protected], rows[1][: drawn.layout.protected])
    assert not zero.forward(rows[1], images("digits", 4), head(1)).logits.any()
    with pytest.raises(ConfigError, match="first_heads must be drawn or zero, not 'none'"):
        make("digits", 6, 2, (2, 5), first_heads="none")


@pytest.mark.parametrize("K", [1, 3])
def test_gate(K: int) -> None:
    net, hand = make("digits", 6, K, (2, 2, 2), gate=True)
    row, x = net.initial([1])[0].double(), images("digits")
    net.layout.view(row, "gate").mul_(0.02)  # where the sigmoid of 100 e is not yet flat
    assert net.layout.segments["gate"].stop == net.layout.protected  # protected like a weight
    for task in range(3):
        out = net.forward(row, x, head(task), own=True)
        together, own = hand.logits(row, x, task)
        torch.testing.assert_close(out.logits, together, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.own_logits, own, rtol=1e-10, atol=1e-12)
        ours = gradient(row, lambda leaf, t=task: mixed(net.forward(leaf, x, head(t)).logits))
        expected = gradient(row, lambda leaf, t=task: mixed(hand.logits(leaf, x, t)[0]))
        assert hand.cut(expected)["gate"][:, task].any(-1).all()  # of features that are not silent
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def test_gates_are_standard_normal_and_differ() -> None:
    net, _ = make("digits", 2, 5, (2,) * 40, gate=True)
    gates = torch.stack([net.layout.view(row, "gate") for row in net.initial(range(10))])  # (R, K, T, F)
    assert gates.shape == (10, 5, 40, net.features)
    assert len(gates.flatten(0, 2).unique(dim=0)) == 10 * 5 * 40
    assert abs(float(gates.mean())) < 0.01 and abs(float(gates.std()) - 1) < 0.01


@pytest.mark.parametrize("gate", [False, True])
def test_several_heads_at_once(gate: bool) -> None:
    """A batch of samples of different tasks equals each sample on its own under its own head."""
    counts = (2, 4, 3)
    net, hand = make("digits", 6, 2, counts, gate=gate)
    row, x = net.initial([1])[0].double(), images("digits", 9)
    if gate:
        net.layout.view(row, "gate").mul_(0.02)
    heads, member = head(2, 0), torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1])
    out = net.forward(row, x, heads, member, own=True)
    assert out.own_logits is not None
    for i in range(9):
        task = int(heads[member[i]])
        together, own = hand.logits(row, x[i : i + 1], task)
        torch.testing.assert_close(out.logits[i, : counts[task]], together[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.own_logits[:, i, : counts[task]], own[:, 0], rtol=1e-10, atol=1e-12)
        assert (out.logits[i, counts[task] :] < -1e8).all()


# ---------------------------------------------------------------------- initial weights


@pytest.mark.parametrize("diversity", ["high", "medium", "low"])
def test_diversity(diversity: str) -> None:
    net, _ = make("digits", 6, 3, diversity=diversity)
    rows = net.initial([0, 1]).double()
    views = {name: net.layout.view(rows, name) for name in net.backbone_names}
    for view in views.values():
        assert not torch.equal(view[0, 0], view[1, 0])  # seeds differ
        for k in (1, 2):
            assert torch.equal(view[0, 0], view[0, k]) == (diversity != "high")
    before = {name: view.clone() for name, view in views.items()}
    for view in views.values():
        view[:, 1] += 1.0  # a change of one learner does not reach the others
    for name, view in views.items():
        for k in (0, 2):
            assert torch.equal(view[:, k], before[name][:, k])
        assert not torch.equal(view[:, 1], before[name][:, 1])
    size = net.executor.noise_size(4)
    assert (size == 0) == (diversity == "low")
    x = images("digits", 4)
    drawn = net.forward(rows[0], x, head(0), noise=torch.zeros(size, dtype=torch.uint8)).logits
    same = torch.allclose(drawn, net.forward(rows[0], x, head(0)).logits)
    assert same == (diversity == "low")  # zeros drop every unit that can be dropped


def test_low_diversity_leaves_the_given_backbone_alone() -> None:
    backbone = digits_mlp(4)
    Net(backbone, SHAPES["digits"], (2,), diversity="low")
    assert (backbone.drop1.p, backbone.drop2.p) == (0.25, 0.5)


def test_low_diversity_switches_off_every_kind_of_dropout() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.Flatten())
    net = Net(backbone, (1, 8, 8), (2,), learners=2, diversity="low", dtype=torch.float64)
    row, x = net.initial([0])[0].double(), images("digits")
    f = net._features(row, x, torch.arange(8, dtype=torch.uint8))
    torch.testing.assert_close(f, net._features(row, x, None))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    net, _ = make("cifar", 2, 2)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    rows = net.initial([3, 7, 5])
    assert torch.equal(torch.get_rng_state(), state)  # PyTorch's generator does not change
    torch.manual_seed(2)
    again, _ = make("cifar", 2, 2)
    assert torch.equal(again.initial([7])[0], rows[1])
    assert torch.equal(again.initial([5, 3]), rows[[2, 0]])
    assert not torch.equal(rows[0], rows[1])
    more, _ = make("cifar", 2, 3, (4, 4, 4))  # more learners or tasks do not change the others
    one, other = net.layout.views(rows[0]), more.layout.views(more.initial([3])[0])
    for name in net.backbone_names:
        assert torch.equal(one[name], other[name][:2])
    assert torch.equal(one["head.weight"], other["head.weight"][:2])


def test_policy_heads_are_initially_nearly_uniform() -> None:
    """Orthogonal rows of length 0.01 and no bias, so that no features prefer an action; a value head is one row of
    length 1.
    """
    net = Net(nn.Linear(12, 12, bias=False), (12,), (3, 5), values=True, in_place=False)
    row = net.initial([4])[0]
    net.layout.view(row, "weight")[0] = torch.eye(12)  # features equal inputs
    p = {name: net.layout.view(row, name).double() for name in net.head_names}
    for task, count in enumerate((3, 5)):
        W = p["head.weight"][task, :count]
        torch.testing.assert_close(W @ W.T, 1e-4 * torch.eye(count).double(), rtol=1e-5, atol=1e-9)
        assert float(p["value.weight"][task].norm()) == pytest.approx(1, rel=1e-5)
    assert not p["head.weight"][0, 3:].any() and not p["head.bias"].any() and not p["value.bias"].any()
    assert not torch.equal(p["head.weight"][0, :3], p["head.weight"][1, :3])
    vectors = 30 * torch.rand(1, 100, 12)  # as long as those after learning a game
    out = net.forward(row, vectors[0], torch.tensor([1]))
    assert float(out.logits.softmax(-1).max()) < 0.6 and float(out.logits.softmax(-1).min()) > 0.05


def test_initial_weights_have_pytorchs_ranges() -> None:
    """Uniform in +-1/sqrt(fan-in), weights and biases: PyTorch's default for convolutions and dense layers."""
    net, hand = make("cifar", 8, 3, (5,) * 4)
    p = hand.cut(net.initial([11])[0].double())
    fans = {f"conv{i}": 9 * c for i, c in enumerate((3, 8, 8, 16, 16, 32), 1)} | {"dense1": 512, "head": 256}
    for layer, fan in fans.items():
        bound = fan**-0.5
        for name in (f"{layer}.weight", f"{layer}.bias"):
            values = p[name].flatten()
            assert float(values.abs().max()) <= bound * (1 + 1e-6)
            if len(values) > 500:
                assert float(values.abs().max()) > 0.98 * bound
                assert abs(float(values.std()) * 3**0.5 / bound - 1) < 0.06
                assert abs(float(values.mean())) < 0.1 * bound
            assert values.unique().numel() > 0.98 * len(values)


# ---------------------------------------------------------------------- errors


def test_groupnorm_is_understood() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())
    net = Net(backbone, (1, 8, 8), (2,), learners=2, dtype=torch.float64)
    row, x = net.initial([0])[0].double(), images("digits")
    p = net.layout.views(row)
    for k in range(2):
        y = nn.functional.conv2d(x, p["0.weight"][k], p["0.bias"][k])
        y = nn.functional.group_norm(y, 2, p["1.weight"][k], p["1.bias"][k]).relu().flatten(1)
        torch.testing.assert_close(net._features(row, x, None)[k], y)


def test_weights_that_cannot_be_drawn_are_refused() -> None:
    """A parameter of a module without reset_parameters would start from uninitialized memory."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.scale = nn.Linear(64, 8), nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.dense(x.flatten(1)) * self.scale

    with pytest.raises(ConfigError, match="scale"):
        Net(Scaled(), (1, 8, 8), (2,)).initial([0])


@pytest.mark.parametrize(
    ("options", "named"),
    [({"learners": 0}, "learners"), ({"learners": -2}, "learners"), ({"diversity": "some"}, "diversity")],
)
def test_impossible_networks_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Net(digits_mlp(4), (1, 8, 8), (2,), **options)  # type: ignore[arg-type]


def test_features_must_be_vectors() -> None:
    with pytest.raises(ConfigError, match="Flatten"):
        Net(nn.Sequential(nn.Conv2d(1, 4, 3)), (1, 8, 8), (2,))


def test_dropout_of_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="below 1"):
        Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout(1.0)), SHAPES["digits"], (2,))


def test_views_of_some_names_are_those_of_all() -> None:
    """Adjacent parts that are not named are one part of the split; their gradient is zero."""
    layout = Layout({"a": (2, 3), "b": (4,)}, {"c": (1,), "d": (2, 2), "e": (3,)})
    rows = torch.randn(2, layout.size, requires_grad=True)
    whole = layout.views(rows)
    for names in (frozenset("ad"), frozenset("bce"), frozenset("e"), frozenset("abcde")):
        some = layout.views(rows, names)
        assert list(some) == sorted(names) and all(torch.equal(some[n], whole[n]) for n in names)
        slope = layout.views(torch.autograd.grad(sum(v.sum() for v in some.values()), rows)[0])
        assert all((slope[n] == float(n in names)).all() for n in layout.segments)
