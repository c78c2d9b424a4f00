"""How each analysis is drawn: of one result, and of several results side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any

import numpy as np

from kenyon.metrics import Array, Summary
from kenyon.paper.analyses.gradcam import as_text, from_text, overlay
from kenyon.utils.views import Bar, Series, View, bars, heatmap, images, lines, scatter

Runs = Sequence[dict[str, Any]]  # what was measured of every run, with its seed
Compared = Mapping[str, Runs]  # by label

OFFSETS = {
    "radius": "distance from the solution (L2)",
    "norm": "distance from the solution, in lengths of the weights",
    "filter": "distance from the solution, in lengths of each filter",
}


def _stacked(runs: Runs, name: str) -> Array:
    return np.array([[np.nan if v is None else v for v in run[name]] for run in runs], dtype=float)


def _places(count: int) -> list[int]:
    return list(range(1, count + 1))


def _count(runs: Runs) -> str:
    return "1 run" if len(runs) == 1 else f"mean of {len(runs)} runs"


def _mean_line(name: str, x: Sequence[float], each: Array) -> Series:
    """The mean over runs (first axis) and its standard error."""
    return Series(name, x, each.mean(0), each.std(0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else None)


def _bar(name: str, values: Sequence[float]) -> Bar:
    """The mean of some runs, their standard error where there are several, and every run."""
    found = Summary.of(list(values))
    return Bar(name, np.nan) if found is None else Bar(name, found.mean, found.sem, found.runs)


def pertask(label: str, runs: Runs) -> View:
    final = _stacked(runs, "final")
    series = [_mean_line("in the end", _places(final.shape[1]), final)]
    if all(run["learned"] is not None for run in runs):
        series.append(_mean_line("just learned", _places(final.shape[1]), _stacked(runs, "learned")))
    title = f"{label}: accuracy of every task, {_count(runs)}"
    return lines(title, "task, in the order of learning", "accuracy (%)", series, "Bands: standard error over runs.")


def pertask_compared(benchmark: str, results: Compared) -> View:
    series = []
    for label, runs in results.items():
        final = _stacked(runs, "final")
        series.append(_mean_line(label, _places(final.shape[1]), final))
    title = f"{benchmark}: accuracy of every task in the end"
    return lines(title, "task, in the order of learning", "accuracy (%)", series, "Bands: standard error over runs.")


def diversity(label: str, runs: Runs) -> View:
    cosine, euclidean = _stacked(runs, "cosine"), _stacked(runs, "euclidean")
    x = _places(cosine.shape[1])
    series = [_mean_line("Euc", x, euclidean), _mean_line("Cos", x, cosine)]
    title = f"{label}: diversity of the learners' predictions, {_count(runs)}"
    note = "Means over pairs of learners and test samples, after the last task."
    return lines(title, "task, in the order of learning", "distance between predictions", series, note)


def diversity_compared(benchmark: str, results: Compared) -> View:
    found = [
        _bar(f"{label}, {short}" if len(results) > 1 else short, [run[name] for run in runs])
        for short, name in (("Cos", "mean_cosine"), ("Euc", "mean_euclidean"))
        for label, runs in results.items()
    ]
    title = f"{benchmark}: diversity of the learners' predictions"
    return bars(title, "distance between predictions", found, "Means over tasks; points are runs.")


def expertise(label: str, runs: Runs) -> View:
    first = runs[0]
    values = np.array(first["relative"]).T  # learners down
    return heatmap(
        f"{label}: expertise of the learners, seed {first['seed']}",
        "task, in the order of learning",
        "learner",
        [str(t) for t in _places(values.shape[1])],
        [str(k) for k in _places(len(values))],
        values,
        "Accuracy minus the learners' mean (%). One run: which learner is which means nothing across runs.",
        scale="diverging",
        digits=1,
    )


def discrepancy(label: str, runs: Runs) -> View:
    sides = np.array(runs[0]["sides"])
    errors = _stacked(runs, "error").mean(0)
    T = sides.shape[1]
    title = f"{label}: test error of telling tasks apart, {_count(runs)}"
    note = f"Binary cross-entropy of one dense layer: {log(2):.3f} is chance, 0 is apart."
    if (sides == 0).sum() == 0 and len(sides) == T:
        each = _mean_line("one task against the rest", _places(T), _stacked(runs, "error"))
        return lines(title, "task, in the order of learning", "cross-entropy (nats)", [each], note)
    values = np.full((T, T), np.nan)
    for side, error in zip(sides, errors, strict=True):
        one, other = np.flatnonzero(side)
        values[one, other] = values[other, one] = error
    names = [str(t) for t in _places(T)]
    order = "task, in the order of learning"
    return heatmap(title, order, order, names, names, values, note)


def discrepancy_compared(benchmark: str, results: Compared) -> View:
    found = [_bar(label, [run["mean_error"] for run in runs]) for label, runs in results.items()]
    for label, runs in results.items():
        own = [run["own_error"] for run in runs if run.get("own_error") not in (None, run["mean_error"])]
        found += [_bar(f"{label}, own", own)] if own else []
    title = f"{benchmark}: test error of telling tasks apart by their features"
    note = f"The larger, the more alike are the tasks; {log(2):.3f} is chance. Points are runs."
    if len(found) > len(results):
        note += " Own: by each learner's features alone."
    return bars(title, "cross-entropy (nats)", found, note, digits=3)


def flatness(label: str, runs: Runs) -> View:
    first = runs[0]
    x, each = first["offsets"], np.array(first["losses"], dtype=float)
    series = [Series(f"direction {d + 1}", x, losses, thin=True) for d, losses in enumerate(each)]
    series.append(Series("mean", x, each.mean(0)))
    title = f"{label}: loss along random directions, seed {first['seed']}"
    note = f"Sharpness (mean of the largest rises) {first['sharpness']:.3g}, worst {first['worst']:.3g}."
    return lines(title, OFFSETS[first["scale"]], "cross-entropy, mean of all tasks", series, note)


def flatness_compared(benchmark: str, results: Compared) -> View:
    series = []
    for label, runs in results.items():
        each = np.array([np.mean(np.array(run["losses"], dtype=float), axis=0) for run in runs])
        series.append(_mean_line(label, runs[0]["offsets"], each))
    scale = next(iter(results.values()))[0]["scale"]
    title = f"{benchmark}: loss along random directions"
    note = "Mean over directions and runs; bands: standard error over runs."
    return lines(title, OFFSETS[scale], "cross-entropy, mean of all tasks", series, note)


def change(label: str, runs: Runs) -> View:
    return _changes(f"{label}: change of the weights and accuracy", {label: runs})


def change_compared(benchmark: str, results: Compared) -> View:
    return _changes(f"{benchmark}: change of the weights and accuracy", results)


def _changes(title: str, results: Compared) -> View:
    """By the way that was gone, where it is known of all runs; else by how far it led."""
    known = all(run["total"] is not None for runs in results.values() for run in runs)
    name = "total" if known else "displacement"
    axis = "total change, sum over tasks of |θ(t) - θ(t-1)|" if known else "displacement |θ(T) - θ(0)|"
    series = [
        Series(
            label,
            [run[name] for run in runs],
            [run["accuracy"] for run in runs],
            labels=[f"seed {run['seed']}" for run in runs],
        )
        for label, runs in results.items()
    ]
    note = "Weights that all tasks share. Each point is a run." + (
        "" if known else " The total needs `kenyon run --keep-every-task`."
    )
    return scatter(title, axis, "average accuracy of all tasks (%)", series, note)


def gradcam(label: str, runs: Runs) -> View:
    first = runs[0]
    several = first["own_maps"]
    maps = {"together" if several else "network": first["maps"]}
    maps |= {f"learner {k + 1}": own for k, own in enumerate(several)}
    rows = {"image": first["images"]} | {name: _overlays(first, each) for name, each in maps.items()}
    title = f"{label}: Grad-CAM at {first['layer']}, seed {first['seed']}"
    said = [_said(*pair) for pair in zip(first["labels"], first["predictions"], strict=True)]
    return _grid(title, rows, said, f"Task: {first['task']}. In brackets, what the network says where it is wrong.")


def gradcam_compared(benchmark: str, results: Compared) -> View:
    """The first row is the image, then one a result; the same images of the same seed."""
    firsts = {label: runs[0] for label, runs in results.items()}
    one = next(iter(firsts.values()))
    alike = all(a["images"] == b["images"] for a, b in pairwise(firsts.values()))
    shown = firsts if alike else {next(iter(firsts)): one}
    rows = {"image": one["images"]} | {label: _overlays(run, run["maps"]) for label, run in shown.items()}
    right = ", ".join(
        f"{label} {sum(a == b for a, b in zip(run['labels'], run['predictions'], strict=True))}"
        for label, run in shown.items()
    )
    note = f"Task: {one['task']}. Right of {len(one['labels'])}: {right}."
    return _grid(f"{benchmark}: Grad-CAM, seed {one['seed']}", rows, one["labels"], note)


def _grid(title: str, rows: Mapping[str, Sequence[str]], columns: Sequence[str], note: str) -> View:
    """Pictures in rows: those of the first say the columns' names, the others their row's."""
    pictures = []
    for number, (name, cells) in enumerate(rows.items()):
        for column, cell in zip(columns, cells, strict=True):
            caption = name if number else column
            pictures.append({"src": f"data:image/png;base64,{cell}", "alt": f"{name}: {column}", "caption": caption})
    return images(title, pictures, len(columns), note)


def _overlays(run: dict[str, Any], maps: Sequence[Any]) -> list[str]:
    pairs = zip(run["images"], maps, strict=True)
    return [as_text(overlay(from_text(image), np.array(heat, dtype=float))) for image, heat in pairs]


def _said(label: str, prediction: str) -> str:
    return label if label == prediction else f"{label} ({prediction})"
