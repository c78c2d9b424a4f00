"""Networks of the examples: a residual network and a small vision transformer for 3x32x32 images, without heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions beside a shortcut. Groups are normalised instead of batches: nothing depends on the samples
    beside, and learners keep no running statistics."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(_groups(outputs), outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(_groups(outputs), outputs),
        )
        same = stride == 1 and inputs == outputs
        self.beside = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.beside(x)).relu()


def resnet18(width: int = 64) -> nn.Module:
    """Eight residual blocks as for CIFAR: no pooling at the beginning. Width 64 is the usual one."""
    norm = nn.GroupNorm(_groups(width), width)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), norm, nn.ReLU()]
    inputs = width
    for stage in range(4):
        for block in range(2):
            outputs = width * 2**stage
            layers.append(Residual(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class VisionTransformer(nn.Module):
    """Patches of 4x4 pixels, six layers of attention, the mean over patches. Nothing is drawn in training, so that a
    GPU takes it as one CUDA graph."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3, side: int = 32, patch: int = 4) -> None:
        super().__init__()
        width = heads * max(1, round(width / heads))
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.register_buffer("place", _waves((side // patch) ** 2, width), persistent=False)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.patches(x).flatten(2).transpose(1, 2) + self.place  # (B, patches, width)
        return self.norm(self.layers(seen)).mean(1)


def _groups(channels: int) -> int:
    """As near to eight as the channels allow."""
    return max(g for g in range(1, min(8, channels) + 1) if channels % g == 0)


def _waves(places: int, width: int) -> Tensor:
    """Where a patch is, told by sines of different lengths; nothing to learn."""
    angle = torch.arange(places).unsqueeze(1) / 100 ** (torch.arange(width) / width)
    return torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())
