"""What convolutions of K learners leave, in one of two orders, both in channels_last memory:

    joined   (B, padded(K*C), H, W)  the learners' channels side by side, for one convolution of all learners
    parted   (K*B, eights(C), H, W)  learner after learner, for batched products

Channels beyond those of the learners are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.layers import padded


def eights(channels: int) -> int:
    """As many as 16 bytes of bfloat16 each hold."""
    return -(-channels // 8) * 8


@dataclass(frozen=True)
class Maps:
    data: Tensor
    learners: int
    channels: int  # of one learner
    parted: bool = False

    @property
    def batch(self) -> int:
        return len(self.data) // self.learners if self.parted else len(self.data)

    def part(self) -> Maps:
        if self.parted:
            return self
        each = self.data[:, : self.learners * self.channels].permute(0, 2, 3, 1)  # (B, H, W, K*C)
        each = each.unflatten(3, (self.learners, self.channels)).permute(3, 0, 1, 2, 4)
        each = F.pad(each, (0, eights(self.channels) - self.channels)).contiguous()
        return Maps(each.flatten(0, 1).permute(0, 3, 1, 2), self.learners, self.channels, parted=True)

    def join(self) -> Maps:
        if not self.parted:
            return self
        each = self._of_each().permute(1, 3, 4, 0, 2).flatten(3)  # (B, H, W, K*C)
        each = F.pad(each, (0, padded(each.shape[3]) - each.shape[3])).contiguous()
        return Maps(each.permute(0, 3, 1, 2), self.learners, self.channels)

    def flat(self) -> Tensor:
        """(K, B, C*H*W), each learner's features in PyTorch's own order."""
        if self.parted:
            return self._of_each().flatten(2)
        real = self.data[:, : self.learners * self.channels]
        return real.unflatten(1, (self.learners, self.channels)).transpose(0, 1).flatten(2)

    def biased(self, bias: Tensor) -> Tensor:
        """The data plus biases (K, C)."""
        if self.parted:
            wide = F.pad(bias, (0, self.data.shape[1] - self.channels))  # (K, eights(C))
            return self.data + wide.repeat_interleave(self.batch, 0)[..., None, None]
        flat = bias.reshape(-1)
        return self.data + F.pad(flat, (0, self.data.shape[1] - len(flat))).view(1, -1, 1, 1)

    def _of_each(self) -> Tensor:
        """Parted ones as (K, B, C, H, W)."""
        data = self.data if self.data.shape[1] == self.channels else self.data[:, : self.channels]
        return data.unflatten(0, (self.learners, -1))
