"""The active column of Progress & Compress (Schwarz et al. 2018), with lateral connections from the network.

The network itself is the knowledge base. The active column has the same layers and a head of its own. Each of its
layers but the first also receives the output of an adaptor, before the nonlinearity, from h', the input of the same
layer in the knowledge base:

    W h + b + a * U relu(V h' + c)

V has the kind and shape of W, so that a convolution's stride and padding give maps of the right size; U is a matrix
over units, for maps a 1x1 convolution; a has one number per unit, initially drawn from U(0, 0.1).

The column reads a copy of the knowledge base from the beginning of the task ("seen"), which is part of the row: its
outputs do not change while the knowledge base learns from it. Only the column, its head and the adaptors are trained.
The copy has no dropout.

Here the equation is computed as it stands; on a GPU `Aligned` computes the same faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.cpu.dense import dropout_factors
from kenyon.backends.cpu.looped import Chunk, in_chunks
from kenyon.backends.layers import Params, PlannedLayers, dropout_factor, known_layers
from kenyon.backends.layout import Layout, Rows, aligned_alone
from kenyon.backends.torch.generators import seeded
from kenyon.backends.triton.columns import Aligned
from kenyon.backends.triton.heads import own_logits
from kenyon.errors import ConfigError
from kenyon.models.initial import initial_parameters
from kenyon.random import Noise, Purpose, key
from kenyon.utils.determinism import per_run

INITIAL_SCALE = 0.1  # upper bound of the initial a
HEAD = ("active.head.weight", "active.head.bias")


def column_shapes(
    backbone: nn.Module, shape: tuple[int, ...], features: int, classes: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that an active column adds to a run's row; all but the head have a learner axis of one."""
    if not known_layers(backbone, shape):
        raise ConfigError(
            "An active column needs a backbone whose layers it knows: an nn.Sequential of convolutions, dense "
            "layers, pooling, nonlinearities and nn.Dropout."
        )
    weights = {name: (1, *p.shape) for name, p in backbone.named_parameters()}
    lateral: dict[str, tuple[int, ...]] = {}
    for name in adapted_layers(backbone):
        units = weights[f"{name}.weight"][1]
        lateral |= {
            f"{name}.V": weights[f"{name}.weight"],
            f"{name}.c": (1, units),
            f"{name}.U": (1, units, units),
            f"{name}.a": (1, units),
        }
    return {
        **{f"active.{name}": size for name, size in weights.items()},
        HEAD[0]: (classes, features),
        HEAD[1]: (classes,),
        **{f"lateral.{name}": size for name, size in lateral.items()},
        **{f"seen.{name}": size for name, size in weights.items()},
    }


def adapted_layers(backbone: nn.Module) -> list[str]:
    """Return the names of the layers with a lateral connection."""
    return [name for name, layer in backbone.named_children() if type(layer) in _APPLY][1:]


class Columns(PlannedLayers):
    """The forward pass and initial weights of active columns. Holds no parameters itself."""

    def __init__(
        self,
        backbone: nn.Module,
        shape: tuple[int, ...],
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`backbone`: one that `column_shapes` accepts. `dtype`: the type that the column computes in; its head
        computes in that of the row.
        """
        layers = cast("nn.Sequential", backbone)
        super().__init__(layers, shape, 1)
        aligned = Aligned(layers, shape)
        self.aligned = aligned if device.type == "cuda" and aligned.known else None
        self.backbone, self.channels, self.layout, self.dtype = backbone, shape[0], layout, dtype
        self.names = tuple(name for name, _ in backbone.named_parameters())
        self.trained = tuple(n for n in layout.segments if n.startswith(("active.", "lateral.")) and n not in HEAD)
        self._moving = frozenset((*self.trained, *HEAD))
        self._still = frozenset(f"seen.{name}" for name in self.names)
        # The position in a row at which the copy of the knowledge base begins.
        self.first_seen = min((layout.segments[name].start for name in self._still), default=0)
        kinds = [type(step.layer) for step in self.steps]
        # The step of the last layer with weights: the knowledge base is computed up to its input.
        self.last = max((place for place, kind in enumerate(kinds) if kind in _APPLY), default=0)
        # The step at which samples become vectors; -1 if they are vectors.
        self.flattens = -1 if len(shape) == 1 else kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)

    @property
    def size(self) -> int:
        """The count of numbers that the column adds to a run's row."""
        return sum(prod(self.layout.segments[name].shape) for name in self._moving | self._still)

    # ------------------------------------------------------------------ weights

    def start_task(
        self, theta: Tensor, seeds: Sequence[int], task: int, classes: int, *, reinit: bool = True
    ) -> None:
        """Prepare the rows (R, P) for a task with `classes` classes: draw a new head, with `reinit` also a new column
        and adaptors, and copy the knowledge base.
        """
        for row, seed in zip(theta, seeds, strict=True):
            for name, value in self._initial(key(seed, Purpose.COLUMN, task), classes, reinit).items():
                view = self.layout.view(row, name)
                view.zero_()  # absent classes of a head
                (view[:classes] if name in HEAD else view[0]).copy_(value)
        for name in self.names:
            self.layout.view(theta, f"seen.{name}").copy_(self.layout.view(theta, name))

    def _initial(self, seed_key: int, classes: int, reinit: bool) -> Params:
        features = self.layout.segments[HEAD[0]].shape[1]
        head = seeded(partial(nn.Linear, features, classes), key(seed_key, 0))
        drawn = dict(zip(HEAD, (head.weight.detach(), head.bias.detach()), strict=True))
        if not reinit:
            return drawn
        drawn |= {f"active.{n}": value for n, value in initial_parameters(self.backbone, key(seed_key, 1)).items()}
        for number, name in enumerate(adapted_layers(self.backbone)):
            units = self.layout.segments[f"lateral.{name}.c"].shape[1]
            inner = initial_parameters(_with_bias(self.backbone.get_submodule(name)), key(seed_key, 2, number))
            outer = seeded(partial(nn.Linear, units, units, bias=False), key(seed_key, 3, number))
            generator = torch.Generator().manual_seed(key(seed_key, 4, number))
            drawn |= {
                f"lateral.{name}.V": inner["weight"],
                f"lateral.{name}.c": inner["bias"],
                f"lateral.{name}.U": outer.weight.detach(),
                f"lateral.{name}.a": INITIAL_SCALE * torch.rand(units, generator=generator),
            }
        return drawn

    # ------------------------------------------------------------------ the forward pass

    def logits(
        self, row: Rows, images: Tensor, noise: Tensor | Noise | None = None, seen: list[Tensor] | None = None
    ) -> Tensor:
        """Return the logits of the column for samples of the current task.

        One run: row (P,) and samples (B, *shape) -> (B, C). All runs, of a small dense network or on a GPU: the same
        with a leading run axis. `seen`: maps of the knowledge base, if they are already computed (see
        `Aligned.features`).
        """
        views = self.layout.views(row, self._moving)
        still = views if isinstance(row, dict) else self.layout.views(row.detach(), self._still)
        head = [views[name] for name in HEAD]
        parts = {name: views[name] for name in self.trained}
        parts |= {f"seen.{name}": still[f"seen.{name}"].detach() for name in self.names}
        if self.aligned is not None:
            return self._on_gpu(self.aligned, parts, head, images, noise, seen)
        converted = {name: value.to(self.dtype) for name, value in parts.items()}
        features = self._of_all_runs if head[1].ndim == 2 else self._of_one_run
        return _product(features(converted, images.to(self.dtype), noise).to(head[1].dtype), *head)

    def _on_gpu(
        self,
        aligned: Aligned,
        views: Params,
        head: list[Tensor],
        images: Tensor,
        noise: Tensor | Noise | None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        if head[1].ndim == 1:  # one run
            assert not isinstance(noise, Noise)
            bytes = None if noise is None else noise.unsqueeze(0)
            views, head = {n: v.unsqueeze(0) for n, v in views.items()}, [part.unsqueeze(0) for part in head]
            return self._on_gpu(aligned, views, head, images.unsqueeze(0), bytes).squeeze(0)
        B = images.shape[1]
        drawn = noise.bytes(self.noise_size(B)) if isinstance(noise, Noise) else noise
        each = {name: value.squeeze(1) for name, value in views.items()}
        features = aligned.features(each, images, self.bytes_of(drawn, B), self.dtype, seen)
        return own_logits(features.to(head[1].dtype).unsqueeze(1), *head).squeeze(1)

    def _of_one_run(self, views: Params, images: Tensor, noise: Tensor | Noise | None) -> Tensor:
        assert not isinstance(noise, Noise)
        images = images[:, : self.channels]  # without channels for alignment
        pieces = self.bytes_of(noise, len(images))
        trained = {name: views[name] for name in self.trained}
        seen = {name: views[f"seen.{name}"][0] for name in self.names}

        def features(chunk: Chunk, params: Params) -> Tensor:
            x = images[chunk.samples]
            keep = [
                None if piece is None else dropout_factor(site, piece[chunk.samples], 0, x.dtype)
                for site, piece in zip(self.sites, pieces, strict=True)
            ]
            return self._column(params, seen, x, keep)

        if images.is_cuda:  # a backbone that cannot be aligned
            return features(Chunk(0, slice(None)), {name: value[0] for name, value in trained.items()})
        return in_chunks(features, trained, len(images), 1).squeeze(0)

    def _of_all_runs(self, views: Params, images: Tensor, noise: Tensor | Noise | None) -> Tensor:
        assert not isinstance(noise, Tensor)
        R, B = images.shape[:2]
        keep: list[Tensor | None] = [None] * len(self.sites)
        if noise is not None:
            keep = [*dropout_factors(self.sites, 1, noise, B, images.dtype)]
        trained = {name: views[name].squeeze(1) for name in self.trained}
        seen = {name: views[f"seen.{name}"].squeeze(1) for name in self.names}
        x = images if self.flattens < 0 else images.flatten(0, 1)
        return self._column(trained, seen, x, keep, runs=R)

    def _column(self, params: Params, seen: Params, x: Tensor, keep: list[Tensor | None], runs: int = 0) -> Tensor:
        """Return the features of the column: x are activations of the column, z those of the knowledge base.

        Of all `runs`, activations are (R * B, *shape) up to the flattening and (R, B, F) behind it.
        """
        z = x
        for place, step in enumerate(self.steps):
            name, layer = step.name, step.layer
            if (apply := _APPLY.get(type(layer))) is not None:
                x = apply(layer, x, params[f"active.{name}.weight"], params.get(f"active.{name}.bias"))
                if f"lateral.{name}.V" in params:
                    V, c, U, a = (params[f"lateral.{name}.{part}"] for part in "VcUa")
                    inner = apply(layer, z, V, c).relu()
                    U = U * a.unsqueeze(-1)  # scaling the rows of U takes less than scaling the outputs
                    x = x + (F.conv2d(inner, U[..., None, None]) if type(layer) is nn.Conv2d else _product(inner, U))
                if place < self.last:
                    z = apply(layer, z, seen[f"{name}.weight"], seen.get(f"{name}.bias"))
            elif step.site is not None:
                factor = keep[step.number]
                x = x if factor is None else x * factor
            else:
                same, x = x is z, self._plain(place, x, runs)
                if place < self.last:
                    z = x if same else self._plain(place, z, runs)
        return x

    def _plain(self, place: int, x: Tensor, runs: int) -> Tensor:
        """Apply a layer without parameters."""
        layer = self.steps[place].layer
        if runs and type(layer) is nn.Flatten:
            return x.flatten(1).unflatten(0, (runs, -1)) if place == self.flattens else x
        out: Tensor = layer(x)
        return out


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, aligned_alone(weight), bias, layer.stride, layer.padding, layer.dilation)


def _multiply(layer: nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias)


# The layers with weights. `known_layers` admits no subclasses.
_APPLY: dict[type[nn.Module], Callable[..., Tensor]] = {nn.Conv2d: _convolve, nn.Linear: _multiply}


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x (..., B, I) times weight (..., O, I) plus bias (..., O), each run with its own."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    transposed = weight.transpose(1, 2)
    if bias is None:
        return per_run(torch.bmm, 1, x, transposed)
    return per_run(torch.baddbmm, 1, bias.unsqueeze(1), x, transposed)


def _with_bias(layer: nn.Module) -> nn.Module:
    """Return a layer of the same shape, without storage, that has a bias."""
    if isinstance(layer, nn.Conv2d):
        settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return nn.Conv2d(layer.in_channels, layer.out_channels, *settings, device="meta")  # type: ignore[arg-type]
    assert isinstance(layer, nn.Linear)
    return nn.Linear(layer.in_features, layer.out_features, device="meta")
