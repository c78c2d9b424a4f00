"""How K learners of one backbone are computed. One definition, several executions, equal results.

    looped   every learner and a few samples at a time, side by side on the cores of a CPU (see `apart`)
    stacked  all learners at once: a dense layer is one batched product, a convolution one block-diagonal
             convolution with its channels padded for the tensor cores, or a batched product of windows where that
             is cheaper (see `unfolded`). For a GPU.
    general  any nn.Module, one learner after another through torch.func
    dense    all runs at once, for small dense networks on a CPU: see `dense`
    tiled    all runs at once by our own kernels, for the networks and GPUs that it knows: see `tiled`

Each of the first three maps (parameters of one run with a leading learner axis, images (B, C, H, W), noise) to
features (K, B, F), in the type of the images.
`noise` holds the random bytes of this run and step for dropout; None means evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets import fused
from kenyon.nets.apart import Part, apart
from kenyon.nets.dropout import DropoutSite, cut_noise, dropout_sites, kept, noise_size, padded
from kenyon.nets.frame import Frame
from kenyon.nets.layout import place_of
from kenyon.nets.maps import Maps
from kenyon.nets.pooling import bias_relu_pool
from kenyon.nets.products import dense_layer
from kenyon.nets.unfolded import pays, unfolded

Params = dict[str, Tensor]

# Layers without parameters that treat every channel alike: they need no knowledge of learners.
_CHANNELWISE = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.LeakyReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Identity,
)
# Layers behind which every learner has activations of its own.
_PARTING = (nn.Conv2d, nn.Linear, nn.Flatten)


class Execution(Protocol):
    capturable: bool  # whether a CUDA graph may hold it
    threads: bool  # whether a CPU may compute several runs at the same time
    input_channels: int | None  # images should come with this many channels, the last ones empty; None: as they are
    frame: Frame | None  # into which images that are read in place should be laid

    def noise_size(self, batch: int) -> int:
        """How many random bytes one run needs for one batch."""

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor: ...


def known_layers(backbone: nn.Module) -> bool:
    """Whether looped and stacked execution understand every layer.

    Types are compared exactly: a subclass may compute something else.
    """

    def known(layer: nn.Module) -> bool:
        if type(layer) is nn.Conv2d:
            return layer.groups == 1 and layer.padding_mode == "zeros"
        if type(layer) is nn.Flatten:
            return (layer.start_dim, layer.end_dim) == (1, -1)
        return type(layer) in (nn.Linear, nn.Dropout, *_CHANNELWISE)

    if type(backbone) is not nn.Sequential or not all(known(layer) for layer in backbone):
        return False
    weighty = [layer for layer in backbone if isinstance(layer, (nn.Conv2d, nn.Linear))]
    if len(set(weighty)) != len(weighty):
        return False  # one layer in two places has its weights under one name only
    # Dropout while all learners still see the same images would need an image for each.
    parting = next((layer for layer in backbone if isinstance(layer, (*_PARTING, nn.Dropout))), None)
    return not isinstance(parting, nn.Dropout)


def choose_execution(backbone: nn.Module, shape: tuple[int, ...], learners: int, device: torch.device) -> Execution:
    if not known_layers(backbone):
        return General(backbone, learners)
    assert isinstance(backbone, nn.Sequential)
    if device.type == "cpu":
        return Looped(backbone, shape, learners)
    stacked = Stacked(backbone, shape, learners)
    if device.type == "cuda" and isinstance(backbone[0], nn.Conv2d):
        stacked.input_channels = -(-shape[0] // 8) * 8  # 16 bytes a pixel in bfloat16
    return stacked


@dataclass(frozen=True)
class Step:
    """A layer of the backbone, with what follows a convolution folded into it."""

    name: str
    layer: nn.Module
    site: DropoutSite | None = None  # of the dropout at this step
    number: int = 0  # its place among the sites
    relu: bool = False  # a convolution's own: bias, perhaps ReLU ...
    pool: nn.MaxPool2d | None = None  # ... and pooling, then the dropout of `site`


class Sequential:
    """What looped and stacked execution share: the layers by name, and where dropout acts."""

    capturable = True
    threads = True
    input_channels: int | None = None
    frame: Frame | None = None

    def __init__(
        self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int, *, folds: bool = False
    ) -> None:
        """`folds`: whether ReLU, pooling and dropout behind a convolution become part of it."""
        # Not named_children(), which leaves out a layer object when it comes a second time.
        layers = [(n, m) for n, m in backbone._modules.items() if m is not None and not _idle(m)]
        self.learners = learners
        self.sites = dropout_sites([m for _, m in layers], shape, learners)
        self.steps = self._plan(layers, folds)

    def _plan(self, layers: list[tuple[str, nn.Module]], folds: bool) -> list[Step]:
        steps: list[Step] = []
        sites = iter(enumerate(self.sites))
        for name, layer in layers:
            last = steps[-1] if steps else None
            behind = last if folds and last is not None and isinstance(last.layer, nn.Conv2d) else None
            if behind and isinstance(layer, nn.ReLU) and not behind.relu and not behind.pool:
                steps[-1] = replace(behind, relu=True)
            elif behind and isinstance(layer, nn.MaxPool2d) and _pools(layer) and not behind.pool:
                steps[-1] = replace(behind, pool=layer)
            elif isinstance(layer, nn.Dropout):
                number, site = next(sites)
                if behind and behind.pool and behind.site is None:
                    steps[-1] = replace(behind, site=site, number=number)
                else:
                    steps.append(Step(name, layer, site, number))
            else:
                steps.append(Step(name, layer))
        return steps

    def noise_size(self, batch: int) -> int:
        return noise_size(self.sites, batch)

    def bytes_of(self, noise: Tensor | None, batch: int) -> list[Tensor | None]:
        return [None] * len(self.sites) if noise is None else [*cut_noise(noise, self.sites, batch)]


class Looped(Sequential):
    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        pieces = self.bytes_of(noise, len(images))

        def features(part: Part, mine: Params) -> Tensor:
            some = part.samples
            return self._learner(mine, part.learner, images[some], [p if p is None else p[some] for p in pieces])

        return apart(features, params, len(images), self.learners)

    def _learner(self, params: Params, k: int, x: Tensor, pieces: list[Tensor | None]) -> Tensor:
        for step in self.steps:
            name, layer = step.name, step.layer
            keep = None
            if step.site is not None and (piece := pieces[step.number]) is not None:
                keep = kept(step.site, piece, k, x.dtype)
            if isinstance(layer, nn.Conv2d):
                w, b = params[f"{name}.weight"], params.get(f"{name}.bias")
                x = F.conv2d(x, w, b, layer.stride, layer.padding, layer.dilation)
                if step.pool is not None:  # before ReLU and dropout: the numbers are the same, and fewer
                    x = step.pool(x)
                if keep is not None:
                    x = x.mul_(keep)
                if step.relu:
                    x = x.relu_()
            elif isinstance(layer, nn.Linear):
                x = F.linear(x, params[f"{name}.weight"], params.get(f"{name}.bias"))
            elif step.site is not None:
                x = x if keep is None else x * keep
            else:
                x = layer(x)
        return x


class Stacked(Sequential):
    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        """Activations are `Maps` behind convolutions and (K, B, F) behind dense layers."""
        K, pieces = self.learners, self.bytes_of(noise, len(images))
        x: Tensor | Maps = images
        shared = True  # all learners still see the same input, a tensor
        for step, behind in zip(self.steps, [*self.steps[1:], None], strict=True):
            name, layer = step.name, step.layer
            piece = pieces[step.number] if step.site is not None else None
            if isinstance(layer, nn.Conv2d):
                x = self._convolution(step, layer, params, x, piece, behind)
                shared = False
            elif isinstance(layer, nn.Flatten):
                if isinstance(x, Maps):
                    x = x.flat()
                elif shared:
                    x = x.flatten(1).expand(K, -1, -1)
                shared = False  # and behind a dense layer there is nothing left to flatten
            elif isinstance(x, Maps):
                x = _dropped(x, step.site, piece) if step.site is not None else replace(x, data=_plain(layer, x.data))
            elif isinstance(layer, nn.Linear):
                w, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
                if shared:
                    x, shared = x.expand(K, *x.shape), False
                bias = w.new_zeros(w.shape[:2]) if bias is None else bias
                x = dense_layer(x, w, bias, place_of(params, f"{name}.weight"))
            elif step.site is not None:
                if piece is not None:
                    keep = (piece >= step.site.threshold)[:, : K * x.shape[-1]]
                    x = x * keep.unflatten(1, (K, x.shape[-1])).transpose(0, 1) * step.site.scale
            else:
                x = layer(x)
        assert isinstance(x, Tensor)  # features are vectors
        return x.expand(K, *x.shape) if shared else x

    def _convolution(
        self,
        step: Step,
        layer: nn.Conv2d,
        params: Params,
        x: Tensor | Maps,
        piece: Tensor | None,
        behind: Step | None = None,
    ) -> Maps:
        """One convolution for all learners, with the bias, ReLU, pooling and dropout of its step; x is a tensor if
        all learners see the same. `piece`: the bytes of that dropout; `behind`: the step that will see the result.
        """
        K = self.learners
        weight, bias = params[f"{step.name}.weight"], params.get(f"{step.name}.bias")  # (K, O, I, h, w), (K, O)
        if bias is None:
            bias = weight.new_zeros(weight.shape[:2])
        if isinstance(x, Maps) and pays(layer, x.batch, x.data.shape[2:], K):
            maps = unfolded(layer, x, weight, place_of(params, f"{step.name}.weight"))
        else:
            data = x.join().data if isinstance(x, Maps) else x
            build = _block_kernel if isinstance(x, Maps) else _shared_kernel
            kernel = build(weight.to(data.dtype), data.shape[1])
            data = F.conv2d(data, kernel, None, layer.stride, layer.padding, layer.dilation)
            maps = Maps(data, K, layer.out_channels)
        if not maps.parted and step.relu and _halved(step, maps.data) and fused.available(maps.data):
            threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
            wide = _padded_bias(bias, maps.data)
            return replace(maps, data=fused.bias_relu_pool_dropout(maps.data, wide, piece, threshold, scale))
        size, stride = (1, 1) if step.pool is None else (step.pool.kernel_size, step.pool.stride)
        assert isinstance(size, int) and isinstance(stride, int)
        sides = [(side - size) // stride + 1 for side in maps.data.shape[2:]]
        then = None if behind is None else behind.layer
        part = isinstance(then, nn.Conv2d) and pays(then, maps.batch, sides, K)
        if step.pool is None and not (part or maps.parted) and step.relu and fused.available(maps.data):
            maps = replace(maps, data=fused.bias_relu(maps.data, _padded_bias(bias, maps.data)))
        else:
            maps = bias_relu_pool(maps, bias, relu=step.relu, size=size, stride=stride, part=part)
        return maps if step.site is None else _dropped(maps, step.site, piece)


def behind_convolution(step: Step, x: Tensor, bias: Tensor, piece: Tensor | None) -> Tensor:
    """The bias, ReLU, pooling and dropout of a step, from what its convolution left (B, C, H, W), which is lost.

    `piece`: the random bytes of the dropout (B, H', W', C), if there is one.
    """
    kernels = step.relu and fused.available(x)
    threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
    if kernels and _halved(step, x):
        return fused.bias_relu_pool_dropout(x, bias, piece, threshold, scale)
    if step.relu:
        x = fused.bias_relu(x, bias) if kernels else fused.bias_relu_plain(x, bias)
    else:
        x = x + bias.to(x.dtype).view(1, -1, 1, 1)
    if step.pool is not None:
        x = step.pool(x)
    return x if piece is None else x * (piece >= threshold).movedim(-1, 1) * scale


class General:
    """Any module without buffers. Dropout inside it draws from PyTorch's generator, seeded for run and step."""

    capturable = False
    threads = False  # there is one generator for all
    input_channels: int | None = None
    frame: Frame | None = None

    def __init__(self, backbone: nn.Module, learners: int) -> None:
        buffers = [name for name, _ in backbone.named_buffers()]
        if buffers:
            raise ConfigError(
                f"The backbone keeps running statistics ({', '.join(buffers[:3])}), which would leak between tasks. "
                "Use layers without buffers, such as GroupNorm instead of BatchNorm."
            )
        self.backbone, self.learners = backbone, learners

    def noise_size(self, batch: int) -> int:
        return 8

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        from torch.func import functional_call

        self.backbone.train(noise is not None)
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            if noise is not None:
                torch.manual_seed(int.from_bytes(bytes(noise[:7].tolist()), "little"))
            return torch.stack(
                [
                    functional_call(self.backbone, {n: p[k] for n, p in params.items()}, (images,))
                    for k in range(self.learners)
                ]
            )


def _pools(layer: nn.MaxPool2d) -> bool:
    """Whether a layer is max-pooling over square windows, without padding."""
    square = isinstance(layer.kernel_size, int) and isinstance(layer.stride, int)
    return square and (layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices) == (0, 1, False, False)


def halves(pool: nn.MaxPool2d | None) -> bool:
    """Whether pooling is there and has windows of 2x2 side by side."""
    return pool is not None and (pool.kernel_size, pool.stride) == (2, 2)


def _halved(step: Step, x: Tensor) -> bool:
    return halves(step.pool) and x.shape[2] % 2 == x.shape[3] % 2 == 0


def _idle(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Dropout) and round(layer.p * 256) == 0


def _plain(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer that treats every channel alike."""
    if isinstance(layer, nn.AdaptiveAvgPool2d) and x.shape[2:] == (1, 1) and isinstance(layer.output_size, int):
        return x.expand(-1, -1, layer.output_size, layer.output_size)  # means of one number
    out: Tensor = layer(x)
    return out


def _dropped(maps: Maps, site: DropoutSite, piece: Tensor | None) -> Maps:
    if piece is None:
        return maps
    maps = maps.join()
    return replace(maps, data=maps.data * (piece >= site.threshold).movedim(-1, 1) * site.scale)


def _padded_bias(bias: Tensor, x: Tensor) -> Tensor:
    """(K, O) for all channels of x."""
    flat = bias.to(x.dtype).reshape(-1)
    return F.pad(flat, (0, x.shape[1] - len(flat)))


def _shared_kernel(w: Tensor, inputs: int) -> Tensor:
    """(K, O, I, h, w) over a common input -> (padded(K*O), inputs, h, w)."""
    K, O, I = w.shape[:3]  # noqa: E741
    kernel = F.pad(w.flatten(0, 1), (0, 0, 0, 0, 0, inputs - I, 0, padded(K * O) - K * O))
    return kernel.contiguous(memory_format=torch.channels_last)


def _block_kernel(w: Tensor, inputs: int) -> Tensor:
    """(K, O, I, h, w), each learner over its own channels -> block-diagonal (padded(K*O), inputs, h, w)."""
    K, O, I = w.shape[:3]  # noqa: E741
    eye = torch.eye(K, dtype=w.dtype, device=w.device).view(K, 1, K, 1, 1, 1)
    blocks = (w.unsqueeze(2) * eye).flatten(0, 1).flatten(1, 2)  # (K*O, K*I, h, w)
    kernel = F.pad(blocks, (0, 0, 0, 0, 0, inputs - K * I, 0, padded(K * O) - K * O))
    return kernel.contiguous(memory_format=torch.channels_last)
