"""Grad-CAM: the regions of an image that a prediction rests on (Fig. 2d; Selvaraju et al. 2017).

With A the maps of a layer (C, h, w) and y the logit of a class, a_c = mean over positions of dy/dA_c, and the map is
ReLU(sum_c a_c A_c). Learners are summed before the head, so that the maps of K learners are the K * C maps of one
network: the map of all is the ReLU of the sum of the learners' maps, and each learner's own is the ReLU of its part.
Independent networks each have a logit; y is their sum.

Choices where the text is silent: the layer is the last convolution with the ReLU after it, as in the original work;
the class is the true one, so that methods can be compared (`target="prediction"`: the predicted one); the images are
the first test images of every class of the latest task.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from kenyon.backends.torch.module import FunctionalCall
from kenyon.benchmarks.registry import find_benchmark, make
from kenyon.data.tasks import Stream, holds_images
from kenyon.datasets.images import as_bytes, open_image
from kenyon.errors import ConfigError, unknown
from kenyon.experiments.results import Result
from kenyon.metrics import Array
from kenyon.models.heads import GATE_SLOPE
from kenyon.paper.analyses.analysis import Analysis, Case, Compared, Runs, Values
from kenyon.paper.analyses.model import Model
from kenyon.utils.views import View, images

Pixels = npt.NDArray[np.uint8]
LARGEST = 128  # pixels a side of a picture
OPACITY = 0.5


def picture(image: Pixels) -> Pixels:
    """Return an image (H, W, C) in color, scaled to at most `LARGEST` pixels a side."""
    coloured = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
    height, width = coloured.shape[:2]
    shrink = max(1.0, max(height, width) / LARGEST)
    size = (round(width / shrink), round(height / shrink))
    return np.asarray(Image.fromarray(coloured).resize(size, Image.Resampling.LANCZOS) if shrink > 1 else coloured)


def overlay(image: Pixels, heat: Array) -> Pixels:
    """Blend a map (h, w) with an image (H, W, C): divided by its maximum, and resized to the image."""
    from matplotlib import colormaps

    below = picture(image)
    top = heat.max()
    share = heat / top if top > 0 else np.zeros_like(heat)
    stretched = Image.fromarray(share.astype(np.float32)).resize(below.shape[1::-1], Image.Resampling.BILINEAR)
    colours = colormaps["turbo"](np.clip(np.asarray(stretched), 0, 1))[..., :3]
    mixed = (1 - OPACITY) * below / 255 + OPACITY * colours
    return (255 * mixed).round().astype(np.uint8)


def from_text(text: str) -> Pixels:
    """Decode a PNG in base64."""
    with open_image(base64.b64decode(text), formats=("PNG",)) as image:
        return np.asarray(as_bytes(image, "RGB"))


def as_text(pixels: Pixels) -> str:
    """Encode pixels as a PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class GradCamSettings:
    """Images, layer and target class of Grad-CAM."""

    images: int = 8
    layer: str = ""  # by its name in the backbone; empty: the last convolution, with the ReLU after it
    target: Literal["label", "prediction"] = "label"
    task: int = 0  # counted from 1; 0: the latest

    def __post_init__(self) -> None:
        if self.images < 1 or self.task < 0:
            raise ConfigError("Grad-CAM needs at least one image, and tasks are counted from 1.")
        if self.target not in ("label", "prediction"):
            raise ConfigError(f"target must be label or prediction, not '{self.target}'.")


@dataclass(frozen=True)
class GradCam:
    """Grad-CAM maps of images."""

    layer: str
    task: int  # from 0
    maps: Array  # (B, h, w) of all learners together
    own_maps: Array  # (K, B, h, w) of each learner
    images: Array  # (B, H, W, C) uint8, the inputs of the network
    labels: list[str]
    predictions: list[str]


def grad_cam(model: Model, settings: GradCamSettings | None = None) -> GradCam:
    """Compute Grad-CAM maps of a model's learners, together and each (Fig. 2d)."""
    s = settings or GradCamSettings()
    if s.task > len(model.tasks):
        raise ConfigError(f"There are {len(model.tasks)} tasks, and no task {s.task}.")
    task = (s.task or len(model.tasks)) - 1
    layer = find_layer(model.net.backbone, s.layer)
    chosen = model.stream.tasks[task]
    pick = first_of_each_class(chosen.test.labels, s.images)
    index, labels = chosen.test.index[pick].to(model.net.device), chosen.test.labels[pick].to(model.net.device)
    images = model.probe.fleet.images(0, index)
    assert isinstance(images, Tensor)
    images = images[:, : model.stream.input_shape[0]].float().contiguous()  # without empty channels
    own, logits = class_maps(model, images, task, layer, labels if s.target == "label" else None)
    pixels = (_shown(images, model.stream).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    names = chosen.classes
    return GradCam(
        layer,
        task,
        own.sum(0).relu().double().cpu().numpy(),
        own.relu().double().cpu().numpy(),
        pixels.cpu().numpy(),
        [names[c] for c in labels.tolist()],
        [names[c] for c in logits.argmax(-1).tolist()],
    )


def _shown(images: Tensor, stream: Stream) -> Tensor:
    """Undo the normalization of images: pixels from 0 to 1. Other values are scaled to that range by sample, and
    channels that are not colors are averaged.
    """
    if holds_images(stream.pool):
        mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (stream.mean, stream.std))
        return images * std + mean
    maps = images if images.shape[1] in (1, 3) else images.mean(1, keepdim=True)
    low, high = maps.amin((1, 2, 3), keepdim=True), maps.amax((1, 2, 3), keepdim=True)
    return (maps - low) / (high - low).clamp(min=1e-12)


def find_layer(backbone: nn.Module, name: str = "") -> str:
    """Return the layer of that name, by default the last convolution with the ReLU that follows it."""
    layers = [(n, m) for n, m in backbone.named_modules() if n and not list(m.children())]
    if name:
        if name not in dict(layers):
            raise unknown("layer of this network", name, dict(layers))
        return name
    places = [i for i, (_, m) in enumerate(layers) if isinstance(m, nn.Conv2d)]
    if not places:
        raise ConfigError("Grad-CAM needs a convolution, and this network has none. Analyse another network.")
    last = places[-1]
    behind = layers[last + 1 : last + 2]
    return behind[0][0] if behind and isinstance(behind[0][1], nn.ReLU) else layers[last][0]


def first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Return `count` positions: of the first sample of every class, then of the second, and so on."""
    classes = labels.unique().tolist()
    rank = torch.zeros_like(labels)
    for c in classes:
        rank[labels == c] = torch.arange(int((labels == c).sum()))
    return (rank * (max(classes) + 1) + labels).argsort()[:count]


def class_maps(model: Model, images: Tensor, task: int, layer: str, target: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each learner's map before the ReLU (K, B, h, w), and the joint prediction (B, C).

    `target`: classes (B,); None: the predicted ones. Predictions are logits, or log-probabilities of independent
    networks. Computes learner by learner in float32 through the module itself, whatever the executor.
    """
    net, leaves, logits = model.net, [], []
    head = net.head_of(task)
    for row in model.rows[model.rows_for(task)]:
        views = net.layout.views(row)
        seen = []
        for k in range(net.learners):
            params = net.of_learner(views, k, head)
            feature, leaf = _through(net.backbone, params, images, layer)
            if net.gate:
                feature = feature * torch.sigmoid(GATE_SLOPE * views["gate"][k, head])
            seen.append(feature)
            leaves.append(leaf)
        count = net.class_counts[head]
        weight, bias = views["head.weight"][head, :count], views["head.bias"][head, :count]
        logits.append(torch.stack(seen).sum(0) @ weight.T + bias)
    each = torch.stack(logits)  # (M, B, C)
    together = each[0] if len(each) == 1 else each.softmax(-1).mean(0).log()
    chosen = together.argmax(-1) if target is None else target
    score = each.gather(2, chosen.expand(len(each), -1).unsqueeze(2)).sum()
    gradients = torch.autograd.grad(score, leaves)
    maps = [(g.mean((2, 3), keepdim=True) * a).sum(1) for g, a in zip(gradients, leaves, strict=True)]
    return torch.stack(maps).detach(), together.detach()


def _through(backbone: nn.Module, params: dict[str, Tensor], images: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """Return a learner's features of images, and its activations at a layer as a leaf of the graph."""
    leaves: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if output.ndim != 4:
            raise ConfigError(f"Layer {layer} has no maps, but an output of {output.ndim - 1} axes a sample.")
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # so that the next layer may change it in place

    handle = backbone.get_submodule(layer).register_forward_hook(hook)
    training = backbone.training
    try:
        features = FunctionalCall(backbone.eval())(params, images)
    finally:
        handle.remove()
        backbone.train(training)
    return features, leaves[-1]


def _measure_gradcam(case: Case, settings: GradCamSettings) -> Values:
    found = grad_cam(case.model, settings)
    return {
        "layer": found.layer,
        "task": case.run.tasks[found.task],
        "labels": found.labels,
        "predictions": found.predictions,
        "maps": found.maps,
        "own_maps": found.own_maps if len(found.own_maps) > 1 else [],
        "images": [as_text(picture(image)) for image in found.images],
    }


def _convolutions(result: Result) -> str | None:
    bench = find_benchmark(result.benchmark)
    try:
        find_layer(make(bench.backbone, bench.width, 1, "drawn")["backbone"])
    except ConfigError:
        return "its network has no convolution"
    return None


def _draw_gradcam(label: str, runs: Runs) -> View:
    first = runs[0]
    several = first["own_maps"]
    maps = {"together" if several else "network": first["maps"]}
    maps |= {f"learner {k + 1}": own for k, own in enumerate(several)}
    rows = {"image": first["images"]} | {name: _overlays(first, each) for name, each in maps.items()}
    title = f"{label}: Grad-CAM at {first['layer']}, seed {first['seed']}"
    captions = [_caption(*pair) for pair in zip(first["labels"], first["predictions"], strict=True)]
    note = f"Task: {first['task']}. In brackets, what the network says where it is wrong."
    return _grid(title, rows, captions, note)


def _compare_gradcam(benchmark: str, results: Compared) -> View:
    """Images in the first row, then a row per result, of the same seed."""
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
    """Pictures in rows; captions of the first row are the columns' names, those of other rows the row's name."""
    pictures = []
    for number, (name, cells) in enumerate(rows.items()):
        for column, cell in zip(columns, cells, strict=True):
            caption = name if number else column
            pictures.append({"src": f"data:image/png;base64,{cell}", "alt": f"{name}: {column}", "caption": caption})
    return images(title, pictures, len(columns), note)


def _overlays(run: dict[str, Any], maps: Sequence[Any]) -> list[str]:
    pairs = zip(run["images"], maps, strict=True)
    return [as_text(overlay(from_text(image), np.array(heat, dtype=float))) for image, heat in pairs]


def _caption(label: str, prediction: str) -> str:
    return label if label == prediction else f"{label} ({prediction})"


GRADCAM = Analysis(
    "gradcam",
    "where in images of the latest task the network sees their class",
    _measure_gradcam,
    _draw_gradcam,
    _compare_gradcam,
    _convolutions,
    GradCamSettings(),
    runs=1,
)
