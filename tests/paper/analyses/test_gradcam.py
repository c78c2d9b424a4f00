"""Grad-CAM by hand on a linear network, and against PyTorch's own modules."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kenyon.errors import ConfigError
from kenyon.models import Net, alexnet, cifar_cnn, omniglot_cnn
from kenyon.paper.analyses import GradCamSettings, Model, grad_cam
from kenyon.paper.analyses.gradcam import class_maps, find_layer, first_of_each_class, overlay, picture
from tests.paper.analyses.small import apart_model, conv_model, images_of, permuted, plain_head, stream


def test_a_linear_network_by_hand() -> None:
    """A 1x1 convolution of two channels on 2x2 images, a mean over positions, and a head of its own weights.

    Channel c has A_c = w_c x. y = sum_c h_c mean(A_c), so dy/dA_c = h_c / 4 everywhere, a_c = h_c / 4, and the map is
    ReLU(sum_c h_c A_c / 4). With x = [[1, 2], [-3, 4]], w = (1, -2) and h = (2, 0.5): sum_c h_c w_c = 2 - 1 = 1, so
    the map is ReLU(x / 4) = [[0.25, 0.5], [0, 1]].
    """
    met = stream(side=2)
    net = Net(
        nn.Sequential(
            OrderedDict(conv=nn.Conv2d(1, 2, 1, bias=False), mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        ),
        (1, 2, 2),
        met.class_counts,
    )
    rows = torch.zeros(1, net.layout.size)
    net.layout.view(rows, "conv.weight").copy_(torch.tensor([1.0, -2.0]).view(1, 1, 2, 1, 1, 1))
    net.layout.view(rows, "head.weight")[0, 0, 1] = torch.tensor([2.0, 0.5])
    x = torch.tensor([[[[1.0, 2.0], [-3.0, 4.0]]]])
    maps, logits = class_maps(Model(net, rows, met), x, 0, find_layer(net.backbone), torch.tensor([1]))
    torch.testing.assert_close(maps.relu(), torch.tensor([[[[0.25, 0.5], [0.0, 1.0]]]]))
    # Means of A: 1 and -2, so the logit is 2 - 1 = 1, and 0 for the other class.
    torch.testing.assert_close(logits, torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize("layer", ["", "conv1", "relu1", "conv2"])
@pytest.mark.parametrize("gate", [False, True])
def test_against_modules(layer: str, gate: bool) -> None:
    """Each learner as a module with its weights, cut at the layer."""
    model = conv_model(learners=2, gate=gate)
    name, task = find_layer(model.net.backbone, layer), 1
    x, labels = images_of(model, "test", task)
    maps, _ = class_maps(model, x, task, name, labels)
    views = model.net.layout.views(model.rows[0])
    acts, seen = [], []
    for k in range(2):
        learner = nn.Sequential(OrderedDict((n, type(m)(*_args(m))) for n, m in model.net.backbone.named_children()))
        learner.load_state_dict({n: views[n][k] for n in model.net.backbone_names})
        learner.eval()
        cut = list(learner._modules).index(name) + 1
        act = learner[:cut](x).detach().requires_grad_()
        scale = torch.sigmoid(100 * views["gate"][k, task]) if gate else 1.0
        acts.append(act)
        seen.append(learner[cut:](act) * scale)
    logits = plain_head(model, model.rows[0], task, sum(seen))  # type: ignore[arg-type]
    for k, act in enumerate(acts):
        for n, c in enumerate(labels.tolist()):
            (g,) = torch.autograd.grad(logits[n, c], act, retain_graph=True)
            expected = sum(g[n, ch].mean() * act[n, ch] for ch in range(act.shape[1]))
            torch.testing.assert_close(maps[k, n], expected, rtol=1e-4, atol=1e-6)


def _args(layer: nn.Module) -> tuple[object, ...]:
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (2,) if isinstance(layer, nn.MaxPool2d) else ()


def test_learners_alone_and_together() -> None:
    model = conv_model(learners=3)
    s = GradCamSettings(images=5, layer="conv2")
    found, other = grad_cam(model, s), grad_cam(permuted(model, [2, 0, 1]), s)
    np.testing.assert_allclose(other.maps, found.maps, atol=1e-6)
    np.testing.assert_allclose(other.own_maps, found.own_maps[[2, 0, 1]], atol=1e-6)
    assert found.maps.shape == (5, 3, 3) and found.own_maps.shape == (3, 5, 3, 3)
    assert (found.maps <= found.own_maps.sum(0) + 1e-6).all()  # the ReLU of a sum is at most the sum of ReLUs
    assert found.labels == ["c", "d", "e", "c", "d"] and found.task == 1


def test_of_independent_networks_each_has_its_part() -> None:
    model = apart_model(2)
    both = grad_cam(model, GradCamSettings(images=3))
    for m in range(2):
        alone = grad_cam(Model(model.net, model.rows[m : m + 1], model.stream), GradCamSettings(images=3))
        np.testing.assert_allclose(both.own_maps[m], alone.maps, atol=1e-6)


def test_images_are_those_of_the_stream() -> None:
    model = conv_model()
    found = grad_cam(model, GradCamSettings(images=4, task=1))
    split = model.stream.tasks[0].test
    pick = first_of_each_class(split.labels, 4)
    np.testing.assert_array_equal(found.images, split.images[pick].permute(0, 2, 3, 1).numpy())


def test_the_predicted_class() -> None:
    model = conv_model()
    x, _ = images_of(model, "test", 1)
    _, logits = class_maps(model, x, 1, "relu2", None)
    said = logits.argmax(-1)
    torch.testing.assert_close(class_maps(model, x, 1, "relu2", None), class_maps(model, x, 1, "relu2", said))
    asked = grad_cam(model, GradCamSettings(target="prediction"))
    assert set(asked.predictions) <= {"c", "d", "e"}


def test_first_of_each_class() -> None:
    assert first_of_each_class(torch.tensor([1, 1, 0, 2, 0, 1]), 5).tolist() == [2, 0, 3, 4, 1]


def test_values_and_running_statistics() -> None:
    """Of float images with four channels: statistics and constants are those of the task, pictures go from 0 to 1."""
    met = stream()
    pool = torch.randn(len(met.pool), 4, 6, 6, generator=torch.Generator().manual_seed(2))
    parts = ("train", "validation", "test")
    tasks = [replace(t, **{part: replace(getattr(t, part), pool=pool) for part in parts}) for t in met.tasks]
    met = replace(met, tasks=tuple(tasks), mean=(), std=())
    backbone = nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    net = Net(backbone, met.input_shape, met.class_counts, learners=2)
    rows = net.initial([0])
    net.layout.view(rows, "1.running_mean")[:, 1] = 0.7
    model = Model(net, rows, met)
    images = pool[met.tasks[1].test.index[:5]]
    _, said = class_maps(model, images, 1, "2", None)
    torch.testing.assert_close(said, net.forward(rows[0], images, torch.tensor([1])).logits[:, :3].detach())
    found = grad_cam(model, GradCamSettings(layer="2", images=4))
    assert found.images.shape == (4, 6, 6, 1) and (found.images.reshape(4, -1).min(1) == 0).all()


def test_layers() -> None:
    assert find_layer(cifar_cnn(2)) == "relu6"
    assert find_layer(omniglot_cnn(2, 5)) == "conv4"  # no ReLU behind it
    with torch.device("meta"):
        assert find_layer(alexnet(2)) == "relu5"
    model = conv_model()
    with pytest.raises(ConfigError, match="relu2"):
        grad_cam(model, GradCamSettings(layer="relu22"))
    with pytest.raises(ConfigError, match="no maps"):
        grad_cam(model, GradCamSettings(layer="dense1"))
    with pytest.raises(ConfigError, match="no task 3"):
        grad_cam(model, GradCamSettings(task=3))


def test_dense_networks_have_no_maps(results: Path) -> None:
    with pytest.raises(ConfigError, match="needs a convolution"):
        grad_cam(Model.load(results, "digits", "ewc", device="cpu"))


def test_layers_that_change_their_input_in_place() -> None:
    model = conv_model()
    changed = nn.Sequential(
        OrderedDict(
            (n, nn.ReLU(inplace=True) if isinstance(m, nn.ReLU) else m)
            for n, m in model.net.backbone.named_children()
        )
    )
    net = Net(changed, model.stream.input_shape, model.stream.class_counts, learners=2)
    s = GradCamSettings(layer="conv2")
    np.testing.assert_allclose(grad_cam(replace(model, net=net), s).maps, grad_cam(model, s).maps, atol=1e-6)


def test_overlays() -> None:
    image = np.full((4, 4, 1), 100, dtype=np.uint8)
    heat = np.zeros((2, 2))
    cold = overlay(image, heat)
    assert cold.shape == (4, 4, 3) and (cold == cold[0, 0]).all()  # nothing stands out of a map without heat
    heat[1, 1] = 5.0
    warm = overlay(image, heat)
    assert int(warm[3, 3, 0]) > int(warm[0, 0, 0])  # red where it is hot
    assert max(picture(np.zeros((300, 200, 3), dtype=np.uint8)).shape) == 128


def test_a_layer_under_two_names() -> None:
    """A convolution that sees the images, then its own maps, and lends its weight to a third: as the modules say, at
    every asking, and for every learner.
    """

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(2, 2, 3, padding=1)
            self.again, self.last = self.first, nn.Conv2d(2, 2, 3, bias=False)
            self.last.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.again(self.first(x).relu()).relu()).flatten(1)

    met = stream()
    net = Net(Shared(), met.input_shape, met.class_counts, learners=2)
    model = Model(net, net.initial([0]), met)
    x, labels = images_of(model, "test", 0)
    views, own = net.layout.views(model.rows[0]), []
    for k in range(2):
        learner = Shared()
        learner.load_state_dict({name: views[name][k] for name in net.backbone_names}, strict=False)
        own.append(learner(x))
    expected = plain_head(model, model.rows[0], 0, own[0] + own[1])
    for _ in range(2):
        _, logits = class_maps(model, x, 0, "last", labels)
        torch.testing.assert_close(logits, expected.detach())
