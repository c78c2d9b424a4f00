"""How K learners of one backbone are computed. One definition, several executions, equal results.

    looped   every learner and a few samples at a time, side by side on the cores of a CPU (see `apart`)
    stacked  all learners at once: a dense layer is one batched product, a convolution one block-diagonal
             convolution with its channels padded for the tensor cores. For a GPU.
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
    pool: bool = False  # ... and 2x2 pooling, then the dropout of `site`


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
            elif behind and _halves(layer) and not behind.pool:
                steps[-1] = replace(behind, pool=True)
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
                if step.pool:  # before ReLU and dropout: the numbers are the same, and fewer
                    x = F.max_pool2d(x, 2)
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
        """Activations are (B, padded(K*C), H, W) behind convolutions and (K, B, F) behind dense layers."""
        K, pieces = self.learners, self.bytes_of(noise, len(images))
        x, channels, shared = images, images.shape[1], True  # shared: all learners still see the same input
        for step in self.steps:
            name, layer = step.name, step.layer
            if isinstance(layer, nn.Conv2d):
                x, channels = self._convolution(step, layer, params, x, shared, pieces), layer.out_channels
                shared = False
            elif isinstance(layer, nn.Flatten):
                if x.ndim == 3:
                    pass  # behind a dense layer there is nothing left to flatten
                elif shared:
                    x = x[:, :channels].flatten(1).expand(K, -1, -1)
                else:  # (B, padded(K*C), H, W) -> (K, B, C*H*W), each learner's features in PyTorch's own order
                    x = x[:, : K * channels].unflatten(1, (K, channels)).transpose(0, 1).flatten(2)
                shared = False
            elif isinstance(layer, nn.Linear):
                w, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
                if shared:
                    x, shared = x.expand(K, *x.shape), False
                x = dense_layer(x, w, w.new_zeros(w.shape[:2]) if bias is None else bias)
            elif step.site is not None:
                if (piece := pieces[step.number]) is not None:
                    keep = piece >= step.site.threshold
                    if x.ndim == 4:
                        keep = keep.movedim(-1, 1)
                    else:
                        keep = keep[:, : K * x.shape[-1]].unflatten(1, (K, x.shape[-1])).transpose(0, 1)
                    x = x * keep * step.site.scale
            else:
                x = layer(x)
        return x.expand(K, *x.shape) if shared else x

    def _convolution(
        self,
        step: Step,
        layer: nn.Conv2d,
        params: Params,
        x: Tensor,
        shared: bool,
        pieces: list[Tensor | None],
    ) -> Tensor:
        """One convolution for all learners, with the bias, ReLU, pooling and dropout behind it."""
        weight, bias = params[f"{step.name}.weight"], params.get(f"{step.name}.bias")  # (K, O, I, h, w), (K, O)
        if not shared and step.site is None and pays(layer, x, self.learners):
            x = unfolded(layer, x, weight, weight.new_zeros(weight.shape[:2]) if bias is None else bias)
            x = x.relu() if step.relu else x
            return F.max_pool2d(x, 2) if step.pool else x
        w = weight.to(x.dtype)
        outputs = w.shape[0] * w.shape[1]
        kernel = _shared_kernel(w, x.shape[1]) if shared else _block_kernel(w, x.shape[1])
        x = F.conv2d(x, kernel, None, layer.stride, layer.padding, layer.dilation)
        bias = w.new_zeros(outputs) if bias is None else bias.to(x.dtype).reshape(-1)
        bias = F.pad(bias, (0, padded(outputs) - outputs))
        return behind_convolution(step, x, bias, pieces[step.number] if step.site is not None else None)


def behind_convolution(step: Step, x: Tensor, bias: Tensor, piece: Tensor | None) -> Tensor:
    """The bias, ReLU, pooling and dropout of a step, from what its convolution left (B, C, H, W), which is lost.

    `piece`: the random bytes of the dropout (B, H', W', C), if there is one.
    """
    kernels = fused.available(x) and step.relu
    threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
    if step.pool and kernels and x.shape[2] % 2 == x.shape[3] % 2 == 0:
        return fused.bias_relu_pool_dropout(x, bias, piece, threshold, scale)
    if step.relu:
        x = fused.bias_relu(x, bias) if kernels else fused.bias_relu_plain(x, bias)
    else:
        x = x + bias.to(x.dtype).view(1, -1, 1, 1)
    if step.pool:
        x = F.max_pool2d(x, 2)
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


def _halves(layer: nn.Module) -> bool:
    """Whether a layer is plain 2x2 max-pooling."""
    if not isinstance(layer, nn.MaxPool2d) or layer.ceil_mode or layer.return_indices:
        return False
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return [v if isinstance(v, int) else None for v in settings] == [2, 2, 0, 1]


def _idle(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Dropout) and round(layer.p * 256) == 0


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
