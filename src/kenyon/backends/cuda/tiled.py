"""The fastest execution: all runs and learners at once, convolutions by CUDA kernels of our own.

It serves backbones of 3x3 convolutions, each perhaps with ReLU, 2x2 pooling and dropout, followed by dense layers or
by none, in bfloat16 on a Hopper GPU or newer. The kernels read images from their pool, draw dropout and keep no more
than the backward pass needs. They know convolutions with padding; those without go through a larger `frame`. Wide
learners are computed as runs of their own. Everything else goes through `execution`.
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
    DropoutSite,
    Frame,
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
    """How the convolutions at the beginning of a backbone are computed, with all learners or with one of them; None
    if the kernels cannot. `teams`: the device has products of four warps.
    """
    joint = _stages(steps, shape, layout, learners, teams)
    if learners == 1 or joint is None or not _wide(joint):
        return joint
    apart = _stages(steps, shape, layout, 1, teams)
    return joint if apart is None or learners * multiplications(apart) > multiplications(joint) else apart


def _wide(stages: Sequence[Stage]) -> bool:
    """Whether it may pay to compute learners as if they were runs: then none fetches what is for others, but each is
    padded for itself. Dropout is drawn for all learners of a run together.
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
    for (step, convolution), rows in zip(_convolutions(steps), frame.rows, strict=True):
        if step.site is not None and convolution.padding == (0, 0):
            return None  # the kernels would draw for the whole map
        weight, bias = layout.segments[f"{step.name}.weight"], layout.segments[f"{step.name}.bias"]
        layer = Convolution(
            side,
            learners,
            convolution.in_channels,
            convolution.out_channels,
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
    if not rest or not isinstance(rest[0].layer, nn.Flatten):
        return None
    if _dense_layers(rest[1:]) is None:
        return None
    return choose_stages(layers, teams)


def plan_frame(steps: Sequence[Step], shape: tuple[int, int, int]) -> Frame | None:
    """What the convolutions at the beginning of a backbone see images in; None if the kernels cannot compute them."""
    layers = _convolutions(steps)
    if shape[1] != shape[2] or not all(_plain(layer) for _, layer in layers):
        return None
    if not all(step.pool is None or halves(step.pool) for step, _ in layers):
        return None
    return frame_of(shape[1], [(int(layer.padding == (1, 1)), step.pool is not None) for step, layer in layers])


def _convolutions(steps: Sequence[Step]) -> list[tuple[Step, nn.Conv2d]]:
    """Those before all other layers."""
    found: list[tuple[Step, nn.Conv2d]] = []
    for step in steps:
        if not isinstance(step.layer, nn.Conv2d):
            break
        found.append((step, step.layer))
    return found


def _dense_layers(steps: Sequence[Step]) -> list[tuple[Step, bool, DropoutSite | None]] | None:
    """Dense layers, whether a ReLU is behind each, and the dropout behind that; None if there is anything else."""
    found: list[tuple[Step, bool, DropoutSite | None]] = []
    for step in steps:
        if isinstance(step.layer, nn.Linear) and step.layer.bias is not None:
            found.append((step, False, None))
        elif isinstance(step.layer, nn.ReLU) and found and not found[-1][1]:
            found[-1] = (found[-1][0], True, None)
        elif step.site is not None and found and found[-1][1] and found[-1][2] is None:
            found[-1] = (found[-1][0], True, step.site)
        else:
            return None
    return found


def _plain(layer: nn.Conv2d) -> bool:
    settings = (layer.kernel_size, layer.stride, layer.dilation)
    known = settings == ((3, 3), (1, 1), (1, 1)) and layer.padding in ((0, 0), (1, 1))
    return known and layer.bias is not None


class Tiled(LayerExecutor):
    all_runs = True
    input_channels: int | None = 4  # one colour or three and empty bytes: a pixel is one word

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
        self.apart = learners // stages[0].layer.learners  # learners of a run that are computed as runs
        self.convolutional = self.steps[: len(stages)]
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
        """Leave out what other heads than those in use have: of a long sequence that is most of a row."""
        if not of.whole_network:
            return super().gradients(theta, of, gradient, value)
        net = of.net

        def all_runs(run: Runs) -> None:
            batch, protected = of.batch(run), net.layout.protected
            weights = theta[:, :protected].detach().requires_grad_()
            with torch.enable_grad():
                parts = net.in_use(weights, theta, of.heads)
                others = {name: parts[name].requires_grad_() for name in (*net.head_names, *net.learned)}
                outputs = of.forward(net, parts, batch.images, of.heads, batch.member, noise=of.noise, own=of.own)
                result = of.loss(run, parts, outputs, batch)
            first, *rest = torch.autograd.grad(result.sum(), [weights, *others.values()], allow_unused=True)
            assert first is not None
            gradient[:, :protected].copy_(first)
            gradient[:, protected:].zero_()
            for name, found in zip(others, rest, strict=True):
                place = net.layout.view(gradient, name)
                if found is not None and name in net.per_head:
                    place.index_copy_(1, of.heads, found)
                elif found is not None:
                    place.copy_(found)
            value.copy_(result.detach())

        of.each(of.runs, all_runs)
        return gradient

    def forward(self, params: Params, images: Pictures, noise: Noise | None, *, rows: Tensor | None = None) -> Tensor:
        """Rows (R, P) and their named views (R, K, ...) -> features (R, K, B, F) bfloat16."""
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
        """What every convolution gives to the layer behind it, without dropout and without gradients: (R, B, H, W,
        padded(K*C)) bfloat16. Rows (R, ...) that begin with the backbone's weights are enough.
        """
        assert self.frame is not None and self.apart == 1
        found = []
        for step, out, (first, size) in zip(
            self.convolutional, self._compiled().maps(theta, images), self.frame.rows, strict=True
        ):
            first, size = (first // 2, size // 2) if step.pool else (first, size)
            found.append(out[:, :, first : first + size, first : first + size].contiguous())
        return found

    def _compiled(self) -> ConvolutionStack:
        if self._stack is None:
            try:
                self._stack = ConvolutionStack(self.stages, self.device, self.build, self.apart)
            except compiler.CompileError as error:
                first = next(iter(str(error).splitlines()), "no reason given")
                raise ConfigError(
                    f"The kernels for this network do not compile on this GPU ({first}). precision=float32 does "
                    "without them; so do other widths, perhaps."
                ) from error
        return self._stack

    def _flattened(self, maps: Tensor) -> Tensor:
        """(R, B, H, W, padded(K*C)), or learners apart, -> (R, K, B, C*H*W), each learner's features in PyTorch's own
        order.
        """
        channels, together = self.stages[-1].layer.outputs, self.learners // self.apart
        real = together * channels
        assert self.frame is not None
        before, behind = self.frame.first, maps.shape[2] - self.frame.first - self.frame.size
        if before or behind:
            maps = F.pad(maps, (0, real - maps.shape[-1], *(-before, -behind) * 2))  # cut out what is right
        each = maps[..., :real].unflatten(-1, (together, channels)).unflatten(0, (-1, self.apart))
        return each.permute(0, 1, 5, 2, 6, 3, 4).flatten(1, 2).flatten(3)
