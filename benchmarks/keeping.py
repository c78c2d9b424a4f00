"""Draw the picture of the README, in light and dark: `python benchmarks/keeping.py`.

Accuracy of every task while 20 tasks of CIFAR-100 are learned, fine-tuning beside CAF: means over five runs from
benchmarks/h200. A task's line starts when it has been learned; the thick line is the average over the tasks so far.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kenyon.experiments.results import Result

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "pictures"
METHODS = (("finetune", "Fine-tuning"), ("caf-ewc", "CAF"))
THEMES = {
    "": {"ink": "#1b1b1f", "grid": "#d9d9df", "ground": "none"},
    "-dark": {"ink": "#ececf1", "grid": "#4a4a55", "ground": "none"},
}


def draw(suffix: str) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    theme = THEMES[suffix]
    plt.rcParams.update({"svg.hashsalt": "kenyon", "svg.fonttype": "path", "font.size": 10})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.3), sharey=True, layout="constrained")
    for panel, (method, title) in zip(axes, METHODS, strict=True):
        result = Result.load(HERE / "h200" / "r-cifar-100" / method / "result.json")
        accuracy = np.stack([run.matrix for run in result.complete_runs])  # (runs, after, task)
        runs, tasks, _ = accuracy.shape
        mean = accuracy.mean(0)
        colors = plt.get_cmap("viridis")(np.linspace(0.1, 0.92, tasks))
        for task in range(tasks):
            panel.plot(range(task + 1, tasks + 1), mean[task:, task], color=colors[task], lw=1.0, alpha=0.75)
            panel.plot(task + 1, mean[task, task], ".", color=colors[task], ms=5)
        so_far = np.array([[run[t, : t + 1].mean() for t in range(tasks)] for run in accuracy])
        average, error = so_far.mean(0), so_far.std(0, ddof=1) / np.sqrt(runs)
        half = error * 2.776  # 95 % of a t distribution with 4 degrees of freedom
        panel.fill_between(range(1, tasks + 1), average - half, average + half, color=theme["ink"], alpha=0.18, lw=0)
        panel.plot(range(1, tasks + 1), average, color=theme["ink"], lw=2.2)
        panel.axhline(20, color=theme["ink"], lw=0.8, ls=":")
        panel.text(1, 15, "chance", color=theme["ink"], fontsize=8)
        panel.set_title(
            f"{title}: {average[-1]:.1f} ± {half[-1]:.1f} % after 20 tasks", color=theme["ink"], fontsize=11
        )
        panel.set_xlabel("tasks learned", color=theme["ink"])
        panel.set_xticks([1, 5, 10, 15, 20])
        panel.set_ylim(0, 100)
        panel.grid(color=theme["grid"], lw=0.5)
        panel.tick_params(colors=theme["ink"], length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel("accuracy of each task, %", color=theme["ink"])
    path = OUT / f"keeping{suffix}.svg"
    figure.savefig(path, facecolor=theme["ground"], transparent=True, metadata={"Date": None, "Creator": "Kenyon"})
    plt.close(figure)
    return path


if __name__ == "__main__":
    for theme_name in THEMES:
        print(draw(theme_name))
