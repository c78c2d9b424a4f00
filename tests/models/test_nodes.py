"""Groups of hidden nodes, and activations of nodes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.models import Net, alexnet, cifar_cnn, digits_mlp, omniglot_cnn
from kenyon.models.nodes import Nodes, join_layers
from kenyon.random import Noise

BACKBONES = {
    "cifar": (lambda: cifar_cnn(2), (3, 32, 32)),
    "digits": (lambda: digits_mlp(5), (1, 8, 8)),
    "omniglot": (lambda: omniglot_cnn(3), (1, 28, 28)),
    "alexnet": (lambda: alexnet(1), (3, 64, 64)),
    "plain": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.Flatten(), nn.Linear(108, 4)), (1, 8, 8)),
}


def make(kind: str, K: int = 2) -> tuple[Net, Nodes, Tensor]:
    build, shape = BACKBONES[kind]
    net = Net(build(), shape, (2, 2), learners=K)
    return net, Nodes(net), net.initial([3, 4])


@pytest.mark.parametrize("kind", BACKBONES)
def test_groups_hold_every_weight_of_the_backbone_once(kind: str) -> None:
    net, nodes, theta = make(kind)
    rows = torch.zeros_like(theta)
    for layer in nodes.layers:
        groups = nodes.groups(theta, layer)
        assert groups.shape == (2, 2, layer.size, layer.fan_in + layer.bias)
        nodes.put(rows, layer, groups)
    Pp = net.layout.protected
    assert torch.equal(rows[:, :Pp], theta[:, :Pp]) and not rows[:, Pp:].any()
    numbers = torch.arange(2 * nodes.count).view(2, nodes.count)
    assert torch.equal(join_layers(nodes.per_layer(numbers)), numbers)


@pytest.mark.parametrize("kind", BACKBONES)
def test_activations_are_those_of_the_modules(kind: str) -> None:
    """After the nonlinearity, before pooling and dropout; mean over the map, sum over the batch."""
    net, nodes, theta = make(kind)
    shape = BACKBONES[kind][1]
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    params = {name: net.layout.view(theta[1], name) for name in net.backbone_names}
    ours = nodes.activations(params, images, None).split([2 * layer.size for layer in nodes.layers])
    for k in range(2):
        module = copy.deepcopy(net.backbone).to_empty(device="cpu").eval()
        module.load_state_dict({name: value[k] for name, value in params.items()})
        x, shown = images, []
        with torch.no_grad():
            for layer in module:
                x = layer(x)
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    shown.append(x)
                elif isinstance(layer, nn.ReLU):
                    shown[-1] = x
        for mine, theirs in zip(ours, shown, strict=True):
            expected = theirs.abs().flatten(2).mean(2).sum(0) if theirs.ndim == 4 else theirs.abs().sum(0)
            torch.testing.assert_close(mine.view(2, -1)[k], expected, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_activation() -> None:
    """A linear network: its mean activation with dropout is that without it, and every batch has its own draws."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.Dropout(0.25), nn.Linear(400, 3))
    net = Net(backbone, (1, 8, 8), (2,))
    nodes, theta = Nodes(net), net.initial([0])
    for name in net.backbone_names:
        net.layout.view(theta, name).abs_()
    params = {name: net.layout.view(theta[0], name) for name in net.backbone_names}
    images = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    still = nodes.activations(params, images, None)
    keys = torch.tensor([12345])
    drawn = [nodes.activations(params, images, Noise.at(keys, torch.tensor([n]))) for n in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0][:400], still[:400])
    torch.testing.assert_close(drawn[0][400:], still[400:], rtol=0.02, atol=0.0)
    assert not torch.equal(drawn[0][400:], still[400:])


def test_the_input_mask_selects_whole_nodes_of_the_layer_before() -> None:
    """A channel is the input of all taps of a kernel, and of all positions of a flattened map."""
    _, nodes, _ = make("cifar", K=1)
    before = torch.tensor([[[True, False]], [[False, True]]])  # (R, K, 2 channels)
    conv2 = nodes.layers[1]
    inputs = nodes.input_mask(conv2, before)[:, 0, 0]
    assert inputs.shape == (2, 19) and inputs[0].tolist() == [True] * 9 + [False] * 9 + [True]
    dense = nodes.layers[-1]
    channels = torch.zeros(2, 1, 8, dtype=torch.bool)
    channels[:, :, 3] = True
    inputs = nodes.input_mask(dense, channels)[0, 0, 0]
    assert inputs.nonzero().flatten().tolist() == [*range(48, 64), 128]
    assert nodes.input_mask(nodes.layers[0], None).all()


def test_backbones_with_unknown_layers_are_refused() -> None:
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4)), (1, 8, 8), (2,))
    with pytest.raises(ConfigError, match=r"nn\.Sequential"):
        Nodes(net)
