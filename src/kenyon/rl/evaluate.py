"""Scores of a fleet's policies: whole episodes of every game, always the most likely action."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kenyon.nets import Net
from kenyon.rl.crowd import Crowd
from kenyon.rl.environment import Games
from kenyon.rl.rollout import looked_at
from kenyon.train.device import Captured, Runs


@torch.no_grad()
def greedy_scores(
    net: Net,
    theta: Tensor,
    games: Sequence[Sequence[Games]],
    heads: Sequence[int],
    *,
    live: Sequence[int],
    longest: int,
) -> Tensor:
    """The raw score of the first episode of every copy, (R, G, E); all games of all runs are played at once.

    `games`: G games a run, of E copies each, with the given heads. Runs that are not live, and episodes that have not
    ended after the `longest` number of steps, have no score (NaN). The games stay open.
    """
    R, G, E = len(games), len(heads), games[0][0].count
    crowd = Crowd(games, net.device, threads=not net.together)
    used = torch.tensor(heads, device=net.device)
    member = torch.arange(G, device=net.device).repeat_interleave(E).expand(R, -1).contiguous()  # (R, G * E)
    actions = torch.zeros(R, G * E, dtype=torch.long, device=net.device)
    scores = torch.full((R, G, E), torch.nan, dtype=torch.float64)

    def choose(run: Runs) -> None:
        with torch.no_grad():
            out = net.forward(theta[run], looked_at(net, crowd.seen[run]), used, member[run])
            actions[run] = out.logits.argmax(-1)

    groups: Sequence[Runs] = [slice(None)] if net.together else live
    repeated = [Captured(partial(choose, run), net.device, graphs=net.execute.capturable) for run in groups]
    # Games that are over rest, and show what they showed last: batches keep their shape.
    over = {(r, g) for r in range(R) for g in range(G) if r not in live}
    crowd.begin()
    try:
        for _ in range(longest):
            for run, work in zip(groups, repeated, strict=True):
                _note(crowd, run, scores, over)
                work()
                crowd.play(run, actions[run], over)
            if len(over) == R * G:
                break
        for run in groups:
            _note(crowd, run, scores, over)
    finally:
        crowd.leave()
    return scores


def _note(crowd: Crowd, run: Runs, scores: Tensor, over: set[tuple[int, int]]) -> None:
    """The scores of first episodes that ended in the last step."""
    for r, g, moment in crowd.arrive(run):
        for copy, score in moment.scores:
            if scores[r, g, copy].isnan():
                scores[r, g, copy] = score
        if not scores[r, g].isnan().any():
            over.add((r, g))
