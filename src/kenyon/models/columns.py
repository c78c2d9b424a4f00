"""An active column beside the network, with lateral connections from it (Progress & Compress, Schwarz et al. 2018).

The network itself is the knowledge base. The active column has the same layers and a head of its own. Each of its
layers but the first, whose input is the image, also receives what an adaptor makes of the knowledge base's input h'
to the same layer, before the nonlinearity:

    W h + b + a * U relu(V h' + c)

V has the kind and shape of W, so that a convolution's stride and padding give maps of the right size; U is a product
over units, for maps a 1x1 convolution; a has one number a unit, first drawn from U(0, 0.1).

The column looks at the knowledge base as it stood when the task began, of which the row keeps a copy ("seen"): what
the column says does not change while the knowledge base learns it. Only the column, its head and the adaptors are
trained; the knowledge base it sees has no dropout.

Below, the equation is carried out as it stands; on a GPU the same is done faster, see `aligned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.cpu.dense import dropout_factors
from kenyon.backends.cpu.looped import Chunk, in_chunks
from kenyon.backends.layers import Params, PlannedLayers, dropout_factor, known_layers
from kenyon.backends.layout import Layout, Rows, aligned_alone
from kenyon.backends.triton.columns import Aligned
from kenyon.backends.triton.heads import own_logits
from kenyon.errors import ConfigError
from kenyon.models.initial import fresh, seeded
from kenyon.random import Noise, Purpose, key
from kenyon.utils.determinism import of_each_run

FIRST_SCALE = 0.1  # what the numbers a are drawn below
HEAD = ("active.head.weight", "active.head.bias")


def column_shapes(
    backbone: nn.Module, shape: tuple[int, ...], features: int, classes: int
) -> dict[str, tuple[int, ...]]:
    """Everything that an active column adds to a run's row; all but the head with a leading learner axis of one."""
    if not known_layers(backbone, shape):
        raise ConfigError(
            "An active column needs a backbone whose layers it knows: an nn.Sequential of convolutions, dense "
            "layers, pooling, nonlinearities and nn.Dropout."
        )
    weights = {name: (1, *p.shape) for name, p in backbone.named_parameters()}
    lateral: dict[str, tuple[int, ...]] = {}
    for name in adapted(backbone):
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


def adapted(backbone: nn.Module) -> list[str]:
    """The layers with a lateral connection."""
    return [name for name, layer in backbone.named_children() if isinstance(layer, (nn.Conv2d, nn.Linear))][1:]


class Columns(PlannedLayers):
    """The active columns of a fleet. Holds no parameters itself."""

    def __init__(
        self,
        backbone: nn.Sequential,
        shape: tuple[int, ...],
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`dtype`: in which the column computes; its head stays in that of the row."""
        super().__init__(backbone, shape, 1)
        aligned = Aligned(backbone, shape)
        self.aligned = aligned if device.type == "cuda" and aligned.known else None
        self.backbone, self.channels, self.layout, self.dtype = backbone, shape[0], layout, dtype
        self.names = tuple(name for name, _ in backbone.named_parameters())
        self.trained = tuple(n for n in layout.segments if n.startswith(("active.", "lateral.")) and n not in HEAD)
        self._moving = frozenset((*self.trained, *HEAD))
        self._still = frozenset(f"seen.{name}" for name in self.names)
        # Where in a row the weights begin that are seen.
        self.first_seen = min((layout.segments[name].start for name in self._still), default=0)
        weighty = [place for place, step in enumerate(self.steps) if isinstance(step.layer, (nn.Conv2d, nn.Linear))]
        self.last = weighty[-1] if weighty else 0  # behind its input the knowledge base is of no use
        flattening = (place for place, step in enumerate(self.steps) if isinstance(step.layer, nn.Flatten))
        # Where samples become vectors; -1: they are
        self.flattens = -1 if len(shape) == 1 else next(flattening, len(self.steps))

    @property
    def size(self) -> int:
        """Numbers of a run's row that there are for the sake of the column."""
        return sum(prod(self.layout.segments[name].shape) for name in self._moving | self._still)

    # ------------------------------------------------------------------ weights

    def begin(self, theta: Tensor, seeds: Sequence[int], task: int, classes: int, *, anew: bool = True) -> None:
        """Make the rows (R, P) ready for a task of so many classes: the head is new, with `anew` also the column and
        the adaptors; and the knowledge base is seen as it stands.
        """
        for row, seed in zip(theta, seeds, strict=True):
            for name, value in self._drawn(key(seed, Purpose.COLUMN, task), classes, anew).items():
                view = self.layout.view(row, name)
                view.zero_()  # a head's classes that a smaller task does not have
                (view[:classes] if name in HEAD else view[0]).copy_(value)
        for name in self.names:
            self.layout.view(theta, f"seen.{name}").copy_(self.layout.view(theta, name))

    def _drawn(self, seed_key: int, classes: int, anew: bool) -> Params:
        features = self.layout.segments[HEAD[0]].shape[1]
        head = seeded(partial(nn.Linear, features, classes), key(seed_key, 0))
        drawn = dict(zip(HEAD, (head.weight.detach(), head.bias.detach()), strict=True))
        if not anew:
            return drawn
        drawn |= {f"active.{n}": value for n, value in fresh(self.backbone, key(seed_key, 1)).items()}
        for number, name in enumerate(adapted(self.backbone)):
            units = self.layout.segments[f"lateral.{name}.c"].shape[1]
            inner = fresh(_with_bias(self.backbone.get_submodule(name)), key(seed_key, 2, number))
            outer = seeded(partial(nn.Linear, units, units, bias=False), key(seed_key, 3, number))
            generator = torch.Generator().manual_seed(key(seed_key, 4, number))
            drawn |= {
                f"lateral.{name}.V": inner["weight"],
                f"lateral.{name}.c": inner["bias"],
                f"lateral.{name}.U": outer.weight.detach(),
                f"lateral.{name}.a": FIRST_SCALE * torch.rand(units, generator=generator),
            }
        return drawn

    # ------------------------------------------------------------------ the forward pass

    def logits(
        self, row: Rows, images: Tensor, noise: Tensor | Noise | None = None, seen: list[Tensor] | None = None
    ) -> Tensor:
        """What the column says of images of the task at hand: of one run, row (P,) and samples (B, *shape) -> (B, C);
        of all runs of a small dense network, or on a GPU, likewise with a leading run axis. `seen`: the maps of the
        knowledge base that it sees, where somebody has them (see `Aligned.features`).
        """
        views = self.layout.views(row, self._moving)
        still = views if isinstance(row, dict) else self.layout.views(row.detach(), self._still)
        head = [views[name] for name in HEAD]
        parts = {name: views[name] for name in self.trained}
        parts |= {f"seen.{name}": still[f"seen.{name}"].detach() for name in self.names}
        if self.aligned is not None:
            return self._on_gpu(self.aligned, parts, head, images, noise, seen)
        cast = {name: value.to(self.dtype) for name, value in parts.items()}
        of = self._of_all_runs if head[1].ndim == 2 else self._of_one_run
        return _product(of(cast, images.to(self.dtype), noise).to(head[1].dtype), *head)

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
            mine = noise.unsqueeze(0) if isinstance(noise, Tensor) else noise
            views, head = {n: v.unsqueeze(0) for n, v in views.items()}, [part.unsqueeze(0) for part in head]
            return self._on_gpu(aligned, views, head, images.unsqueeze(0), mine).squeeze(0)
        B = images.shape[1]
        drawn = noise.bytes(self.noise_size(B)) if isinstance(noise, Noise) else noise
        each = {name: value.squeeze(1) for name, value in views.items()}
        features = aligned.features(each, images, self.bytes_of(drawn, B), self.dtype, seen)
        return own_logits(features.to(head[1].dtype).unsqueeze(1), *head).squeeze(1)

    def _of_one_run(self, views: Params, images: Tensor, noise: Tensor | Noise | None) -> Tensor:
        assert not isinstance(noise, Noise)
        images = images[:, : self.channels]  # without those that are there for the sake of alignment
        pieces = self.bytes_of(noise, len(images))
        trained = {name: views[name] for name in self.trained}
        seen = {name: views[f"seen.{name}"][0] for name in self.names}

        def features(chunk: Chunk, mine: Params) -> Tensor:
            x = images[chunk.samples]
            keep = [
                None if piece is None else dropout_factor(site, piece[chunk.samples], 0, x.dtype)
                for site, piece in zip(self.sites, pieces, strict=True)
            ]
            return self._column(mine, seen, x, keep)

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

    def _column(self, mine: Params, seen: Params, x: Tensor, keep: list[Tensor | None], runs: int = 0) -> Tensor:
        """x goes up the active column, z up the knowledge base.

        Of all `runs`, activations are (R * B, *shape) up to the flattening and (R, B, F) behind it.
        """
        z = x
        for place, step in enumerate(self.steps):
            name, layer = step.name, step.layer
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                x = _layer(layer, x, mine[f"active.{name}.weight"], mine.get(f"active.{name}.bias"))
                if f"lateral.{name}.V" in mine:
                    V, c, U, a = (mine[f"lateral.{name}.{part}"] for part in "VcUa")
                    inner = _layer(layer, z, V, c).relu()
                    U = U * a.unsqueeze(-1)  # the rows of U are scaled instead of what comes out
                    x = x + (
                        _product(inner, U) if isinstance(layer, nn.Linear) else F.conv2d(inner, U[..., None, None])
                    )
                if place < self.last:
                    z = _layer(layer, z, seen[f"{name}.weight"], seen.get(f"{name}.bias"))
            elif step.site is not None:
                factor = keep[step.number]
                x = x if factor is None else x * factor
            else:
                same, x = x is z, self._plain(place, x, runs)
                if place < self.last:
                    z = x if same else self._plain(place, z, runs)
        return x

    def _plain(self, place: int, x: Tensor, runs: int) -> Tensor:
        """A layer without parameters."""
        layer = self.steps[place].layer
        if runs and isinstance(layer, nn.Flatten):
            return x.flatten(1).unflatten(0, (runs, -1)) if place == self.flattens else x
        out: Tensor = layer(x)
        return out


def _layer(layer: nn.Conv2d | nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(x, aligned_alone(weight), bias, layer.stride, layer.padding, layer.dilation)
    return _product(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., B, I) by weight (..., O, I) and bias (..., O), each run by its own."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    turned = weight.transpose(1, 2)
    if bias is None:
        return of_each_run(torch.bmm, 1, x, turned)
    return of_each_run(torch.baddbmm, 1, bias.unsqueeze(1), x, turned)


def _with_bias(layer: nn.Module) -> nn.Module:
    """A layer of the same shape that has a bias."""
    if isinstance(layer, nn.Conv2d):
        settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return nn.Conv2d(layer.in_channels, layer.out_channels, *settings, device="meta")  # type: ignore[arg-type]
    assert isinstance(layer, nn.Linear)
    return nn.Linear(layer.in_features, layer.out_features, device="meta")
