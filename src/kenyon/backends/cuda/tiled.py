"""The fastest executor: all runs and learners at once, with convolutions by custom CUDA kernels.

It supports backbones of 3x3 convolutions, each optionally with ReLU, 2x2 pooling and dropout, followed by any number
of dense layers, in bfloat16 on a Hopper GPU or newer. The kernels read images from their pool, draw dropout bytes and
store no more than the backward pass needs. They compute convolutions with padding; those without use a larger frame
(see `layers.Frame`). Wide learners are computed as independent runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.cuda import compiler
from kenyon.backends.cuda.choices import Stage, choose_stages, multiplications
from kenyon.backends.cuda.interface import Build, Pictures
from kenyon.backends.cuda.plan import Convolution
from kenyon.backends.cuda.stack import ConvolutionStack, Convolve
from kenyon.backends.executor import LayerExecutor, Pass, Request, Runs, S
from kenyon.backends.layers import (
    ConvolutionStep,
    DropoutSite,
    DropoutStep,
    FlattenStep,
    Frame,
    LinearStep,
    Params,
    Step,
    dropout_sites,
    frame_of,
    halves,
    known_layers,
    plan_steps,
    used_layers,
)
from kenyon.backends.layout import Layout
from kenyon.backends.triton.dense import dense_layer
from kenyon.backends.triton.dropout import relu_dropout
from kenyon.errors import ConfigError
from kenyon.random import Noise

WIDE = 20  # channels of a learner, at least


def plan_stages(
    steps: Sequence[Step], shape: tuple[int, int, int], layout: Layout, learners: int, teams: bool = True
) -> list[Stage] | None:
    """Return the stages of the convolutions at the beginning of a backbone, each with all learners or with one; None
    if the kernels do not support them.

    `teams`: the device has products of four warps.
    """
    joint = _stages(steps, shape, layout, learners, teams)
    if learners == 1 or joint is None or not _is_wide(joint):
        return joint
    single = _stages(steps, shape, layout, 1, teams)
    return joint if single is None or learners * multiplications(single) > multiplications(joint) else single


def _is_wide(stages: Sequence[Stage]) -> bool:
    """Return True if learners may be faster as independent runs: none fetches data of others, but each is padded.

    Dropout excludes this, since it is drawn for all learners of a run together.
    """
    return all(s.site is None and (s.layer.first or s.layer.inputs >= WIDE) for s in stages)


def _stages(
    steps: Sequence[Step], shape: tuple[int, int, int], layout: Layout, learners: int, teams: bool
) -> list[Stage] | None:
    frame = plan_frame(steps, shape)
    if frame is None or shape[0] not in (1, 3):
        return None
    side = frame.side
    layers: list[tuple[Convolution, DropoutSite | None]] = []
    for step, rows in zip(_convolutions(steps), frame.rows, strict=True):
        if step.site is not None and step.layer.padding == (0, 0):
            return None  # the kernels would draw for the whole map
        weight, bias = layout.segments[f"{step.name}.weight"], layout.segments[f"{step.name}.bias"]
        layer = Convolution(
            side,
            learners,
            step.layer.in_channels,
            step.layer.out_channels,
            step.pool is not None,
            not layers,
            weight.start,
            bias.start,
            step.relu,
            rows,
        )
        layers.append((layer, step.site))
        side = side // 2 if step.pool else side
    rest = steps[len(layers) :]
    if not rest or type(rest[0]) is not FlattenStep:
        return None
    if _dense_layers(rest[1:]) is None:
        return None
    return choose_stages(layers, teams)


def plan_frame(steps: Sequence[Step], shape: tuple[int, int, int]) -> Frame | None:
    """Return the frame of images for the convolutions at the beginning of a backbone; None if the kernels do not
    support them.
    """
    layers = _convolutions(steps)
    if shape[1] != shape[2] or not all(_is_supported(step.layer) for step in layers):
        return None
    if not all(step.pool is None or halves(step.pool) for step in layers):
        return None
    return frame_of(shape[1], [(int(step.layer.padding == (1, 1)), step.pool is not None) for step in layers])


def _convolutions(steps: Sequence[Step]) -> list[ConvolutionStep]:
    """Return the convolutions before all other layers."""
    convolutions: list[ConvolutionStep] = []
    for step in steps:
        if type(step) is not ConvolutionStep:
            break
        convolutions.append(step)
    return convolutions


def _dense_layers(steps: Sequence[Step]) -> list[tuple[Step, bool, DropoutSite | None]] | None:
    """Return dense layers, each with a flag for the ReLU and with the dropout after it; None if there are others."""
    layers: list[tuple[Step, bool, DropoutSite | None]] = []
    for step in steps:
        last, relu, site = layers[-1] if layers else (None, False, None)
        match step:
            case LinearStep() if step.layer.bias is not None:
                layers.append((step, False, None))
            case Step(layer=nn.ReLU()) if last is not None and not relu:
                layers[-1] = (last, True, None)
            case DropoutStep() if last is not None and relu and site is None:
                layers[-1] = (last, True, step.site)
            case _:
                return None
    return layers


def _is_supported(layer: nn.Conv2d) -> bool:
    settings = (layer.kernel_size, layer.stride, layer.dilation)
    known = settings == ((3, 3), (1, 1), (1, 1)) and layer.padding in ((0, 0), (1, 1))
    return known and layer.bias is not None


class Tiled(LayerExecutor):
    """All runs and learners at once: 3x3 convolutions in bfloat16 on a Hopper GPU."""

    all_runs = True
    input_channels: int | None = 4  # one or three colours and empty bytes: a pixel is one word

    def __init__(
        self,
        backbone: nn.Sequential,
        shape: tuple[int, int, int],
        learners: int,
        stages: list[Stage],
        device: torch.device,
        build: Build,
    ) -> None:
        super().__init__(backbone, shape, learners)
        self.stages, self.device, self.build = stages, device, build
        self.independent = learners // stages[0].layer.learners  # learners of a run that are computed as runs
        self.convolutional = _convolutions(self.steps)
        self.frame = plan_frame(self.steps, shape)
        self.dense = _dense_layers(self.steps[len(stages) + 1 :]) or []
        self._stack: ConvolutionStack | None = None  # compiled when first used

    @classmethod
    def for_backbone(cls, request: Request) -> Tiled | None:
        backbone, shape, device = request.backbone, request.shape, request.device
        if not request.in_place or device.type != "cuda" or request.dtype is not torch.bfloat16:
            return None
        if not compiler.available(device) or len(shape) != 3 or not known_layers(backbone, shape):
            return None
        assert isinstance(backbone, nn.Sequential)
        sites = dropout_sites([layer for _, layer in used_layers(backbone)], shape, request.learners)
        steps = plan_steps(backbone, sites, folds=True)
        stages = plan_stages(steps, shape, request.layout, request.learners, compiler.has_teams(device))
        return None if stages is None else cls(backbone, shape, request.learners, stages, device, compiler.build)

    def gradients(self, theta: Tensor, of: Pass[S], gradient: Tensor, value: Tensor) -> Tensor:
        """Leave out the heads that are not in use: in a long sequence they are most of a row."""
        if not of.whole_network:
            return super().gradients(theta, of, gradient, value)
        net = of.net

        def all_runs(run: Runs) -> None:
            batch, protected = of.batch(run), net.layout.protected
            weights = theta[:, :protected].detach().requires_grad_()
            with torch.enable_grad():
                params = net.in_use(weights, theta, of.heads)
                others = {name: params[name].requires_grad_() for name in (*net.head_names, *net.learned)}
                outputs = of.forward(net, params, batch.images, of.heads, batch.member, noise=of.noise, own=of.own)
                result = of.loss(run, params, outputs, batch)
            first, *rest = torch.autograd.grad(result.sum(), [weights, *others.values()], allow_unused=True)
            assert first is not None
            gradient[:, :protected].copy_(first)
            gradient[:, protected:].zero_()
            for name, computed in zip(others, rest, strict=True):
                place = net.layout.view(gradient, name)
                if computed is not None and name in net.per_head:
                    place.index_copy_(1, of.heads, computed)
                elif computed is not None:
                    place.copy_(computed)
            value.copy_(result.detach())

        of.each(of.runs, all_runs)
        return gradient

    def forward(self, params: Params, images: Pictures, noise: Noise | None, *, rows: Tensor | None = None) -> Tensor:
        """Map rows (R, P), with their named views (R, K, ...), to features (R, K, B, F) bfloat16."""
        assert rows is not None
        theta, views = rows, params
        stack = self._compiled()
        names = [f"{s.name}.{part}" for s in self.convolutional for part in ("weight", "bias")]
        keys = None if noise is None else (noise.first, noise.second)
        parameters = (views[n] for n in names)
        maps = Convolve.apply(stack, theta.detach(), images, keys, *parameters)  # type: ignore[no-untyped-call]
        x = self._flattened(maps)
        drawn = sum(prod(s.site.shape) for s in self.convolutional if s.site is not None) * x.shape[2]
        for step, relu, site in self.dense:
            weight, bias = views[f"{step.name}.weight"], views[f"{step.name}.bias"]
            x = dense_layer(x.to(torch.bfloat16), weight, bias)
            if relu:
                x = relu_dropout(x, noise, site, drawn)
                drawn += x.shape[2] * prod(site.shape) if site is not None else 0
        return x

    def maps(self, theta: Tensor, images: Pictures) -> list[Tensor]:
        """Return the output of every convolution step, without dropout and gradients: (R, B, H, W, padded(K*C))
        bfloat16. Rows (R, ...) that begin with the backbone's weights are enough.
        """
        assert self.frame is not None and self.independent == 1
        valid = []
        for step, out, (first, size) in zip(
            self.convolutional, self._compiled().maps(theta, images), self.frame.rows, strict=True
        ):
            first, size = (first // 2, size // 2) if step.pool else (first, size)
            valid.append(out[:, :, first : first + size, first : first + size].contiguous())
        return valid

    def _compiled(self) -> ConvolutionStack:
        if self._stack is None:
            try:
                self._stack = ConvolutionStack(self.stages, self.device, self.build, self.independent)
            except compiler.CompileError as error:
                first = next(iter(str(error).splitlines()), "no reason given")
                raise ConfigError(
                    f"The kernels for this network do not compile on this GPU ({first}). Choose precision=float32, "
                    "which does not use them, or other widths."
                ) from error
        return self._stack

    def _flattened(self, maps: Tensor) -> Tensor:
        """Convert maps (R, B, H, W, padded(K*C)), or (R*K, ...) with independent learners, to (R, K, B, C*H*W) in
        PyTorch's order.
        """
        channels, together = self.stages[-1].layer.outputs, self.learners // self.independent
        real = together * channels
        assert self.frame is not None
        before, after = self.frame.first, maps.shape[2] - self.frame.first - self.frame.size
        if before or after:
            maps = F.pad(maps, (0, real - maps.shape[-1], *(-before, -after) * 2))  # cut out the valid part
        each = maps[..., :real].unflatten(-1, (together, channels)).unflatten(0, (-1, self.independent))
        return each.permute(0, 1, 5, 2, 6, 3, 4).flatten(1, 2).flatten(3)
