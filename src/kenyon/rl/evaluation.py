"""Scores of a fleet's policies: whole episodes of every game, by the most likely action or one that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kenyon.models import Net
from kenyon.rl.environment import Games
from kenyon.rl.ppo import chances, drawn, looked_at
from kenyon.rl.vector import Crowd
from kenyon.training.device import Captured, Runs


@torch.no_grad()
def episode_scores(
    net: Net,
    theta: Tensor,
    games: Sequence[Sequence[Games]],
    heads: Sequence[int],
    *,
    live: Sequence[int],
    longest: int,
    draws: Tensor | None = None,
) -> Tensor:
    """The raw score of the first episode of every copy, (R, G, E); all games of all runs are played at once.

    `games`: G games a run, of E copies each, with the given heads, as evaluation plays them: their rewards add up to
    the score. Episodes that have not ended after the `longest` number of steps are scored as they stand. Runs that
    are not live have no score (NaN). The games stay open. Always the most likely action is taken, unless there are
    keys (R,) to draw it from what the policy says.
    """
    R, G, E = len(games), len(heads), games[0][0].count
    crowd = Crowd(games, net.device, threads=not net.together)
    used = torch.tensor(heads, device=net.device)
    member = torch.arange(G, device=net.device).repeat_interleave(E).expand(R, -1).contiguous()  # (R, G * E)
    counts = torch.tensor([net.class_counts[head] for head in heads], device=net.device)[member]
    chance = torch.zeros(R, G * E, device=net.device)
    actions = torch.zeros(R, G * E, dtype=torch.long, device=net.device)
    scores = torch.full((R, G, E), torch.nan, dtype=torch.float64)
    so_far = torch.zeros_like(scores)

    def choose(run: Runs) -> None:
        with torch.no_grad():
            out = net.forward(theta[run], looked_at(net, crowd.seen[run]), used, member[run])
            if draws is None:
                actions[run] = out.logits.argmax(-1)
            else:
                actions[run] = drawn(out.logits, chance[run], counts[run])

    groups: Sequence[Runs] = [slice(None)] if net.together else live
    repeated = [Captured(partial(choose, run), net.device, net.executor) for run in groups]
    # Games that are over rest, and show what they showed last: batches keep their shape.
    over = {(r, g) for r in range(R) for g in range(G) if r not in live}
    crowd.begin()
    try:
        for t in range(longest):
            if draws is not None:
                chance.copy_(chances(draws, torch.tensor([t], device=net.device), G * E)[:, 0])
            for run, work in zip(groups, repeated, strict=True):
                _note(crowd, run, scores, so_far, over)
                work()
                crowd.play(run, actions[run], over)
            if len(over) == R * G:
                break
        for run in groups:
            _note(crowd, run, scores, so_far, over)
    finally:
        crowd.leave()
    scores[live] = torch.where(scores[live].isnan(), so_far[live], scores[live])
    return scores


def _note(crowd: Crowd, run: Runs, scores: Tensor, so_far: Tensor, over: set[tuple[int, int]]) -> None:
    """The scores of first episodes that ended in the last step, and how the others stand."""
    for r, g, moment in crowd.arrive(run):
        so_far[r, g] += torch.from_numpy(moment.rewards)
        for copy, score in moment.scores:
            if scores[r, g, copy].isnan():
                scores[r, g, copy] = score
        if not scores[r, g].isnan().any():
            over.add((r, g))
