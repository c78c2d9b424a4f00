"""Methods that keep old samples."""

from __future__ import annotations

from kenyon.methods.registry import Method, method
from kenyon.replay import Replay, ReplayForm


@method
def er(memory: int = 20, replay_batch: int = 64, replay: ReplayForm = "published") -> Method:
    """Experience replay: keep old samples (no other method does), `memory` of every class, and learn them again."""
    return Method(replay=Replay(memory, replay_batch, replay))
