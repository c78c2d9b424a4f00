"""Space-to-depth: strided convolutions of images as convolutions with stride 1 of images with fewer, deeper pixels.

Libraries' kernels take eight channels or more, and an image has three: in a convolution with 11 x 11 windows and
stride 4, as AlexNet's first, five products in eight are with padding. Here s x s pixels become one pixel with
s * s * C channels, and the weights likewise, with zeros where a window ends inside such a pixel: the same products,
in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padding_of
from kenyon.backends.triton.fused import works
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

FEW = 4  # channels, at most: with more, less is lost to padding
TILE = 2048  # numbers that a program writes


@dataclass(frozen=True)
class SpaceToDepth:
    """A convolution in this form; sizes are (down, right)."""

    channels: int
    stride: int
    padding: tuple[int, int]
    window: tuple[int, int]  # in pixels
    deep: tuple[int, int]  # the window, in deep pixels

    @classmethod
    def of(cls, layer: nn.Conv2d) -> SpaceToDepth | None:
        """Return the form of a layer, or None if it would not be faster."""
        stride, window, padding = layer.stride[0], (layer.kernel_size[0], layer.kernel_size[1]), padding_of(layer)
        if (
            padding is None
            or not 1 < stride == layer.stride[1] <= min(window)
            or layer.dilation != (1, 1)
            or layer.groups != 1
            or layer.in_channels > FEW
        ):
            return None
        deep = (-(-window[0] // stride), -(-window[1] // stride))
        return cls(layer.in_channels, stride, padding, window, deep)

    @property
    def pixel(self) -> tuple[int, int, int]:
        """The shape (s, s, C) of the pixels in one deep pixel."""
        return self.stride, self.stride, self.channels

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the sides of an image in deep pixels, as far as its windows reach."""
        down, right = (
            (side + 2 * edge - w) // self.stride + deep
            for side, edge, w, deep in zip((height, width), self.padding, self.window, self.deep, strict=True)
        )
        return down, right

    def images(self, x: Tensor) -> Tensor:
        """Convert (B, C', H, W), using its first C channels, to (B, s * s * C, H', W') in channels_last memory."""
        return self._in_one_pass(x) if _available(x) else self.images_plain(x)

    def images_plain(self, x: Tensor) -> Tensor:
        s, (H, W) = self.stride, self.sides(*x.shape[2:])
        (top, left), (height, width) = self.padding, x.shape[2:]
        # Pixels that no window reaches are cut off: the padding may be negative.
        x = F.pad(x[:, : self.channels], (left, W * s - width - left, top, H * s - height - top))
        blocks = x.unflatten(3, (W, s)).unflatten(2, (H, s)).permute(0, 2, 4, 3, 5, 1)  # (B, H', W', s, s, C)
        return blocks.flatten(3).contiguous().permute(0, 3, 1, 2)

    def weights(self, w: Tensor) -> Tensor:
        """Convert (O, C', h, w), using its first C channels, to a view (O, h', w', s, s, C)."""
        s, (h, k), (H, W) = self.stride, self.window, self.deep
        w = F.pad(w[:, : self.channels], (0, W * s - k, 0, H * s - h))
        return w.unflatten(3, (W, s)).unflatten(2, (H, s)).permute(0, 2, 4, 3, 5, 1)

    def flat(self, w: Tensor) -> Tensor:
        """Convert (O, s * s * C, h', w') back to (O, C, h, w)."""
        h, k = self.window
        blocks = w.permute(0, 2, 3, 1).unflatten(3, self.pixel).permute(0, 5, 1, 3, 2, 4)
        return blocks.flatten(4).flatten(2, 3)[:, :, :h, :k]

    def _in_one_pass(self, x: Tensor) -> Tensor:
        B, (H, W) = len(x), self.sides(*x.shape[2:])
        out = x.new_empty(B, H, W, self.stride**2 * self.channels)
        each = out[0].numel()
        with torch.cuda.device(x.get_device()):
            _space_to_depth[(B, -(-each // TILE))](
                x, out, *x.stride(), x.shape[2], x.shape[3], *self.padding, W, self.stride, self.channels, each, TILE,
                num_warps=4,
            )  # fmt: skip
        return out.permute(0, 3, 1, 2)


def _available(x: Tensor) -> bool:
    return (
        triton is not None and not x.requires_grad and x.dtype in (torch.float32, torch.bfloat16) and works(x.device)
    )


@jit
def _space_to_depth(
    x: tensor, out: tensor, IMAGE: tensor, CHANNEL: tensor, ROW: tensor, COLUMN: tensor,
    height: constexpr, width: constexpr, top: constexpr, left: constexpr, W: constexpr,
    S: constexpr, C: constexpr, EACH: constexpr, TILE: constexpr,
) -> None:  # fmt: skip
    """Convert a tile of one image."""
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)  # (H', W', s, s, C)
    c, right, down = at % C, at // C % S, at // (C * S) % S
    column, row = at // (C * S * S) % W * S + right - left, at // (C * S * S * W) * S + down - top
    valid = (at < EACH) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    value = tl.load(x + image * IMAGE + c * CHANNEL + row * ROW + column * COLUMN, mask=valid, other=0.0)
    tl.store(out + image * EACH + at, value, mask=at < EACH)
