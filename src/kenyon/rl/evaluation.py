"""Evaluation: scores of policies over whole episodes of every game."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kenyon.models import Net
from kenyon.rl.environment import Games
from kenyon.rl.ppo import network_input, sample_actions, uniform_numbers
from kenyon.rl.vector import VectorEnvs
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
    """Return the raw score of the first episode of every copy, (R, G, E); all games of all runs are played at once.

    Args:
        games: for each run G games of E copies, with the given heads, as evaluation plays them: their rewards add up
            to the score. They stay open.
        live: the runs to evaluate; the others score NaN
        longest: steps after which episodes that have not ended are scored as they stand
        draws: keys (R,) from which actions are sampled; None: the most likely action is taken
    """
    R, G, E = len(games), len(heads), games[0][0].count
    envs = VectorEnvs(games, net.device, threads=not net.together)
    used = torch.tensor(heads, device=net.device)
    member = torch.arange(G, device=net.device).repeat_interleave(E).expand(R, -1).contiguous()  # (R, G * E)
    counts = torch.tensor([net.class_counts[head] for head in heads], device=net.device)[member]
    uniform = torch.zeros(R, G * E, device=net.device)
    actions = torch.zeros(R, G * E, dtype=torch.long, device=net.device)
    scores = torch.full((R, G, E), torch.nan, dtype=torch.float64)
    returns = torch.zeros_like(scores)  # of unfinished episodes

    def choose(run: Runs) -> None:
        with torch.no_grad():
            out = net.forward(theta[run], network_input(net, envs.observations[run]), used, member[run])
            if draws is None:
                actions[run] = out.logits.argmax(-1)
            else:
                actions[run] = sample_actions(out.logits, uniform[run], counts[run])

    groups: Sequence[Runs] = [slice(None)] if net.together else live
    steps = [Captured(partial(choose, run), net.device, net.executor) for run in groups]
    # Finished games are not stepped, and their last observations stay: batches keep their shape.
    finished = {(r, g) for r in range(R) for g in range(G) if r not in live}
    envs.reset()
    try:
        for t in range(longest):
            if draws is not None:
                uniform.copy_(uniform_numbers(draws, torch.tensor([t], device=net.device), G * E)[:, 0])
            for run, step in zip(groups, steps, strict=True):
                _record(envs, run, scores, returns, finished)
                step()
                envs.step(run, actions[run], finished)
            if len(finished) == R * G:
                break
        for run in groups:
            _record(envs, run, scores, returns, finished)
    finally:
        envs.join()
    scores[live] = torch.where(scores[live].isnan(), returns[live], scores[live])
    return scores


def _record(envs: VectorEnvs, run: Runs, scores: Tensor, returns: Tensor, finished: set[tuple[int, int]]) -> None:
    """Record scores of first episodes that ended in the last step, and returns of the others."""
    for r, g, moment in envs.results(run):
        returns[r, g] += torch.from_numpy(moment.rewards)
        for copy, score in moment.scores:
            if scores[r, g, copy].isnan():
                scores[r, g, copy] = score
        if not scores[r, g].isnan().any():
            finished.add((r, g))
