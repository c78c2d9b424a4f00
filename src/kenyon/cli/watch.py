"""`kenyon watch`: an episode of a trained agent as a GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kenyon.cli.options import path


def watch(
    result: Annotated[Path, typer.Argument(parser=path, help="The folder of a method's scores, OUT/SUITE/METHOD.")],
    game: Annotated[
        str | None,
        typer.Option("--game", help="Which game; otherwise the last that was learned."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the run that plays.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=path, help="The GIF to write; otherwise GAME-SEED.gif beside the scores."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How much of the episode to show.")] = 60.0,
) -> None:
    """Watch a trained agent play: one episode as a GIF."""
    from kenyon.cli.consoles import stdout
    from kenyon.errors import ResultsError
    from kenyon.experiments.policy import policy_of
    from kenyon.experiments.results import GameResult
    from kenyon.rl.play import watch as record
    from kenyon.rl.suites import find_suite_benchmark

    folder = result.parent if result.is_file() else result
    if not (folder / GameResult.FILE).is_file():
        raise ResultsError(f"{folder} has no trained agents itself. {_agents_below(folder)}")
    policy = policy_of(folder, seed, game)
    suite = find_suite_benchmark(GameResult.load(folder / GameResult.FILE).benchmark).suite
    file = out or folder / f"{policy.game}-{seed}.gif"
    seen = record(suite, policy.game, policy.act, file, seed=seed, seconds=seconds)
    stdout().print(
        f"{policy.game}: score {seen.score:g} in {seen.steps:,} steps; {seen.frames:,} frames in {file}.",
        soft_wrap=True,
    )


def _agents_below(folder: Path, most: int = 8) -> str:
    """Return a sentence about folders of methods, and of points of a grid, below this one."""
    from kenyon.experiments.results import GameResult
    from kenyon.experiments.store import files_below

    found = [path.parent.relative_to(folder).as_posix() for path in files_below(folder, GameResult.FILE)]
    if not found:
        return "Give the folder of a method below a suite of games, OUT/SUITE/METHOD."
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return f"Name one of those below it: {', '.join(found[:most])}{rest}. For example {folder / found[0]}."
