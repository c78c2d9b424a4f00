"""What methods add to the loss, against the paper's equations written as loops over runs, learners and weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kenyon.backends.triton.updates import QuadraticPull, WeightDecay, sorted_forces
from kenyon.errors import ConfigError
from kenyon.methods.penalties.weights import (
    ActiveForgetting1,
    ActiveForgetting2,
    DecayingHeads,
    Divergence,
    ParameterPenalty,
    Predictions,
    StabilityProtection,
    Weights,
)
from kenyon.models import Net, digits_mlp
from tests.references import DigitsLearner, Hand

R, K, COUNTS = 3, 3, (2, 3, 2)
STRENGTHS = [0.7, torch.tensor([0.0, 0.3, 2.5], dtype=torch.float64)]
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def strength(value: float | Tensor, run: int) -> float:
    return float(value[run]) if isinstance(value, Tensor) else value


def make(gate: bool = False, learned: dict[str, tuple[int, ...]] | None = None) -> tuple[Net, Hand, Tensor]:
    net = Net(digits_mlp(2), (1, 8, 8), COUNTS, learners=K, gate=gate, learned=learned, dtype=torch.float64)
    hand = Hand(DigitsLearner(2), K, COUNTS, gate=gate, learned=learned)
    theta = net.initial(range(R)).double()
    for name in learned or {}:
        view = net.layout.view(theta, name)
        view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(7)).double())
    return net, hand, theta


def positive(hand: Hand, seed: int) -> Tensor:
    return torch.rand(R, hand.protected, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(net: Net, theta: Tensor, heads: tuple[int, ...] = (1,), **more: Tensor) -> Weights:
    nothing = torch.zeros(R, net.layout.protected, dtype=torch.float64)
    return Weights(
        net,
        theta,
        torch.tensor(heads),
        more.get("importance", nothing),
        more.get("anchor", nothing),
        more.get("expanded"),
        more.get("expanded_importance"),
    )


def compare(theta: Tensor, ours: Callable[[Tensor], Tensor], expected: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Values of every run and gradients to every number; gives back the gradient."""
    leaf = theta.clone().requires_grad_()
    values = ours(leaf)
    assert values.shape == (R,)
    gradient = torch.autograd.grad(values.sum(), leaf)[0]
    for run in range(R):
        row = theta[run].clone().requires_grad_()
        value = expected(row, run)
        torch.testing.assert_close(values[run], value, **EXACT)
        torch.testing.assert_close(gradient[run], torch.autograd.grad(value, row)[0], **EXACT)
    return gradient


def pushed(penalty: ParameterPenalty, w: Weights) -> Tensor:
    """The gradient that the optimiser gets: what the penalty adds itself, and its forces."""
    gradient = torch.zeros_like(w.theta)
    for force in penalty.forces(w, gradient):
        force.add_to(gradient, w.theta)
    return gradient


# ---------------------------------------------------------------------- stability protection


@pytest.mark.parametrize("lam", STRENGTHS)
@pytest.mark.parametrize("factor", [0.5, 1.0])
@pytest.mark.parametrize("gate", [False, True])
def test_stability_protection(lam: float | Tensor, factor: float, gate: bool) -> None:
    """factor * lambda * sum_m importance_m (theta_m - theta*_m)^2, heads left out, gates not."""
    net, hand, theta = make(gate)
    importance, anchor = positive(hand, 1), positive(hand, 2)

    def expected(row: Tensor, run: int) -> Tensor:
        total = 0.0 * row[0]
        start = 0
        for name, part in hand.cut(row).items():
            if name.startswith("head"):
                break
            for m in range(part.numel()):
                at = start + m
                total = total + importance[run, at] * (part.reshape(-1)[m] - anchor[run, at]) ** 2
            start += part.numel()
        return strength(lam, run) * factor * total

    penalty = StabilityProtection(lam, factor) if factor != 0.5 else StabilityProtection(lam)
    w = {"importance": importance, "anchor": anchor}
    gradient = compare(theta, lambda t: penalty.value(weights(net, t, **w)), expected)
    assert not gradient[:, hand.protected :].any()
    assert gradient[2, : hand.protected].all()


# ---------------------------------------------------------------------- AF-1


def sum_of_squares(x: Tensor) -> Tensor:
    return sum(v**2 for v in x.reshape(-1))  # type: ignore[return-value]


@pytest.mark.parametrize("lam", STRENGTHS)
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(("heads", "decaying"), [("all", [0, 1, 2]), ("open", [1, 2]), ("current", [1])])
def test_af1_uniform(lam: float | Tensor, gate: bool, heads: DecayingHeads, decaying: list[int]) -> None:
    """lambda/2 ||theta||^2 over the learners and the heads that decay; not the other heads, not the gates."""
    net, hand, theta = make(gate)

    def expected(row: Tensor, run: int) -> Tensor:
        p = hand.cut(row)
        names = [*hand.tensors]
        total = sum(sum_of_squares(p[n]) for n in names)
        total = total + sum(sum_of_squares(p[n][t]) for n in ("head.weight", "head.bias") for t in decaying)
        return strength(lam, run) / 2 * total

    penalty = ActiveForgetting1(lam, heads=heads)
    gradient = compare(theta, lambda t: penalty.value(weights(net, t)), expected)
    torch.testing.assert_close(pushed(penalty, weights(net, theta)), gradient, **EXACT)
    parts = hand.cut(gradient[2])
    for t, count in enumerate(COUNTS):
        there = parts["head.weight"][t, :count]
        assert there.all() if t in decaying else not there.any()
    assert not gate or not parts["gate"].any()


@pytest.mark.parametrize("lam", STRENGTHS)
def test_af1_adaptive(lam: float | Tensor) -> None:
    """sum_l sum_i K softmax(a_l)_i lambda/2 ||theta_il||^2 + lambda/2 ||heads||^2, a trained by the same loss."""
    shapes = {"af1": (4, K)}  # two dense layers, weight and bias
    net, hand, theta = make(learned=shapes)
    assert ActiveForgetting1(lam, adaptive=True).learned(net) == shapes

    def expected(row: Tensor, run: int) -> Tensor:
        p = hand.cut(row)
        total = sum(sum_of_squares(p[n][t]) for n in ("head.weight", "head.bias") for t in (1, 2))
        for tensor, name in enumerate(hand.tensors):
            a = p["af1"][tensor]
            for i in range(K):
                alpha = torch.exp(a[i]) / sum(torch.exp(a[j]) for j in range(K))
                total = total + K * alpha * sum_of_squares(p[name][i])
        return strength(lam, run) / 2 * total

    penalty = ActiveForgetting1(lam, adaptive=True, heads="open")
    gradient = compare(theta, lambda t: penalty.value(weights(net, t)), expected)
    torch.testing.assert_close(pushed(penalty, weights(net, theta)), gradient, **EXACT)
    assert hand.cut(gradient[2])["af1"].all()


@pytest.mark.parametrize("lam", STRENGTHS)
def test_af1_as_the_paper_has_it(lam: float | Tensor) -> None:
    """sum_i K alpha_i lambda/2 ||theta_i||^2, alpha = softmax(a): one number a learner, no heads."""
    shapes = {"af1": (1, K)}
    net, hand, theta = make(learned=shapes)

    def expected(row: Tensor, run: int) -> Tensor:
        p = hand.cut(row)
        a, total = p["af1"][0], 0.0 * row[0]
        for i in range(K):
            alpha = torch.exp(a[i]) / sum(torch.exp(a[j]) for j in range(K))
            total = total + K * alpha * sum(sum_of_squares(p[name][i]) for name in hand.tensors)
        return strength(lam, run) / 2 * total

    penalty = ActiveForgetting1(lam, adaptive=True, heads="none", of_learners=True)
    assert penalty.learned(net) == shapes
    gradient = compare(theta, lambda t: penalty.value(weights(net, t)), expected)
    torch.testing.assert_close(pushed(penalty, weights(net, theta)), gradient, **EXACT)
    assert not hand.cut(gradient[2])["head.weight"].any()


def test_af1_adaptive_with_equal_weights_is_uniform() -> None:
    net, _, theta = make(learned={"af1": (4, K)})
    net.layout.view(theta, "af1").fill_(0.3)
    values = [ActiveForgetting1(2.0, adaptive).value(weights(net, theta)) for adaptive in (False, True)]
    torch.testing.assert_close(*values, **EXACT)


@pytest.mark.parametrize("heads", ["open", "current"])
def test_af1_counts_all_heads_in_use(heads: DecayingHeads) -> None:
    net, hand, theta = make()
    p = hand.cut(theta[0])
    backbone = sum(float(p[n].square().sum()) for n in hand.tensors)
    used = sum(float(p[n][t].square().sum()) for n in ("head.weight", "head.bias") for t in (0, 2))
    value = ActiveForgetting1(1.0, heads=heads).value(weights(net, theta, (0, 2)))[0]
    assert float(value) == pytest.approx((backbone + used) / 2)


def test_af1_refuses_heads_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="af1_heads must be all, open, current, none, not 'every'"):
        ActiveForgetting1(1.0, heads="every")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- AF-2


@pytest.mark.parametrize("lam", STRENGTHS)
def test_af2(lam: float | Tensor) -> None:
    """lambda/2 sum_m I_e,m (theta_m - theta_e,m)^2 over the protected weights."""
    net, hand, theta = make()
    other, fisher = net.initial([5, 6, 7]).double(), positive(hand, 3)

    def expected(row: Tensor, run: int) -> Tensor:
        total = sum(fisher[run, m] * (row[m] - other[run, m]) ** 2 for m in range(hand.protected))
        return strength(lam, run) / 2 * total

    w = {"expanded": other, "expanded_importance": fisher}
    gradient = compare(theta, lambda t: ActiveForgetting2(lam).value(weights(net, t, **w)), expected)
    assert not gradient[:, hand.protected :].any()


# ---------------------------------------------------------------------- AF-S


def predictions(
    K: int, B: int = 4, C: int = 3, first_task: bool = False
) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor, Tensor], Predictions]]:
    generator = torch.Generator().manual_seed(K)
    logits = torch.randn(K, B, C, generator=generator, dtype=torch.float64) * 2
    b = torch.randn(K, K, generator=generator, dtype=torch.float64) * 0.02
    valid = torch.tensor([1.0] * (B - 1) + [0.0], dtype=torch.float64)  # the last sample is padding
    share = valid / valid.sum()

    def pack(logits: Tensor, b: Tensor) -> Predictions:
        return Predictions(logits.sum(0).log_softmax(1), logits.log_softmax(2), share, {"afs": b}, first_task)

    return logits, b, valid, pack


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) = sum_c p_c log(p_c / q_c)."""
    return sum(p[c] * torch.log(p[c] / q[c]) for c in range(len(p)))  # type: ignore[return-value]


def divergence_by_hand(logits: Tensor, b: Tensor, valid: Tensor, form: str, adaptive: bool) -> Tensor:
    K, B = logits.shape[:2]
    p = logits.exp() / logits.exp().sum(2, keepdim=True)
    n = int(valid.sum())
    total = 0.0 * logits.sum()
    for i in range(K):
        for j in range(K):
            if i == j:
                continue
            if not adaptive:
                w = torch.tensor(1.0, dtype=torch.float64)
            elif form == "published":  # i the student k, j the target l: K softmax(100 b_k) over all l
                w = K * torch.exp(100 * b[i, j]) / sum(torch.exp(100 * b[i, m]) for m in range(K))
            else:  # over the others only, K - 1 of them
                w = (K - 1) * torch.exp(b[i, j]) / sum(torch.exp(b[i, m]) for m in range(K) if m != i)
            for s in range(B):
                if valid[s]:
                    if form == "published":  # KL(p_l || p_k), the target p_l held
                        total = total + w / n * kl(p[j, s].detach(), p[i, s])
                    else:  # KL(p_i || p_j), both learn
                        total = total + w / n * kl(p[i, s], p[j, s])
    return total


@pytest.mark.parametrize("form", ["published", "paper"])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("first_task", [False, True])
@pytest.mark.parametrize("K", [2, 3, 5])
def test_divergence(form: str, adaptive: bool, first_task: bool, K: int) -> None:
    logits, b, valid, pack = predictions(K, first_task=first_task)
    penalty = Divergence(0.5, adaptive, form)  # type: ignore[arg-type]
    ours, by_hand = ([t.clone().requires_grad_() for t in (logits, b)] for _ in range(2))
    value = penalty.value(pack(*ours))
    expected = divergence_by_hand(*by_hand, valid, form, adaptive and not first_task)
    torch.testing.assert_close(value, expected, **EXACT)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours[0].grad, by_hand[0].grad, **EXACT)
    if adaptive and not first_task:
        torch.testing.assert_close(ours[1].grad, by_hand[1].grad, **EXACT)
        moves = form == "published" or K > 2  # one other learner alone has all the weight
        assert ours[1].grad is not None and (float(ours[1].grad.abs().max()) > 1e-6) == moves
    else:
        assert ours[1].grad is None or not ours[1].grad.any()
    assert ours[0].grad is not None and not ours[0].grad[:, -1].any()  # padding teaches nothing


def test_published_divergence_sends_nothing_to_its_target() -> None:
    """With one student k taking all the weight from one target l, only the student's logits have a gradient."""
    logits, _, _, pack = predictions(3)
    b = torch.full((3, 3), -1.0, dtype=torch.float64)
    b[0, 1] = b[1, 1] = b[2, 2] = (
        1.0  # 0 learns from 1; the weight of 1 and 2 lies on themselves, where there is no KL
    )
    leaf = logits.clone().requires_grad_()
    Divergence(1.0, True, "published").value(pack(leaf, b)).backward()
    assert leaf.grad is not None
    assert leaf.grad[0, :-1].all()
    assert float(leaf.grad[1:].abs().max()) < 1e-30
    # d/dz_k sum_c -p_l log p_k = p_k - p_l, times K = 3, mean over 3 samples
    p = logits.softmax(2)
    torch.testing.assert_close(leaf.grad[0, :-1], (p[0] - p[1])[:-1] * 3 / 3, **EXACT)


def test_paper_divergence_sends_something_to_both() -> None:
    logits, b, _, pack = predictions(2)
    leaf = logits.clone().requires_grad_()
    Divergence(1.0, False, "paper").value(pack(leaf, b)).backward()
    assert leaf.grad is not None and leaf.grad[:, :-1].all()


def test_divergence_of_equal_learners_is_nothing() -> None:
    logits = torch.randn(1, 4, 3, dtype=torch.float64).expand(4, -1, -1).contiguous()
    _, b, _, pack = predictions(4)
    for form in ("published", "paper"):
        assert abs(float(Divergence(1.0, True, form).value(pack(logits, b)))) < 1e-12  # type: ignore[arg-type]


def test_divergence_with_classes_that_are_not_there() -> None:
    """A logit of -1e9 has probability 0 and log-probability -1e9: nothing may become NaN."""
    logits, b, valid, pack = predictions(3)
    wide = torch.cat([logits, torch.full((3, 4, 2), -1e9, dtype=torch.float64)], 2)
    for form in ("published", "paper"):
        leaf = wide.clone().requires_grad_()
        value = Divergence(1.0, True, form).value(pack(leaf, b))  # type: ignore[arg-type]
        torch.testing.assert_close(value, divergence_by_hand(logits, b, valid, form, True), **EXACT)
        value.backward()
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all() and not leaf.grad[..., 3:].any()


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "bad", [-1.0, -1e-12, math.nan, math.inf, torch.tensor([1.0, -2.0]), torch.tensor([math.nan])]
)
@pytest.mark.parametrize(
    ("make_penalty", "name"),
    [
        (StabilityProtection, "lambda_sp"),
        (ActiveForgetting1, "lambda_af"),
        (ActiveForgetting2, "lambda_af"),
        (Divergence, "gamma"),
    ],
)
def test_impossible_strengths_are_refused(bad: float | Tensor, make_penalty: type, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make_penalty(bad)


@pytest.mark.parametrize("penalty", [StabilityProtection, ActiveForgetting1, ActiveForgetting2, Divergence])
def test_zero_is_possible(penalty: type) -> None:
    penalty(0.0)
    penalty(torch.zeros(2))


def test_af2_pulls_as_its_value_says() -> None:
    net, hand, theta = make()
    beside = {"expanded": net.initial([5, 6, 7]).double(), "expanded_importance": positive(hand, 3)}
    for strength in (0.7, torch.tensor([0.0, 0.3, 2.5], dtype=torch.float64)):
        penalty, leaf = ActiveForgetting2(strength), theta.clone().requires_grad_()
        (expected,) = torch.autograd.grad(penalty.value(weights(net, leaf, **beside)).sum(), leaf)
        found = pushed(penalty, weights(net, theta, **beside))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_what_one_pass_over_the_weights_takes() -> None:
    """At most two pulls and one decay, sorted by their kinds."""
    pulls = [QuadraticPull(torch.ones(1), torch.full((1, 2), i), torch.zeros(1, 2)) for i in range(3)]
    decays = [WeightDecay(torch.full((1, 1), i), torch.zeros(2, dtype=torch.long)) for i in range(2)]
    both = sorted_forces([decays[0], pulls[1], pulls[0]], 1)
    assert all(torch.equal(one[1], pull.weight) for one, pull in zip(both.pulls, (pulls[1], pulls[0]), strict=True))
    assert both.fit and both.decay is not None and torch.equal(both.decay[0], decays[0].rates)
    assert sorted_forces([], 1).decay is None and sorted_forces([], 1).fit
    assert not sorted_forces(pulls, 1).fit and not sorted_forces(decays, 1).fit
