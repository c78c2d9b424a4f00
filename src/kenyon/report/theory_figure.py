"""The theory as pictures: forgetting rates and target distributions (Fig. 3b), and the terms of the two bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.report.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]
OLD, NEW, PRIOR = "#3b75af", "#519e3e", "#8c8c8c"  # the belief after task A, the likelihood of task B, the prior
BEST = "#c53a32"
TERMS = {
    "flatness": ("flatness", "#e8a33d"),
    "discrepancy": ("discrepancy", "#8d69b8"),
    "cover, largest learner": ("cover: largest learner", "#3b75af"),
    "cover, union": ("cover: union", "#9cc4e4"),
}


def draw_fig3b(data: Data, path: Path) -> Path:
    """Draw `fig3b_data`: target distributions, the new task's probability and the strengths, against the rate."""
    plt = _pyplot()
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13.5, 4.2), width_ratios=(1.6, 1, 1), layout="constrained"
    )
    _targets(left, data)
    _predictive(middle, data["predictive"])
    _strengths(right, data["lambdas"])
    return save_figure(figure, path)


def draw_bounds(data: Data, path: Path) -> Path:
    """Draw `bounds_data`: the covers against learners, the terms of both bounds, the bounds against the radius."""
    plt = _pyplot()
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13.5, 4.4), width_ratios=(1, 1.1, 1.2), layout="constrained"
    )
    s = data["settings"]
    figure.suptitle(
        f"Bounds for {s['tasks']} tasks of {s['samples']:,} samples, VC dimension {s['dimension']:g}, "
        f"holding with probability {1 - s['delta']:g}",
        fontsize=12,
    )
    _covers(left, data["learners"])
    _parts(middle, data["parts"])
    _radius(right, data["radius"], s)
    return save_figure(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def _targets(axes: Axes, data: Data) -> None:
    from matplotlib import colormaps

    theta, targets = data["theta"], data["targets"]
    axes.plot(theta, data["prior"], color=PRIOR, linewidth=1, linestyle=":", label="p(θ)")
    axes.plot(theta, data["old"], color=OLD, linewidth=1, linestyle=":", label="p(θ | A)")
    if data["settings"]["task_fisher"]:
        as_high = np.array(data["likelihood"]) * max(data["prior"])  # the scale of a likelihood is arbitrary
        axes.plot(theta, as_high, color=NEW, linewidth=1, linestyle=":", label="p(B | θ), scaled")
    colours = colormaps["plasma"](np.linspace(0.05, 0.8, len(targets)))
    for one, colour in zip(targets, colours, strict=True):
        axes.plot(theta, one["density"], color=colour, linewidth=1.8, label=f"β = {one['beta']:g}")
        axes.vlines(one["mean"], 0, max(one["density"]), color=colour, linewidth=0.9, linestyle="--", zorder=1)
    axes.set(xlabel="θ", ylabel="density", title="target distribution p(θ | A, B, β), modes dashed")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)


def _predictive(axes: Axes, data: Data) -> None:
    best, none = data["best"], data["log_probability"][0]
    axes.plot(data["beta"], np.array(data["log_probability"]) - none, color=NEW, linewidth=1.8)
    axes.axvline(best["beta"], color=BEST, linewidth=0.9, linestyle="--", zorder=1)
    axes.plot(best["beta"], best["gain"], color=BEST, marker="o", markersize=6)
    axes.annotate(
        f"β* = {best['beta']:.3g}",
        (best["beta"], best["gain"]),
        xytext=(0, 8),
        textcoords="offset points",
        ha="left" if best["beta"] < 0.1 else "right" if best["beta"] > 0.9 else "center",
        va="bottom",
        color=BEST,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.set(
        xlabel="forgetting rate β", ylabel="log p(B | A, β) − log p(B | A, 0)", title="the new task's probability"
    )
    axes.margins(y=0.15)
    _plain(axes)


def _strengths(axes: Axes, data: Data) -> None:
    beta = data["beta"]
    for version, style in (("af1", "-"), ("af2", "--")):
        name = version.replace("af", "AF-")
        axes.plot(beta, data[version]["sp"], color=OLD, linestyle=style, linewidth=1.8, label=f"$λ_{{SP}}$, {name}")
        axes.plot(beta, data[version]["af"], color=BEST, linestyle=style, linewidth=1.8, label=f"$λ_{{AF}}$, {name}")
    axes.set(xlabel="forgetting rate β", ylabel="strength, in its scale", title="the penalties' strengths")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 3)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)


def _covers(axes: Axes, data: Data) -> None:
    for name, of, colour in (("c1", "C₁ (old tasks' samples)", OLD), ("c2", "C₂ (new task's samples)", NEW)):
        axes.plot(
            data["K"],
            [sum(terms.values()) for terms in data[name]],
            color=colour,
            marker="o",
            markersize=3.5,
            label=of,
        )
        axes.axhline(data[f"single_{name}"], color=colour, linewidth=0.9, linestyle="--")
    axes.set(xlabel="learners K, each of dimension d / K", ylabel="cover", title="covers; dashed: one learner")
    axes.set_xticks([K for K in data["K"] if K == 1 or K % 5 == 0])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    _plain(axes)


def _parts(axes: Axes, shown: list[Data]) -> None:
    bars = [(f"{name}\nK = {one['learners']}", one[name]) for name in ("plasticity", "stability") for one in shown]
    for place, (_, bound) in enumerate(bars):
        below = 0.0
        for term, (label, colour) in TERMS.items():
            value = bound["terms"][term]
            axes.bar(place, value, 0.65, bottom=below, color=colour, label=label if place == 0 else None, alpha=0.9)
            below += value
        axes.annotate(
            f"{bound['total']:.2f}",
            (place, below),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_xticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    axes.set(ylabel="bound", title="what each term contributes")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.margins(y=0.12)
    _plain(axes)


def _radius(axes: Axes, data: Data, settings: Data) -> None:
    from matplotlib import colormaps

    for name, style in (("plasticity", "-"), ("stability", "--")):
        colours = colormaps["plasma"](np.linspace(0.05, 0.75, len(data[name])))
        for one, colour in zip(data[name], colours, strict=True):
            best = one["best"]
            label = f"{name}, curvature {one['curvature']:g}"
            axes.plot(data["b"], one["total"], color=colour, linestyle=style, linewidth=1.5, label=label)
            axes.plot(data["b"][best], one["total"][best], color=colour, marker="o", markersize=5)
    axes.axhline(1, color="#555555", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.6)
    axes.set(
        xlabel=f"radius b (norm |θ|² = {settings['norm_squared']:g})",
        ylabel="bound, with flatness ½ curvature b²",
        title="norm form: flat minima allow a large radius",
    )
    axes.legend(frameon=False, fontsize=7)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
