"""The pictures of docs/method.md, each in light and dark: `python website/pictures.py` draws them.

Beliefs and minima are computed by `kenyon.paper.theory`, the divergence between learners by
`kenyon.methods.penalties`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Ellipse, FancyArrowPatch, FancyBboxPatch, Rectangle

from kenyon.methods.penalties import Divergence, Predictions
from kenyon.paper.theory import (
    Evidence,
    Expanded,
    Gaussian,
    Lambdas,
    best_rate,
    expanded_af1_literal,
    expanded_af2_literal,
    forget,
    log_predictive,
    minimiser,
    target,
)

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
RATES = (0.15, 0.9, 0.45, 0.7, 0.3)  # of the five compartments: only their being different matters here


@dataclass(frozen=True)
class Look:
    paper: str
    ink: str
    faint: str
    old: str  # what task A left
    new: str  # what task B says
    best: str
    five: tuple[str, ...]


LIGHT = Look(
    *("#ffffff", "#24292f", "#9aa3ad", "#3465a4", "#3b8132", "#c2571a"),
    five=("#5b6bb5", "#3a8fb7", "#3c9d7c", "#a58a2b", "#b0623f"),
)
DARK = Look(
    *("none", "#dfe3ea", "#7d8592", "#86b0ea", "#86cf7c", "#f0945a"),
    five=("#9aa7ea", "#74c0e3", "#75d0b0", "#d8bf65", "#e29a78"),
)
Drawing = Callable[[Axes, Look], None]
PICTURES: dict[str, tuple[tuple[float, float], Drawing]] = {}


def picture(width: float, height: float) -> Callable[[Drawing], Drawing]:
    """Register a picture by its size in inches; the function's name is the file's."""

    def add(draw: Drawing) -> Drawing:
        PICTURES[draw.__name__.replace("_", "-")] = (width, height), draw
        return draw

    return add


# ------------------------------------------------------------------ the fly, and the network that is made after it


@picture(5.6, 3.6)
def method_fly(axes: Axes, look: Look) -> None:
    _empty(axes, look, "The fly's mushroom body")
    _five(axes, look, [f"γ{n + 1}" for n in range(5)])
    for y in np.linspace(1.5, 2.0, 5):
        axes.plot([-0.6, 5.75], [y, y], color=look.ink, linewidth=0.7, alpha=0.6, zorder=3)
    axes.text(-0.62, 1.27, "Kenyon cells:\nwhat is sensed", color=look.ink, fontsize=8.5, va="top")
    axes.text(2.9, 3.15, "dopamine: how fast each compartment forgets", color=look.ink, fontsize=8.5, ha="center")
    axes.text(3.25, 0.42, "output neurons → behaviour", color=look.ink, fontsize=8.5, va="center")


@picture(5.6, 3.6)
def method_learners(axes: Axes, look: Look) -> None:
    _empty(axes, look, "Five learners with shared heads")
    _five(axes, look, [f"learner {n + 1}" for n in range(5)])
    axes.plot([-0.2, 5.2], [1.75, 1.75], color=look.ink, linewidth=0.9, alpha=0.6, zorder=3)
    for x in _places():
        axes.plot(x, 1.75, "o", color=look.ink, markersize=3.5)
    for row in range(4):
        for column in range(4):
            shade = 0.15 + 0.7 * (((row * 7 + column * 5) % 4) / 3)
            pixel = Rectangle((-0.6 + 0.1 * column, 1.55 + 0.1 * row), 0.1, 0.1)
            pixel.set(color=look.ink, alpha=shade, linewidth=0)
            axes.add_patch(pixel)
    axes.text(-0.62, 1.27, "the image,\nto all", color=look.ink, fontsize=8.5, va="top")
    axes.text(2.9, 3.15, "learned: how strongly each learner decays", color=look.ink, fontsize=8.5, ha="center")
    _arrow(axes, (3.1, 0.42), (3.45, 0.42), look.faint)
    for n in range(3):
        shape = FancyBboxPatch((3.6 + 0.72 * n, 0.25), 0.52, 0.34, "round,pad=0.04")
        shape.set(facecolor="none", edgecolor=look.ink, linewidth=1)
        axes.add_patch(shape)
        axes.text(3.86 + 0.72 * n, 0.42, f"task {n + 1}", color=look.ink, fontsize=7.5, ha="center", va="center")
    axes.text(4.58, -0.02, "one head a task, fed by the sum", color=look.ink, fontsize=8.5, ha="center", va="center")


def _five(axes: Axes, look: Look, names: Sequence[str]) -> None:
    """Draw compartments or learners with the modulation of each above them, and their sum below."""
    for x, name, colour, rate in zip(_places(), names, look.five, RATES, strict=True):
        shape = FancyBboxPatch((x - 0.43, 1.4), 0.86, 1.0, "round,pad=0.03,rounding_size=0.18")
        shape.set(facecolor=colour, edgecolor="none", alpha=0.3)
        axes.add_patch(shape)
        axes.text(x, 2.22, name, color=look.ink, fontsize=8.5, ha="center", va="center")
        _arrow(axes, (x, 3.05), (x, 2.5), colour, width=0.8 + 4 * rate)
        _arrow(axes, (x, 1.3), (2.9 + 0.16 * (x - 2.9), 0.66), look.faint)
    axes.add_patch(Circle((2.9, 0.42), 0.2, facecolor="none", edgecolor=look.ink, linewidth=1.2))
    axes.text(2.9, 0.42, "Σ", color=look.ink, fontsize=10, ha="center", va="center")


# ------------------------------------------------------------------ beliefs over one weight (Fig. 3b)

PRIOR, OLD, TASK = Gaussian(0, 1), Gaussian(4, 1), Evidence(optimum=1, fisher=1)
THETA = np.linspace(-3.2, 7.2, 400)


@picture(4.2, 3.1)
def method_protect(axes: Axes, look: Look) -> None:
    axes.plot(THETA, _density(OLD), color=look.old, label="after task A")
    axes.plot(THETA, _likelihood(), color=look.new, linestyle="--", label="what task B says")
    kept = target(OLD, PRIOR, TASK, 0)
    axes.fill_between(THETA, _density(kept), color=look.best, alpha=0.25, linewidth=0)
    axes.plot(THETA, _density(kept), color=look.best, label="protection alone")
    _axis(axes, look, "Protected: between the tasks", "a weight θ")


@picture(4.2, 3.1)
def method_forget(axes: Axes, look: Look) -> None:
    axes.plot(THETA, _density(PRIOR), color=look.faint, linestyle=":", label="before any task")
    for beta, alpha in ((0, 1), (0.25, 0.75), (0.5, 0.5), (0.75, 0.3)):
        belief = forget(OLD, PRIOR, [beta]).belief
        name = "after task A" if beta == 0 else f"β = {beta:g}"
        axes.plot(
            THETA, _density(Gaussian(belief.mean[0], belief.variance[0])), color=look.old, alpha=alpha, label=name
        )
    _axis(axes, look, "Forgetting moves the old belief back", "a weight θ")


@picture(4.2, 3.1)
def method_targets(axes: Axes, look: Look) -> None:
    axes.plot(THETA, _likelihood(), color=look.new, linestyle="--", label="what task B says")
    for beta, colour in zip(sorted(RATES), look.five, strict=True):
        axes.plot(THETA, _density(target(OLD, PRIOR, TASK, beta)), color=colour, label=f"β = {beta:g}")
    _axis(axes, look, "Five rates, five targets", "a weight θ")


@picture(4.2, 3.1)
def method_rate(axes: Axes, look: Look) -> None:
    rates, best = np.linspace(0, 1, 101), best_rate(OLD, PRIOR, TASK)
    chance = log_predictive(OLD, PRIOR, TASK, rates)
    axes.plot(rates, chance - chance[0], color=look.new)
    axes.plot([best.beta], [best.gain], "o", color=look.best)
    axes.annotate(
        f"β* = {best.beta:g}",
        (best.beta, best.gain),
        (0, -16),
        textcoords="offset points",
        color=look.best,
        ha="center",
    )
    _axis(axes, look, "How likely task B becomes", "forgetting rate β", legend=False)
    axes.set_ylabel("gain in log p(B | A, β)", color=look.ink, fontsize=8.5)
    axes.yaxis.set_visible(True)
    axes.tick_params(axis="y", colors=look.ink, labelsize=8)


# ------------------------------------------------------------------ two weights, and where the penalties pull them

TWO_OLD, TWO_TASK = Gaussian([3.0, 0.9], [0.12, 1.6]), Evidence([0.9, 3.0], [1.2, 1.2])


@picture(3.3, 3.1)
def method_af1(axes: Axes, look: Look) -> None:
    _landscape(axes, look)
    _path(axes, look, expanded_af1_literal(2))
    axes.plot(0, 0, marker="s", color=look.faint, markersize=6)
    axes.annotate("empty", (0, 0), (7, -3), textcoords="offset points", color=look.ink, fontsize=8)
    axes.set_title("AF-1: towards an empty network", color=look.ink, fontsize=10)


@picture(3.3, 3.1)
def method_af2(axes: Axes, look: Look) -> None:
    _landscape(axes, look)
    _path(axes, look, expanded_af2_literal(TWO_TASK))
    axes.set_title("AF-2: towards task B's own", color=look.ink, fontsize=10)


@picture(3.3, 3.1)
def method_afs(axes: Axes, look: Look) -> None:
    """Draw gradient steps of AF-S alone on five random predictions of three classes."""
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    axes.add_patch(plt.Polygon(corners, facecolor="none", edgecolor=look.faint))
    for name, (x, y), beyond in zip(("cat", "dog", "bird"), corners, (-0.05, -0.05, 0.04), strict=True):
        axes.text(x, y + beyond, name, color=look.ink, fontsize=8.5, ha="center", va="center")
    logits = torch.tensor([[2.2, 0.2, 0], [-0.4, 1.8, 0.4], [0.3, -0.3, 2.0], [0.9, 1.2, -0.8], [1.4, -0.6, 0.9]])
    trail = torch.stack(list(_drawn_together(logits))).numpy() @ corners  # (steps, K, 2)
    for k, colour in enumerate(look.five):
        axes.plot(*trail[:, k].T, color=colour, linewidth=1.4)
        axes.plot(*trail[0, k], "o", color=colour, markersize=7)
        _arrow(axes, tuple(trail[-5, k]), tuple(trail[-1, k]), colour)
    axes.set_title("AF-S: learners hear each other", color=look.ink, fontsize=10)
    axes.set_aspect("equal")
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.1, 0.98))
    axes.axis("off")


def _drawn_together(logits: torch.Tensor, steps: int = 25, rate: float = 0.06) -> Iterator[torch.Tensor]:
    """The learners' probabilities (K, 3) after each step."""
    logits = logits.clone().requires_grad_()
    penalty = Divergence(1.0)
    for _ in range(steps):
        yield logits.detach().softmax(-1)
        own = logits.log_softmax(-1).unsqueeze(1)  # (K, B = 1, C)
        seen = Predictions(own.mean(0), own, torch.ones(1), {}, first_task=True)
        (slope,) = torch.autograd.grad(penalty.value(seen), logits)
        logits = (logits - rate * slope).detach().requires_grad_()


def _landscape(axes: Axes, look: Look) -> None:
    """Draw level ellipses of both tasks' losses around their optima, and the minimum with protection alone."""
    for middle, precision, colour, name, (x, y) in (
        (TWO_OLD.mean, TWO_OLD.precision, look.old, "task A", (3.38, 0.85)),
        (TWO_TASK.optimum, TWO_TASK.fisher, look.new, "task B", (0.65, 1.95)),
    ):
        for height in (0.35, 0.8):
            wide, high = 2 * height / np.sqrt(precision)
            axes.add_patch(Ellipse(tuple(middle), wide, high, facecolor="none", edgecolor=colour, alpha=0.8))
        axes.plot(*middle, "o", color=colour, markersize=5)
        axes.text(x, y, name, color=colour, fontsize=8.5)
    axes.set_aspect("equal")
    axes.set(xlim=(-0.5, 4.2), ylim=(-0.5, 4.2), xlabel="an important weight", ylabel="an unimportant weight")
    _frame(axes, look)


def _path(axes: Axes, look: Look, expanded: Expanded) -> None:
    """Draw the minimum of the loss as lambda_AF grows from 0 at fixed protection."""
    strengths = np.concatenate([[0], np.geomspace(0.03, 4, 60)])
    found = minimiser(TWO_OLD, TWO_TASK, Lambdas(np.ones_like(strengths), strengths), expanded)
    axes.plot(*found.T, color=look.best, linewidth=1.8)
    axes.plot(*found[0], "o", color=look.best)
    axes.annotate(
        "protection alone", tuple(found[0]), (7, 5), textcoords="offset points", color=look.best, fontsize=8
    )
    _arrow(axes, tuple(found[-4]), tuple(found[-1]), look.best)


def _density(belief: Gaussian) -> np.ndarray:
    return np.exp(belief.log_density(THETA[:, None]))


def _likelihood() -> np.ndarray:
    return 0.4 * np.exp(TASK.log_likelihood(THETA[:, None]))  # as high as the beliefs: it has no scale of its own


def _axis(axes: Axes, look: Look, title: str, x: str, *, legend: bool = True) -> None:
    axes.set_title(title, color=look.ink, fontsize=10)
    axes.set_xlabel(x)
    _frame(axes, look)
    axes.yaxis.set_visible(False)
    if legend:
        axes.set_ylim(0, 0.78)
        axes.legend(frameon=False, fontsize=8, labelcolor=look.ink, ncols=2, loc="upper center")


def _frame(axes: Axes, look: Look) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(look.faint)
    axes.tick_params(colors=look.ink, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=look.ink, fontsize=8.5)


def _places() -> Sequence[float]:
    return [0.6 + 1.15 * n for n in range(5)]


def _empty(axes: Axes, look: Look, title: str) -> None:
    axes.set(xlim=(-0.7, 5.9), ylim=(-0.2, 3.5))
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, color=look.ink, fontsize=11)


def _arrow(axes: Axes, start: tuple[float, ...], end: tuple[float, ...], colour: str, width: float = 1.2) -> None:
    style = f"-|>,head_length={3 + width},head_width={1.4 + width / 2}"
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=style, color=colour, linewidth=width, shrinkA=0, shrinkB=0))


def draw_all(folder: Path) -> list[Path]:
    plain = {"svg.hashsalt": "kenyon", "svg.fonttype": "path", "font.family": "DejaVu Sans"}
    written = []
    with matplotlib.rc_context(plain):
        for name, (size, draw) in PICTURES.items():
            for look, ending in ((LIGHT, ""), (DARK, "-dark")):
                figure, axes = plt.subplots(figsize=size, layout="constrained", facecolor=look.paper)
                axes.set_facecolor("none")
                draw(axes, look)
                written.append(folder / f"{name}{ending}.svg")
                figure.savefig(written[-1], metadata={"Date": None})
                plt.close(figure)
    return written


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
