"""R runs x K learners of a backbone, with a head per task that the learners share. K = 1 is the ordinary network.

A learner i maps a sample to its output vector f_i; what becomes of the vectors is in `heads`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from kenyon.backends import choose_executor
from kenyon.backends.cuda.interface import Pictures
from kenyon.backends.executor import Executor, Request
from kenyon.backends.layout import InUse, Layout, Rows, aligned_alone
from kenyon.backends.torch.module import cast, feature_count, split_backbone
from kenyon.errors import ConfigError
from kenyon.models.columns import Columns, column_shapes
from kenyon.models.heads import FirstHeads, Heads, Outputs
from kenyon.models.initial import FirstWeights, Start
from kenyon.models.statistics import Statistics
from kenyon.random import Noise, Purpose, key, normal

Diversity = Literal["low", "medium", "high"]


class Net:
    """The network of a fleet: its layout, its first weights and its forward pass. Holds no parameters itself."""

    def __init__(
        self,
        backbone: nn.Module,
        input_shape: tuple[int, ...],
        class_counts: Sequence[int],
        *,
        input_dtype: torch.dtype = torch.float32,
        learners: int = 1,
        diversity: Diversity = "high",
        gate: bool = False,
        first_heads: FirstHeads = "drawn",
        learned: Mapping[str, tuple[int, ...]] | None = None,
        active_column: bool = False,
        values: bool = False,
        shared_head: bool = False,
        start: Start = "drawn",
        draw: Callable[[], nn.Module] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        in_place: bool = True,
    ) -> None:
        """`input_dtype`: float32, or int64 where samples are tokens; `in_place`: whether samples are images, seen as
        they lie in their pool, so that kernels may read them there; `values`: every task has a second head of one
        number, beside the one that chooses; `shared_head`: one head serves all tasks, which then have the same
        classes, instead of one for each. `class_counts` are those of the tasks.

        `start`: first weights are drawn for every learner and seed, or all learners start from those given in the
        backbone. `draw` gives the module anew; without it, its layers draw theirs by reset_parameters().
        `first_heads`: heads are drawn, or begin at zero, so that at first no class is more likely than another.
        """
        if learners < 1:
            raise ConfigError(f"learners must be at least 1, not {learners}.")
        if diversity not in get_args(Diversity):
            raise ConfigError(f"diversity must be low, medium or high, not '{diversity}'.")
        if active_column and (learners > 1 or gate):
            raise ConfigError("A network with an active column has one learner and no task gates.")
        self.device = torch.device(device)
        # A template without storage: every learner's weights live in the fleet's flat rows.
        parts = split_backbone(backbone)
        self.backbone = _without_dropout(parts.template) if diversity == "low" else parts.template
        self.first_weights = FirstWeights(parts, start, draw)
        self.learners, self.diversity, self.gate = learners, diversity, gate
        self.tasks, self.shared = len(class_counts), shared_head
        if self.shared and len(set(class_counts)) > 1:
            raise ConfigError(f"Tasks that share a head need the same classes, not {tuple(class_counts)} of them.")
        self.class_counts = tuple(class_counts[:1] if self.shared else class_counts)  # of every head
        self.input_shape = tuple(input_shape)
        self.features = feature_count(parts, self.input_shape, input_dtype)
        self.learned = dict(learned or {})
        # Learners compute in `dtype`; parameters, heads and losses stay in float32.
        half = self.device.type == "cuda" and not parts.statistics
        self.dtype = dtype or (torch.bfloat16 if half else torch.float32)
        if parts.statistics and self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                "Running statistics need float32: choose precision float32, or GroupNorm for BatchNorm."
            )

        asked: dict[str, Any] = {"values": values, "gate": gate, "first": first_heads}
        self.heads = Heads(self.class_counts, self.features, learners, **asked, device=self.device)
        T, C, ends = len(self.class_counts), max(self.class_counts), self.heads.shapes
        self.backbone_names = tuple(parts.trained)
        protected = {n: (learners, *p.shape) for n, p in parts.trained.items()}
        if gate:
            protected["gate"] = (learners, T, self.features)
        self.head_names, self.values = tuple(ends), values
        self.statistics = Statistics(parts.statistics, given=start == "given")
        seen = self.statistics.shapes(T, learners)
        self.per_head = frozenset({*ends, *seen})  # what has a leading head axis
        # What `forward` looks at of a row.
        self._used = frozenset({*protected, *ends, *seen})
        column = column_shapes(self.backbone, self.input_shape, self.features, C) if active_column else {}
        free = {**ends, **column, **self.learned, **({"gate": ()} if gate else {})}
        if taken := next((name for name in (*parts.trained, *seen) if name in free), None):
            raise ConfigError(
                f"The backbone's {taken} has a name that Kenyon gives itself. Rename that part of the module, or put "
                "the module into another one."
            )
        self.layout = Layout(protected, {**ends, **seen, **column, **self.learned})
        self._constants, self._in_place = parts.constants, in_place
        self.executor = self._choose_executor()
        self.columns: Columns | None = None
        if active_column:
            assert isinstance(self.backbone, nn.Sequential)
            self.columns = Columns(self.backbone, self.input_shape, self.layout, self.dtype, self.device)
        if self.executor.checks and (self.device.type == "cuda" or self.dtype == torch.bfloat16):
            self._try_out(input_dtype, chosen=dtype is not None)

    def _choose_executor(self) -> Executor:
        where = (self.device, self.dtype, self.features, self._constants, self._in_place)
        return choose_executor(Request(self.backbone, self.input_shape, self.layout, self.learners, *where))

    def _try_out(self, input_dtype: torch.dtype, *, chosen: bool) -> None:
        """See that a module computes on this device, forwards and backwards, before anything is trained. One that
        cannot in bfloat16 uses float32, unless bfloat16 was `chosen`.
        """
        problem = self._problem_with(input_dtype)
        if problem is None:
            return
        if self.dtype == torch.bfloat16:
            self.dtype = torch.float32
            self.executor = self._choose_executor()
            if self._problem_with(input_dtype) is None:
                if chosen:
                    raise ConfigError(
                        f"The backbone cannot compute in bfloat16 ({problem}). Choose precision float32 or auto."
                    )
                warnings.warn(f"The backbone cannot compute in bfloat16 ({problem}): it uses float32.", stacklevel=4)
                return
        raise ConfigError(
            f"The backbone computes on a CPU, and not on {self.device} ({problem}). Choose the device cpu, or change "
            "that part of the module: what it computes with has to be a parameter, a buffer or made on x.device."
        )

    def _problem_with(self, input_dtype: torch.dtype) -> str | None:
        """What keeps the backbone from a training step on a few samples: the first sentence of the error."""
        leaves = {name: part.requires_grad_() for name, part in self.layout.views(self.initial([0])[0]).items()}
        samples = torch.zeros(4, *self.input_shape, dtype=input_dtype, device=self.device)
        if input_dtype.is_floating_point:
            samples.copy_(normal(0, tuple(samples.shape)))
        noise = torch.zeros(8, dtype=torch.uint8, device=self.device)
        try:
            with torch.enable_grad():
                logits = self.forward(leaves, samples, self.heads_of([0]), noise=noise).logits
                torch.autograd.grad(logits.square().mean(), list(leaves.values()), allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            if "CUDA error" in str(error):  # nothing can be computed there any more
                raise
            return str(error).strip().splitlines()[0].rstrip(".")
        return None

    @cached_property
    def groups(self) -> Tensor:
        """(P,) which group each number of a row belongs to: l * K + k for learner k's part of backbone tensor l, then
        one group for the head of every task; -1 for all others."""
        most = len(self.backbone_names) * self.learners + len(self.class_counts)
        # As small as may be: an optimiser's pass reads them all.
        dtype = next(t for t in (torch.int8, torch.int16, torch.int32) if most <= torch.iinfo(t).max)
        row = torch.full((self.layout.size,), -1, dtype=dtype)
        for number, name in enumerate(self.backbone_names):
            part = self.layout.view(row, name)
            part.copy_(torch.arange(self.learners).view(-1, *(1,) * (part.ndim - 1)) + number * self.learners)
        tasks = torch.arange(len(self.class_counts)) + len(self.backbone_names) * self.learners
        for name in self.head_names:
            part = self.layout.view(row, name)
            part.copy_(tasks.view(-1, *(1,) * (part.ndim - 1)))
        return row.to(self.device)

    @cached_property
    def group_bounds(self) -> Tensor:
        """(L * K + 1,) where the groups of the backbone begin and end."""
        sizes = [
            self.layout.segments[n].size // self.learners for n in self.backbone_names for _ in range(self.learners)
        ]
        return torch.tensor([0, *accumulate(sizes)], device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Room for what learners compute."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def head_of(self, task: int) -> int:
        return 0 if self.shared else task

    def heads_of(self, tasks: Sequence[int]) -> Tensor:
        """The heads that these tasks use, (n,): one for each of them, or the one that all share."""
        return torch.tensor([0] if self.shared else list(tasks), device=self.device)

    @property
    def together(self) -> bool:
        """Whether `forward` takes all runs at once."""
        return self.executor.all_runs

    @property
    def small(self) -> bool:
        """Whether a CPU loses more to waking threads than it gains from them."""
        return self.executor.small

    @property
    def parameter_count(self) -> int:
        """Trainable numbers of one run, heads included, without what a method learns for itself and without an
        active column (whose `Columns.size` tells what it adds)."""
        beside = 0 if self.columns is None else self.columns.size
        others = sum(self.layout.segments[n].size for n in (*self.learned, *self.statistics.first))
        return self.layout.size - others - self.heads.padding - beside

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """The first weights of each seed, (R, P): PyTorch's default initialisation, or those that were given.

        High diversity: every learner draws its own; medium and low: all learners start as copies of the first.
        """
        rows = torch.zeros(len(seeds), self.layout.size)
        for row, seed in zip(rows, seeds, strict=True):
            views = {name: self.layout.view(row, name) for name in self.layout.segments}
            for k in range(self.learners):
                source = k if self.diversity == "high" else 0
                for name, value in self.first_weights(key(seed, Purpose.LEARNER, source)).items():
                    views[name][k] = value
            self.statistics.begin(views)
            self.heads.draw(views, seed)
        if self.columns is not None:
            self.columns.begin(rows, seeds, 0, self.class_counts[0])
        return rows.to(self.device)

    def draw_learned(self, rows: Tensor, seeds: Sequence[int], task: int) -> None:
        """Begin a task with what the method learns for itself anew, in rows (R, P): from N(0, 1)."""
        for number, name in enumerate(self.learned):
            view = self.layout.view(rows, name)
            for run, seed in enumerate(seeds):
                view[run] = normal(key(seed, Purpose.LEARNED, task, number), tuple(view.shape[1:]))

    def fresh_learner(self, seed_key: int) -> dict[str, Tensor]:
        """The first weights of one learner by name, drawn from a key, on the CPU."""
        return self.first_weights.drawn(seed_key)

    def forward(
        self,
        row: Rows,
        images: Tensor | Pictures,
        heads: Tensor,
        member: Tensor | None = None,
        *,
        noise: Tensor | Noise | None = None,
        own: bool = False,
    ) -> Outputs:
        """Predictions for a batch, of one run or of all.

        One run: `row` (P,) or its named views, `images` (B, *shape) normalised, `noise` random bytes (n,). All runs,
        where they are computed together: `row` (R, P), `images` (R, B, *shape) or by reference, the `noise` of the
        step. `heads` (n,) are the tasks whose heads are in use and `member` (..., B) which of them each sample
        belongs to (None when there is one).
        """
        views = self.layout.views(row, self._used)
        statistics = None
        if self.statistics:
            f, statistics = self._normalised(views, images, heads, member, noise)
        else:
            f = self._features(row, images, noise, views)  # (..., K, B, F)
        out = self.heads.outputs(f, views, heads, member, own=own)
        return out if statistics is None else replace(out, statistics=statistics)

    def in_use(self, weights: Tensor, theta: Tensor, heads: Tensor, times: int = 1) -> InUse:
        """What `forward` looks at where all runs go through our kernels, as parts that can each have a gradient: the
        protected weights as given, (R * times, ...), and from rows (R, P) the heads in use, and what a method learns
        itself, so many times each.
        """
        parts = self.layout.protected_views(weights)
        for name in (*self.head_names, *self.learned):
            view = self.layout.view(theta.detach(), name)
            view = view.index_select(1, heads) if name in self.per_head else view
            parts[name] = view.repeat_interleave(times, 0) if times > 1 else view
        return InUse(parts, weights)

    def vectors(self, row: Rows, images: Tensor | Pictures, heads: Tensor) -> Tensor:
        """What the learners make of a batch of one task in tests, (..., K, B, F), before task gates; arguments as
        `forward`."""
        if self.statistics:
            return self._normalised(self.layout.views(row, self._used), images, heads)[0]
        return self._features(row, images, None)

    def every_head(self, row: Rows, images: Tensor | Pictures, heads: Tensor) -> Tensor:
        """What each of the heads (n,) says of a whole batch in tests, (..., n, B, C); arguments as `forward`. Where
        heads have no gates or statistics of their own, the learners look at the batch once for all.
        """
        if self.gate or self.statistics:
            return torch.stack([self.forward(row, images, head).logits for head in heads.split(1)], dim=-3)
        views = self.layout.views(row, self._used)
        return self.heads.every(self._features(row, images, None, views), views, heads)

    def of_learner(self, views: Mapping[str, Tensor], k: int, head: int) -> dict[str, Tensor]:
        """All tensors of one learner's backbone in tests, by name, from the named views of a row (P,)."""
        seen = {name: views[name][head, k] for name in self.statistics.first}
        own = {**seen, **{name: views[name][k] for name in self.backbone_names}}
        return {**self.executor.constants, **{name: aligned_alone(value) for name, value in own.items()}}

    def active_logits(
        self, row: Rows, images: Tensor | Pictures, heads: Tensor, noise: Tensor | Noise | None = None
    ) -> Tensor:
        """What the active column says of a batch of one task, heads (1,): (..., B, C), as `forward`."""
        assert self.columns is not None
        seen: list[Tensor] | None = None
        if isinstance(images, Pictures):
            assert isinstance(row, Tensor) and images.laid_out is not None
            seen = self.executor.maps(row.detach()[:, self.columns.first_seen :], images)
            images = images.laid_out()
        return self.heads.without_absent(self.columns.logits(row, images, noise, seen), heads)

    def _features(
        self,
        row: Rows,
        images: Tensor | Pictures,
        noise: Tensor | Noise | None,
        views: dict[str, Tensor] | None = None,
    ) -> Tensor:
        views = views or self.layout.views(row, self._used)
        dtype = views["head.bias"].dtype
        rows = row.weights if isinstance(row, InUse) else row if isinstance(row, Tensor) else None
        if not isinstance(images, Pictures):
            images = cast(images, self.dtype)
            if isinstance(row, Tensor) and self.dtype != dtype:
                views = self.layout.views(row.to(self.dtype), self._used)  # all at once
        params = self.executor.prepared(views, self.backbone_names, self.dtype)
        return self.executor.forward(params, images, noise, rows=rows).to(dtype)

    def _normalised(
        self,
        views: dict[str, Tensor],
        images: Tensor | Pictures,
        heads: Tensor,
        member: Tensor | None = None,
        noise: Tensor | Noise | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """As `_features`, of a backbone with running statistics. In training a batch is normalised by itself, and
        added to those of the first head in use; in tests every sample is normalised by those of its own task.
        """
        assert isinstance(images, Tensor) and not isinstance(noise, Noise)
        params = self.executor.prepared(views, self.backbone_names, self.dtype)
        seen = (self.executor, params, views, cast(images, self.dtype))
        if noise is not None or member is None:
            features, statistics = self.statistics.features(*seen, heads[:1], noise)
            return features.to(views["head.bias"].dtype), None if noise is None else statistics
        features = self.statistics.of_each(*seen, heads, member)
        return features.to(views["head.bias"].dtype), None


def _without_dropout(backbone: nn.Module) -> nn.Module:
    for layer in backbone.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):  # Dropout, Dropout2d, AlphaDropout, ...
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return backbone
