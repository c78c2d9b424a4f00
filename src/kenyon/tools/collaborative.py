"""Several learners with a shared head, as an ordinary module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError


class Collaborative(nn.Module):
    """K learners whose output vectors are summed for the head; a learner's own prediction is the head of its own.

    As `kenyon.nets.Net` has it, for modules of any kind. Learners must be made one by one: copies of one start equal.
    """

    def __init__(self, backbones: Sequence[nn.Module], heads: nn.Module | Sequence[nn.Module]) -> None:
        """Every backbone maps a batch to vectors (B, F); `heads` map those to logits: one, or one a task."""
        super().__init__()
        if len(backbones) < 1:
            raise ConfigError("There must be at least one backbone.")
        if len({id(backbone) for backbone in backbones}) < len(backbones):
            raise ConfigError("A backbone is given twice: these learners would share their weights. Make each anew.")
        self.backbones = nn.ModuleList(backbones)
        if isinstance(heads, nn.Module) and not isinstance(heads, nn.ModuleList):
            heads = [heads]
        self.heads = nn.ModuleList(heads)

    @property
    def learners(self) -> int:
        return len(self.backbones)

    @overload
    def forward(self, x: Tensor, task: int = 0, *, own: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, task: int = 0, *, own: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, task: int = 0, *, own: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of the learners together (B, C); with `own` those of each learner alone too, (K, B, C)."""
        each = [backbone(x) for backbone in self.backbones]
        if any(vector.shape[-1] != each[0].shape[-1] for vector in each):
            widths = ", ".join(str(vector.shape[-1]) for vector in each)
            raise ConfigError(f"Backbones must give vectors of one length, to be summed, and these give {widths}.")
        vectors = torch.stack(each)  # (K, B, F)
        if not 0 <= task < len(self.heads):
            raise ConfigError(f"There is no head {task}: there are {len(self.heads)}, counted from 0.")
        head = self.heads[task]
        logits = head(vectors.sum(0))
        if not own:
            return logits
        return logits, head(vectors.flatten(0, 1)).unflatten(0, (self.learners, -1))
