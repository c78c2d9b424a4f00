"""The network: R runs x K learners of one backbone, and one head per task that the learners share.

K = 1 is an ordinary network. Learner i maps a sample to a feature vector f_i; `heads` turns the vectors into
predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from kenyon.backends import choose_executor
from kenyon.backends.cuda.interface import Pictures
from kenyon.backends.executor import Executor, Request
from kenyon.backends.layout import InUse, Layout, Rows, aligned_alone
from kenyon.backends.torch.module import cast, feature_count, split_backbone
from kenyon.errors import ConfigError
from kenyon.models.heads import FirstHeads, Heads, Outputs
from kenyon.models.initial import InitialWeights, Start
from kenyon.models.statistics import Statistics
from kenyon.random import Noise, Purpose, key, normal

if TYPE_CHECKING:
    from kenyon.models.columns import Columns

Diversity = Literal["low", "medium", "high"]


class Net:
    """The layout, initial weights and forward pass of a network. Holds no parameters itself."""

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
        """Build the network of tasks with `class_counts` classes each.

        Args:
            backbone: maps samples (B, *input_shape) to features (B, F)
            input_dtype: float32, or int64 if samples are tokens
            diversity: high: every learner has initial weights of its own; medium and low: all learners start as
                copies of the first; low: no dropout either
            gate: multiply each learner's vector by a learned gate of the task
            first_heads: initial heads are drawn, or zero, so that all classes are equally likely
            learned: shapes of the parameters that the method learns itself, by name
            active_column: add the column of Progress & Compress
            values: add a value head of one number to the head of every task, for reinforcement learning
            shared_head: one head serves all tasks, which must have the same classes
            start: initial weights are drawn for every learner and seed, or are those given in `backbone`
            draw: builds the module again to draw initial weights; without it, layers call reset_parameters()
            dtype: the type that learners compute in; parameters, heads and losses are float32
            in_place: samples are images that kernels may read in the pool where they are stored
        """
        if learners < 1:
            raise ConfigError(f"learners must be at least 1, not {learners}.")
        if diversity not in get_args(Diversity):
            raise ConfigError(f"diversity must be low, medium or high, not '{diversity}'.")
        if active_column and (learners > 1 or gate):
            raise ConfigError("A network with an active column has one learner and no task gates.")
        if shared_head and len(set(class_counts)) > 1:
            raise ConfigError(f"Tasks that share a head need the same classes, not {tuple(class_counts)} of them.")
        self.device = torch.device(device)
        self.learners, self.diversity, self.gate, self.values = learners, diversity, gate, values
        self.tasks, self.shared = len(class_counts), shared_head
        self.class_counts = tuple(class_counts[:1] if shared_head else class_counts)  # of every head
        self.input_shape, self.learned = tuple(input_shape), dict(learned or {})

        # The parts. `backbone` is a template without storage: weights of all learners are in the rows of the runs.
        parts = split_backbone(backbone)
        self.backbone = _without_dropout(parts.template) if diversity == "low" else parts.template
        self.backbone_names = tuple(parts.trained)
        self.initial_weights = InitialWeights(parts, start, draw)
        self.features = feature_count(parts, self.input_shape, input_dtype)
        self.dtype = self._compute_dtype(dtype, normalizes=bool(parts.statistics))
        self.statistics = Statistics(parts.statistics, given=start == "given")
        self.heads = Heads(
            self.class_counts,
            self.features,
            learners,
            values=values,
            gate=gate,
            first=first_heads,
            device=self.device,
        )
        self.head_names = tuple(self.heads.shapes)

        self.layout = self._lay_out({n: p.shape for n, p in parts.trained.items()}, active_column)

        self._constants, self._in_place = parts.constants, in_place
        self.executor = self._choose_executor()
        self.columns: Columns | None = None
        if active_column:
            from kenyon.models.columns import Columns

            self.columns = Columns(self.backbone, self.input_shape, self.layout, self.dtype, self.device)
        if self.executor.checks and (self.device.type == "cuda" or self.dtype == torch.bfloat16):
            self._try_out(input_dtype, chosen=dtype is not None)

    # ------------------------------------------------------------------ construction

    def _compute_dtype(self, dtype: torch.dtype | None, *, normalizes: bool) -> torch.dtype:
        """Return the type that learners compute in: by default bfloat16 on a GPU, unless a backbone `normalizes`."""
        half = self.device.type == "cuda" and not normalizes
        chosen = dtype or (torch.bfloat16 if half else torch.float32)
        if normalizes and chosen not in (torch.float32, torch.float64):
            raise ConfigError(
                "Running statistics need float32: choose precision float32, or GroupNorm for BatchNorm."
            )
        return chosen

    def _lay_out(self, backbone: Mapping[str, tuple[int, ...]], active_column: bool) -> Layout:
        """Return the layout of a run's row, from the shapes of one learner's weights."""
        T, heads = len(self.class_counts), self.heads.shapes
        protected = {name: (self.learners, *shape) for name, shape in backbone.items()}
        if self.gate:
            protected["gate"] = (self.learners, T, self.features)
        statistics = self.statistics.shapes(T, self.learners)
        column: dict[str, tuple[int, ...]] = {}
        if active_column:
            from kenyon.models.columns import column_shapes

            column = column_shapes(self.backbone, self.input_shape, self.features, max(self.class_counts))
        own_names = {*heads, *column, *self.learned, *(("gate",) if self.gate else ())}
        if taken := next((name for name in (*backbone, *statistics) if name in own_names), None):
            raise ConfigError(
                f"The backbone's {taken} has a name that Kenyon gives itself. Rename that part of the module, or put "
                "the module into another one."
            )
        self.per_head = frozenset({*heads, *statistics})  # parts with a leading head axis
        self._forward_names = frozenset({*protected, *heads, *statistics})  # parts that `forward` reads
        return Layout(protected, {**heads, **statistics, **column, **self.learned})

    def _choose_executor(self) -> Executor:
        return choose_executor(
            Request(
                self.backbone,
                self.input_shape,
                self.layout,
                self.learners,
                self.device,
                self.dtype,
                self.features,
                self._constants,
                self._in_place,
            )
        )

    def _try_out(self, input_dtype: torch.dtype, *, chosen: bool) -> None:
        """Check before training that the backbone computes on the device, forwards and backwards. One that cannot in
        bfloat16 uses float32, unless bfloat16 was `chosen`.
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
        """Compute one training step on a few samples; return the first line of the error, or None."""
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
            if "CUDA error" in str(error):  # the process cannot use the device any more
                raise
            return str(error).strip().splitlines()[0].rstrip(".")
        return None

    # ------------------------------------------------------------------ properties

    @cached_property
    def groups(self) -> Tensor:
        """(P,) the group of each number of a row: l * K + k for learner k's part of backbone tensor l, then one group
        for the head of every task; -1 for all others.
        """
        most = len(self.backbone_names) * self.learners + len(self.class_counts)
        # The smallest type that holds the numbers: an optimizer's pass reads all of them.
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
        """(L * K + 1,) the positions in a row at which the groups of the backbone begin, and the end of the last."""
        sizes = [
            self.layout.segments[n].size // self.learners for n in self.backbone_names for _ in range(self.learners)
        ]
        return torch.tensor([0, *accumulate(sizes)], device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros in the type that learners compute in."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def head_of(self, task: int) -> int:
        return 0 if self.shared else task

    def heads_of(self, tasks: Sequence[int]) -> Tensor:
        """Return the heads of these tasks, (n,); if all tasks share one, (1,)."""
        return torch.tensor([0] if self.shared else list(tasks), device=self.device)

    @property
    def together(self) -> bool:
        """True if `forward` takes all runs at once."""
        return self.executor.all_runs

    @property
    def small(self) -> bool:
        """True if waking threads of a CPU takes longer than they save."""
        return self.executor.small

    @property
    def parameter_count(self) -> int:
        """Trainable numbers of one run, heads included, without parameters of the method and without an active column
        (see `Columns.size`).
        """
        column = 0 if self.columns is None else self.columns.size
        others = sum(self.layout.segments[n].size for n in (*self.learned, *self.statistics.initial))
        return self.layout.size - others - self.heads.padding - column

    # ------------------------------------------------------------------ initial weights

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """Return the initial weights of each seed, (R, P): PyTorch's default initialization, or the given weights."""
        rows = torch.zeros(len(seeds), self.layout.size)
        for row, seed in zip(rows, seeds, strict=True):
            views = {name: self.layout.view(row, name) for name in self.layout.segments}
            for k in range(self.learners):
                source = k if self.diversity == "high" else 0
                for name, value in self.initial_weights(key(seed, Purpose.LEARNER, source)).items():
                    views[name][k] = value
            self.statistics.initialize(views)
            self.heads.initialize(views, seed)
        if self.columns is not None:
            self.columns.start_task(rows, seeds, 0, self.class_counts[0])
        return rows.to(self.device)

    def draw_learned(self, rows: Tensor, seeds: Sequence[int], task: int) -> None:
        """Draw the parameters of the method from N(0, 1), for a task, in rows (R, P)."""
        for number, name in enumerate(self.learned):
            view = self.layout.view(rows, name)
            for run, seed in enumerate(seeds):
                view[run] = normal(key(seed, Purpose.LEARNED, task, number), tuple(view.shape[1:]))

    def fresh_learner(self, seed_key: int) -> dict[str, Tensor]:
        """Draw the initial weights of one learner from a key; return them by name, on the CPU."""
        return self.initial_weights.draw(seed_key)

    # ------------------------------------------------------------------ the forward pass

    def forward(
        self,
        row: Rows,
        images: Tensor | Pictures,
        heads: Tensor,
        member: Tensor | None = None,
        *,
        noise: Tensor | Noise | None = None,
        own: bool = False,
        earlier: Tensor | None = None,
    ) -> Outputs:
        """Predict a batch, of one run or of all.

        One run: `row` (P,) or its named views, `images` (B, *shape) normalized, `noise` random bytes (n,). All runs,
        if the executor computes them together: `row` (R, P), `images` (R, B, *shape) or by reference, the `noise` of
        the step. Without noise there is no dropout. `heads` (n,) are those in use, and `member` (..., B) is the
        position in `heads` of each sample's own (None if there is one). `own`: return each learner's predictions
        too, and `earlier` (n,): those of the heads of earlier tasks, for the whole batch.
        """
        views = self.layout.views(row, self._forward_names)
        statistics = None
        if self.statistics:
            f, statistics = self._normalized_features(views, images, heads, member, noise)
        else:
            f = self._features(row, images, noise, views)  # (..., K, B, F)
        out = self.heads.outputs(f, views, heads, member, own=own)
        if earlier is not None:
            out = replace(out, earlier=self.heads.every(f, views, earlier))
        return out if statistics is None else replace(out, statistics=statistics)

    def in_use(self, weights: Tensor, theta: Tensor, heads: Tensor, times: int = 1) -> InUse:
        """Return the parts that `forward` reads where kernels take all runs, so that each can have a gradient: the
        protected weights as given, (R * times, ...), and from rows (R, P) the heads in use and the parameters of the
        method, repeated `times` times.
        """
        parts = self.layout.protected_views(weights)
        for name in (*self.head_names, *self.learned):
            view = self.layout.view(theta.detach(), name)
            view = view.index_select(1, heads) if name in self.per_head else view
            parts[name] = view.repeat_interleave(times, 0) if times > 1 else view
        return InUse(parts, weights)

    def vectors(self, row: Rows, images: Tensor | Pictures, heads: Tensor) -> Tensor:
        """Return the learners' features of a test batch of one task, (..., K, B, F), before gates; see `forward`."""
        if self.statistics:
            return self._normalized_features(self.layout.views(row, self._forward_names), images, heads)[0]
        return self._features(row, images, None)

    def every_head(self, row: Rows, images: Tensor | Pictures, heads: Tensor) -> Tensor:
        """Return the logits of each of the heads (n,) for a whole test batch, (..., n, B, C); see `forward`.

        Unless heads have gates or statistics, the learners compute the batch once for all heads.
        """
        if self.gate or self.statistics:
            return torch.stack([self.forward(row, images, head).logits for head in heads.split(1)], dim=-3)
        views = self.layout.views(row, self._forward_names)
        return self.heads.every(self._features(row, images, None, views), views, heads)

    def of_learner(self, views: Mapping[str, Tensor], k: int, head: int) -> dict[str, Tensor]:
        """Return all tensors of one learner's backbone in tests, by name, from the named views of a row (P,)."""
        statistics = {name: views[name][head, k] for name in self.statistics.initial}
        own = {**statistics, **{name: views[name][k] for name in self.backbone_names}}
        return {**self.executor.constants, **{name: aligned_alone(value) for name, value in own.items()}}

    def active_logits(
        self, row: Rows, images: Tensor | Pictures, heads: Tensor, noise: Tensor | Noise | None = None
    ) -> Tensor:
        """Return the logits of the active column for a batch of one task, heads (1,): (..., B, C); see `forward`."""
        assert self.columns is not None
        seen: list[Tensor] | None = None
        if isinstance(images, Pictures):
            assert isinstance(row, Tensor) and images.laid_out is not None
            seen = self.executor.maps(row.detach()[:, self.columns.first_seen :], images)
            images = images.laid_out()
        return self.heads.mask_absent(self.columns.logits(row, images, noise, seen), heads)

    def _features(
        self,
        row: Rows,
        images: Tensor | Pictures,
        noise: Tensor | Noise | None,
        views: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the learners' features, (..., K, B, F)."""
        views = views or self.layout.views(row, self._forward_names)
        dtype = views["head.bias"].dtype
        whole = row if isinstance(row, Tensor) else None
        rows = row.weights if isinstance(row, InUse) else whole
        if not isinstance(images, Pictures):
            images = cast(images, self.dtype)
            if whole is not None and self.dtype != dtype:
                views = self.layout.views(whole.to(self.dtype), self._forward_names)  # one conversion for all names
        params = self.executor.prepared(views, self.backbone_names, self.dtype)
        return self.executor.forward(params, images, noise, rows=rows).to(dtype)

    def _normalized_features(
        self,
        views: dict[str, Tensor],
        images: Tensor | Pictures,
        heads: Tensor,
        member: Tensor | None = None,
        noise: Tensor | Noise | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Return the features of a backbone with running statistics, and in training the updated statistics.

        In training, a batch is normalized by itself and added to the statistics of the first head in use; in tests,
        every sample is normalized by the statistics of its own task.
        """
        assert isinstance(images, Tensor) and not isinstance(noise, Noise)
        params = self.executor.prepared(views, self.backbone_names, self.dtype)
        batch = (self.executor, params, views, cast(images, self.dtype))
        if noise is not None or member is None:
            features, statistics = self.statistics.features(*batch, heads[:1], noise)
            return features.to(views["head.bias"].dtype), None if noise is None else statistics
        features = self.statistics.features_by_task(*batch, heads, member)
        return features.to(views["head.bias"].dtype), None


# Layers that drop out at random, subclasses included, and the attribute that holds the probability.
_DROPOUT = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}


def _without_dropout(backbone: nn.Module) -> nn.Module:
    for layer in backbone.modules():
        for kind, probability in _DROPOUT.items():
            if isinstance(layer, kind):
                setattr(layer, probability, 0.0)
    return backbone
