"""Backbones of every kind that users bring: what each is, what samples it takes, what Kenyon should do with it.

Sizes are small and awkward on purpose: odd widths, rows that are not aligned, kernels and strides that no fast path
was written for. `ZOO` is by name; a backbone with `refused` cannot be used, and the words say why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIGNAL, IMAGE, LARGE, VOLUME, TOKENS, VECTOR = (2, 19), (3, 12, 12), (3, 32, 32), (1, 6, 7, 6), (9,), (11,)
VOCABULARY = 23


@dataclass(frozen=True)
class Backbone:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    tokens: bool = False
    draws: bool = False  # random numbers in training: dropout
    always: bool = False  # draws in tests too: dropout as a function
    refused: str = ""  # part of the message, where it cannot be used on any device
    unmoved: tuple[str, ...] = ()  # parameters that have no gradient, by the end of their names

    def idle(self, parameter: str) -> bool:
        return parameter.endswith(self.unmoved) if self.unmoved else False


ZOO: dict[str, Backbone] = {}


def add(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE, **options: object) -> None:
    assert name not in ZOO, name
    ZOO[name] = Backbone(build, shape, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------ dense layers


def mlp(inputs: int, *widths: int, act: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    for before, width in zip((inputs, *widths), widths, strict=False):
        layers += [nn.Linear(before, width, bias=bias), act()]
    return nn.Sequential(*layers)


for width in (3, 15, 33, 70):
    add(f"mlp-{width}", partial(mlp, 11, width, width), VECTOR)
add("mlp-one-unit", partial(mlp, 11, 1), VECTOR)
add("mlp-no-bias", partial(mlp, 11, 17, 9, bias=False), VECTOR)
add("mlp-deep", partial(mlp, 11, *(13,) * 9, act=nn.Tanh), VECTOR)
add("linear-alone", partial(nn.Linear, 11, 7), VECTOR)
add("mlp-gelu-images", lambda: nn.Sequential(nn.Flatten(), mlp(432, 21, 5, act=nn.GELU)), IMAGE)
add("two-dense-32x32", lambda: nn.Sequential(nn.Flatten(), *mlp(3072, 61, 33)), LARGE)
add("mlp-dropout", lambda: nn.Sequential(nn.Linear(11, 37), nn.ReLU(), nn.Dropout(0.3), nn.Linear(37, 9)), VECTOR)
add("mlp-prelu", lambda: nn.Sequential(nn.Linear(11, 15), nn.PReLU(15), nn.Linear(15, 5)), VECTOR)
add("mlp-glu", lambda: nn.Sequential(nn.Linear(11, 34), nn.GLU(), nn.Linear(17, 5)), VECTOR)
add("linear-on-maps", lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Flatten(), nn.Linear(180, 9)), IMAGE)


# ------------------------------------------------------------------ convolutions one after another


def conv(
    channels: int = 15,
    kernel: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    *,
    shape: tuple[int, ...] = IMAGE,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    behind: tuple[nn.Module, ...] = (nn.ReLU(),),
    mode: str = "zeros",
) -> nn.Module:
    """A convolution, what is behind it, a second one of kernel 1, and a dense layer."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], channels, kernel, stride, padding, dilation, groups, bias, mode),
        *behind,
        nn.Conv2d(channels, 9, 1, bias=bias),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        features = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, 13))


for width in (3, 21, 61, 70):
    add(f"conv-{width}", partial(conv, width))
for kernel, stride in ((1, 1), (2, 1), (2, 2), (4, 3), (5, 2), (7, 3)):
    add(f"conv-k{kernel}-s{stride}", partial(conv, 15, kernel, stride))
for kernel, stride in ((9, 3), (11, 4), (11, 5)):
    add(f"conv-k{kernel}-s{stride}", partial(conv, 21, kernel, stride, shape=LARGE), LARGE)
add("conv-padded", partial(conv, 7, 5, 2, padding=3))
add("conv-same", partial(conv, 7, 5, padding="same"))
add("conv-valid", partial(conv, 7, 3, padding="valid"))
add("conv-dilated", partial(conv, 15, 3, dilation=2))
add("conv-dilated-padded", partial(conv, 15, 3, 2, padding=3, dilation=3))
add("conv-oblong", partial(conv, 5, (1, 5), (2, 1)))
add("conv-no-bias", partial(conv, 21, 3, bias=False))
add("conv-grouped-first", partial(conv, 9, 3, groups=3))
add("conv-reflect", partial(conv, 5, 3, padding=1, mode="reflect"))
add("conv-circular", partial(conv, 5, 3, padding=1, mode="circular"))
add("conv-pool", partial(conv, 15, 3, padding=1, behind=(nn.ReLU(), nn.MaxPool2d(2))))
add("conv-pool-odd", partial(conv, 15, 4, behind=(nn.ReLU(), nn.MaxPool2d(2))))
add("conv-pool-3-2", partial(conv, 15, 3, behind=(nn.ReLU(), nn.MaxPool2d(3, 2))))
add("conv-pool-padded", partial(conv, 15, 3, behind=(nn.MaxPool2d(3, 2, 1), nn.ReLU())))
add("conv-pool-ceil", partial(conv, 15, 4, behind=(nn.MaxPool2d(2, ceil_mode=True), nn.Tanh())))
add("conv-average", partial(conv, 15, 3, behind=(nn.AvgPool2d(2), nn.SiLU())))
add("conv-adaptive", partial(conv, 15, 3, behind=(nn.LeakyReLU(), nn.AdaptiveAvgPool2d(3))))
add("conv-dropout", partial(conv, 15, 3, behind=(nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25))))
add("conv-dropout-before-pool", partial(conv, 15, 3, behind=(nn.ReLU(), nn.Dropout(0.25), nn.MaxPool2d(2))))
add("conv-global", lambda: nn.Sequential(nn.Conv2d(3, 31, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
add(
    "conv-five",
    lambda: nn.Sequential(
        *(m for i, o in ((3, 7), (7, 15), (15, 9), (9, 21), (21, 5)) for m in (nn.Conv2d(i, o, 3), nn.ReLU())),
        nn.Flatten(),
    ),
)
add(
    "conv-depthwise",
    lambda: nn.Sequential(
        nn.Conv2d(3, 21, 1), nn.Conv2d(21, 21, 3, groups=21), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    ),
)
add(
    "conv-grouped",
    lambda: nn.Sequential(nn.Conv2d(3, 15, 3), nn.ReLU(), nn.Conv2d(15, 35, 3, 2, groups=5), nn.ReLU(), nn.Flatten()),
)
add(
    "conv-transposed",
    lambda: nn.Sequential(
        nn.Conv2d(3, 7, 3, 2), nn.ReLU(), nn.ConvTranspose2d(7, 5, 3, 2, output_padding=1), nn.ReLU(), nn.Flatten()
    ),
)
add(
    "conv-1d",
    lambda: nn.Sequential(nn.Conv1d(2, 15, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(15, 7, 3), nn.Flatten()),
    SIGNAL,
)
add(
    "conv-1d-dilated",
    lambda: nn.Sequential(
        nn.Conv1d(2, 9, 3, dilation=3, padding="same"), nn.GELU(), nn.AdaptiveAvgPool1d(2), nn.Flatten()
    ),
    SIGNAL,
)
add(
    "conv-3d",
    lambda: nn.Sequential(nn.Conv3d(1, 7, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.LazyLinear(9)),
    VOLUME,
    refused="has no shape yet",
)
add(
    "conv-3d-dense",
    lambda: nn.Sequential(nn.Conv3d(1, 7, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(7 * 2 * 2 * 2, 9)),
    VOLUME,
)


# ------------------------------------------------------------------ with a graph of their own


class Block(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module], groups: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=groups, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([norm(channels), norm(channels)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(channels, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        out: Tensor = (self.norms[1](self.second(y)) + self.short(x)).relu()
        return out


def residual(channels: int, norm: Callable[[int], nn.Module], **options: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        Block(channels, norm, **options),
        Block(channels, norm, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class ChannelsLast(nn.Module):
    """Normalization by cuDNN kernels that load four numbers at once; one number before shifts all parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.PReLU()
        self.body = residual(channels, nn.BatchNorm2d).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.gain(x).contiguous(memory_format=torch.channels_last))
        return out


add("resnet-batchnorm-channels-last-8", partial(ChannelsLast, 8))
add("resnet-batchnorm-channels-last-64", partial(ChannelsLast, 64))
for width in (15, 21, 61, 64):
    add(f"resnet-batchnorm-{width}", partial(residual, width, nn.BatchNorm2d))
add("resnet-groupnorm-21", partial(residual, 21, partial(nn.GroupNorm, 3)))
add("resnet-instancenorm-9", partial(residual, 9, partial(nn.InstanceNorm2d, affine=True)))
add("resnet-instancenorm-plain", partial(residual, 5, nn.InstanceNorm2d))
add("resnet-grouped-15", partial(residual, 15, nn.BatchNorm2d, groups=5))
add("resnet-no-norm", partial(residual, 33, lambda _: nn.Identity()))
add("resnet-response-norm", partial(residual, 7, lambda _: nn.LocalResponseNorm(3)))
add("resnet-batchnorm-plain", partial(residual, 7, partial(nn.BatchNorm2d, affine=False)))
add("resnet-batchnorm-cumulative", partial(residual, 7, partial(nn.BatchNorm2d, momentum=None)))
add(
    "batchnorm-without-statistics",
    partial(residual, 7, partial(nn.BatchNorm2d, track_running_stats=False)),
    refused="track_running_stats=True",
)
add(
    "batchnorm-dense-37",
    lambda: nn.Sequential(nn.Linear(11, 37), nn.BatchNorm1d(37), nn.ReLU(), nn.Linear(37, 5)),
    VECTOR,
    unmoved=("0.bias",),  # which the normalization takes away
)
add(
    "batchnorm-3d",
    lambda: nn.Sequential(nn.Conv3d(1, 5, 3), nn.BatchNorm3d(5), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
    VOLUME,
)
add(
    "batchnorm-dropout",
    lambda: nn.Sequential(
        nn.Conv2d(3, 13, 3), nn.BatchNorm2d(13), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    draws=True,
)


def held_batchnorm() -> nn.Module:
    """A module in eval() inside one in train(): its statistics are constants, its parameters frozen."""
    module = residual(15, nn.BatchNorm2d)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval().requires_grad_(False)
    return module


add("batchnorm-held", held_batchnorm)
add(
    "layernorm-33",
    lambda: nn.Sequential(nn.Linear(11, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 7)),
    VECTOR,
)
add("rmsnorm-17", lambda: nn.Sequential(nn.Linear(11, 17), nn.RMSNorm(17), nn.SiLU(), nn.Linear(17, 7)), VECTOR)
add(
    "layernorm-signal",
    lambda: nn.Sequential(nn.Conv1d(2, 5, 4), nn.GELU(), nn.LayerNorm([5, 16]), nn.Flatten(), nn.Linear(80, 7)),
    SIGNAL,
)


class Inverted(nn.Module):
    """Expansion, a depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, channels: int = 11, times: int = 3) -> None:
        super().__init__()
        wide = channels * times
        self.stem = nn.Conv2d(3, channels, 3, 2, 1)
        self.up, self.each = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, wide, 5, padding=2, groups=wide)
        self.squeeze, self.excite = nn.Linear(wide, 5), nn.Linear(5, wide)
        self.down, self.norm = nn.Conv2d(wide, channels, 1), nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.hardswish(self.each(self.up(x)))
        y = y * self.excite(self.squeeze(y.mean((2, 3))).relu()).sigmoid()[..., None, None]
        return (x + self.norm(self.down(y))).mean((2, 3))


class ConvNext(nn.Module):
    """Kernels of 7, LayerNorm over channels, a scale of every channel as a bare parameter."""

    def __init__(self, channels: int = 13) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.each = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.up, self.down = nn.LayerNorm(channels), nn.Linear(channels, 39), nn.Linear(39, channels)
        self.scale = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.each(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return (x + y.permute(0, 3, 1, 2)).mean((2, 3))


class Concatenated(nn.Module):
    def __init__(self, growth: int = 7) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3 + i * growth, growth, 3, padding=1) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return F.adaptive_avg_pool2d(x, 2).flatten(1)


class Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 5, 3, 2, 1), nn.Conv2d(5, 11, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(11, 5, 2, 2), nn.Conv2d(10, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x).relu()
        second = self.up(self.deep(first).relu())
        y = F.interpolate(self.out(torch.cat([first, second], 1)), scale_factor=2, mode="bilinear")
        return F.avg_pool2d(y, 4).flatten(1)


add("inverted-residual", Inverted)
add("convnext", ConvNext)
add("densenet", Concatenated)
add("u-net", Hourglass)
add(
    "pixel-shuffle",
    lambda: nn.Sequential(nn.Conv2d(3, 20, 3), nn.PixelShuffle(2), nn.Conv2d(5, 3, 5, 5), nn.Flatten()),
)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.cells = kind(2, 7, batch_first=True, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cells(x.transpose(1, 2))[0][:, -1]
        return out


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, 9)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 9)
        for t in range(6):
            h = self.cell(x[:, :, t], h)
        return h


add("rnn", partial(Recurrent, nn.RNN), SIGNAL)
add("gru", partial(Recurrent, nn.GRU), SIGNAL)
add("lstm", partial(Recurrent, nn.LSTM), SIGNAL)
add(
    "lstm-both-ways",
    partial(Recurrent, nn.LSTM, bidirectional=True, num_layers=2),
    SIGNAL,
    unmoved=("hh_l1_reverse",),
)
add("lstm-projected", partial(Recurrent, nn.LSTM, proj_size=5), SIGNAL)
add("gru-dropout", partial(Recurrent, nn.GRU, num_layers=2, dropout=0.3), SIGNAL, draws=True)
add("gru-cell", ByHand, SIGNAL)


class Vision(nn.Module):
    """Patches, a class token and positions as bare parameters."""

    def __init__(self, width: int = 30, heads: int = 3, dropout: float = 0.0, first: bool = True) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token, self.places = (nn.Parameter(torch.empty(1, n, width)) for n in (1, 10))
        self.block = nn.TransformerEncoderLayer(width, heads, 37, dropout, "gelu", norm_first=first, batch_first=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token, std=0.1)
        nn.init.normal_(self.places, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        out: Tensor = self.block(x)[:, 0]
        return out


class Words(nn.Module):
    def __init__(self, bag: bool = False, sparse: bool = False) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.embedding, self.dense = kind(VOCABULARY, 13, sparse=sparse), nn.Linear(13, 7)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedding(x)
        return self.dense(e if e.ndim == 2 else e.mean(1)).tanh()


class Language(nn.Module):
    """Tied weights: what embeds also reads out; positions are a constant; a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 18)
        self.block = nn.TransformerEncoderLayer(18, 2, 25, dropout=0.0, batch_first=True)
        self.out = nn.Linear(18, VOCABULARY, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("places", torch.linspace(-1, 1, 9 * 18).view(9, 18), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        y = self.block(self.embedding(x) + self.places, src_mask=mask)
        out: Tensor = self.out(y[:, -1])
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(2, 36), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.transpose(1, 2)).unflatten(2, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2).mean(1))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 15, 3, 3)
        self.across, self.within = nn.Linear(16, 16), nn.Linear(15, 15)
        self.norms = nn.ModuleList([nn.LayerNorm(15), nn.LayerNorm(15)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + F.gelu(self.across(self.norms[0](x).transpose(1, 2))).transpose(1, 2)
        return (x + F.gelu(self.within(self.norms[1](x)))).mean(1)


add("vit", Vision)
add("vit-post-norm", partial(Vision, 21, 3, 0.0, False))
add("vit-dropout", partial(Vision, 30, 3, 0.1), draws=True)
add("text-embedding", Words, TOKENS, tokens=True)
add("text-bag", partial(Words, bag=True), TOKENS, tokens=True)
add("text-sparse", partial(Words, sparse=True), TOKENS, tokens=True)
add("language-tied", Language, TOKENS, tokens=True)
add("attention-causal", Attention, SIGNAL)
add("mixer", Mixer)


# ------------------------------------------------------------------ what else a module may hold


class Scaled(nn.Module):
    """Bare parameters of every size, one of them a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.empty(()))
        self.matrix, self.vector = nn.Parameter(torch.empty(11, 19)), nn.Parameter(torch.empty(19))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.one, 0.9)
        nn.init.xavier_uniform_(self.matrix)
        nn.init.zeros_(self.vector)

    def forward(self, x: Tensor) -> Tensor:
        return (self.one * x @ self.matrix + self.vector).tanh()


class Undrawable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(11, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Fourier(nn.Module):
    """A layer in the domain of frequencies, with real weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv1d(2, 5, 3, padding=1), nn.Linear(5, 7)
        self.gain = nn.Parameter(torch.empty(5, 10))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gain, 1.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.irfft(torch.fft.rfft(self.stem(x)) * self.gain, n=x.shape[-1])
        return self.out(y.relu().mean(2))


class Solved(nn.Module):
    """Linear algebra that GPUs have no bfloat16 for."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(11, 9)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x).tanh().view(-1, 3, 3)
        a = y @ y.transpose(1, 2) + torch.eye(3, dtype=y.dtype, device=y.device)
        return torch.linalg.solve(a, y).flatten(1)


class Double(nn.Module):
    """A table in float64 among its constants."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(11, 7)
        self.register_buffer("table", torch.linspace(0, 1, 11, dtype=torch.float64))
        self.register_buffer("order", torch.arange(11).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x[:, self.order] * self.table.to(x.dtype))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.turn = nn.Linear(11, 6), nn.Parameter(torch.zeros(3, dtype=torch.complex64))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.turn)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.view_as_complex(self.dense(x).view(-1, 3, 2)) * self.turn).abs()


class Experts(nn.Module):
    """A mixture of experts: values decide which weights a sample uses."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(11, 3), nn.ModuleList([nn.Linear(11, 7) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(1).max(1)
        out = x.new_zeros(len(x), 7)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, mine, expert(x[mine]))
        return out * share.unsqueeze(1)


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).tanh()
        return y * 2 if float(y.detach().sum()) > 0 else y


class Dropped(nn.Module):
    """Dropout of many kinds, as layers and as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 9, 3), nn.Linear(9, 15)
        self.maps, self.units = nn.Dropout2d(0.2), nn.AlphaDropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.maps(self.conv(x).relu()).mean((2, 3))
        return F.dropout(self.units(self.dense(y)), 0.2, self.training)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(3, 21, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(84, 9))
    module[0].requires_grad_(False)
    return module


def shared_layer() -> nn.Module:
    layer = nn.Linear(11, 11)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(11, 5))


def weight_norm() -> nn.Module:
    module = nn.Sequential(nn.Linear(11, 7), nn.Tanh())
    nn.utils.parametrizations.weight_norm(module[0])
    return module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(11, 11), nn.Linear(11, 11)
        self.back.weight = self.there.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.there(x).tanh()).tanh()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(11, 5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.dense(x)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(11, 13)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        y[:, :5] = y[:, 5:10] * 2
        return y.relu_()


add("bare-parameters", Scaled, VECTOR)
add("undrawable", Undrawable, VECTOR, refused="has no reset_parameters")
add("tied", Tied, VECTOR)
add("shared-layer", shared_layer, VECTOR)
add("frozen-part", frozen)
add("frozen-whole", lambda: nn.Linear(11, 5).requires_grad_(False), VECTOR, refused="is frozen")
add("fft", Fourier, SIGNAL)
add("solved", Solved, VECTOR)
add("constants-of-all-types", Double, VECTOR)
add("complex-weights", Complex, VECTOR, refused="complex numbers")
add("experts", Experts, VECTOR)
add("looks-at-values", Looking, VECTOR)
add("dropout-of-all-kinds", Dropped, draws=True, always=True)
add("weight-norm", weight_norm, VECTOR, refused="reset_parameters")
add("counts-its-calls", Counting, VECTOR, refused="changes while it computes")
add("in-place", InPlace, VECTOR)
add("double-weights", lambda: nn.Linear(11, 5).double(), VECTOR, refused="make them float32")
add("no-parameters", nn.Flatten, IMAGE, refused="no parameters")
add("wrong-size", partial(nn.Linear, 12, 5), VECTOR, refused="cannot take a batch")
add("maps-not-vectors", partial(nn.Conv2d, 3, 5, 3), IMAGE, refused="one feature vector a sample")


def samples(name: str, count: int) -> Tensor:
    """Inputs for a backbone, whose first number tells the class: something can be learned of them."""
    backbone = ZOO[name]
    generator = torch.Generator().manual_seed(len(name))
    if backbone.tokens:
        x = torch.randint(0, VOCABULARY, (count, *backbone.shape), generator=generator)
        x[:, :4] = (torch.arange(count) % 4).unsqueeze(1)
        return x
    x = torch.randn(count, prod(backbone.shape), generator=generator)
    x += (torch.arange(count) % 4 - 1.5).unsqueeze(1) * torch.linspace(-1, 1, x.shape[1])
    return x.view(count, *backbone.shape)
