"""How `v0_1` was made: what version 0.1.0 saved, and what is to come of it. It runs with that version alone.

    python -m tests.golden.make_v0_1

States of unfinished trainings have their weights moved a little, so that resuming from them ends elsewhere than a
training from the beginning: a state that is silently left aside is noticed.
"""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import kenyon
from tests.golden.driver import HERE, compact, machine, prepare
from tests.golden.learners import LEARNERS, answers, contents, taught, teach
from tests.golden.saved_runs import (
    DIVERGED,
    GAME_WORDS,
    RESULTS,
    SWEEP,
    UNFINISHED,
    Unfinished,
    analysed,
    resume,
    run_own,
)
from tests.golden.values import Record, record
from tests.golden.workbench import command, saved

FOLDER = HERE / "v0_1"


def main() -> None:
    prepare()
    torch.manual_seed(0)
    platform.platform = lambda *args, **options: "Linux"  # the name of a machine is nobody's concern
    for name in ("results", "diverged", "swept", "unfinished", "learners"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    expected: dict[str, Record] = {}
    results(FOLDER / "results")
    expected["results"] = record(saved(FOLDER / "results", weights=False))
    with copied(FOLDER / "results") as copy:
        expected["analyses of saved weights"] = record(analysed(copy))
    for name, unfinished in UNFINISHED.items():
        expected[f"unfinished {name}"] = record(stop(FOLDER / "unfinished" / name, unfinished))
    (FOLDER / "learners").mkdir()
    for name in LEARNERS:
        path = FOLDER / "learners" / f"{name}.safetensors"
        learner = taught(name)
        learner.save(path)
        expected[f"learner {name}"] = record(answers(learner, name))
        teach(learner, name, 2)
        with tempfile.TemporaryDirectory() as folder:
            now = answers(learner, name) | contents(learner, Path(folder) / "learner.safetensors")
        expected[f"learner {name}, a task later"] = record(now)
    for path in FOLDER.rglob("figure.*"):
        path.unlink()
    for path in [*FOLDER.rglob("*.png"), *FOLDER.rglob("*.svg")]:
        path.unlink()
    origin = {"kenyon": kenyon.__version__, **machine(), "python": platform.python_version()}
    cases = ",\n".join(f"{json.dumps(name)}: {compact(body)}" for name, body in expected.items())
    (FOLDER / "expected.json").write_text(f'{{"origin": {json.dumps(origin)},\n"cases": {{\n{cases}\n}}}}\n')


class Stop(Exception):
    pass


class StopAfter:
    """Progress that ends a training; the last complete epoch is then saved."""

    def __init__(self, moments: int) -> None:
        self.left = moments

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self._count if name in ("epoch_done", "update_done") else lambda *told: None

    def _count(self, trainer: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stop


def copied(folder: Path) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def copy() -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as place:
            yield Path(shutil.copytree(folder, Path(place) / folder.name))

    return copy()


def results(out: Path) -> None:
    """Of images and games, with points of a grid, a run that diverged, a search, and analyses of some."""
    for asked in RESULTS:
        kenyon.run(**asked, out=out, device="cpu")
    run_own("little-digits", "ewc", out, epochs=1)
    command(*GAME_WORDS, "--out", out, "--device", "cpu")
    kenyon.search("digits", "ewc", lambda_sp=[1e4, 1e6], tasks=2, epochs=1, width=2, out=out, device="cpu")
    command("analyse", out / "digits" / "caf-ewc", "--what", "diversity,pertask", "--device", "cpu")
    kenyon.run(**DIVERGED, out=out.parent / "diverged", device="cpu")
    swept = out.parent / "swept"
    swept.mkdir()
    (swept / "many.toml").write_text(SWEEP)
    command("sweep", swept / "many.toml", "--out", swept, "--tasks", 2, "--no-fwt", "--device", "cpu")


def stop(out: Path, unfinished: Unfinished) -> Any:
    """Leaves the state of a training that was stopped, and gives what comes of it."""
    out.mkdir(parents=True)
    with suppress(Stop):
        start(out, unfinished)
    states = sorted(out.rglob("state-*.safetensors"))
    assert len(states) == 1, (out, states)
    move(states[0])
    for path in (*out.rglob("*.lock"), *out.rglob(".lock*")):
        path.unlink()
    with copied(out) as copy:
        found = resume(copy, unfinished)
        assert not list(copy.rglob("state-*"))
    with tempfile.TemporaryDirectory() as place:
        fresh = resume(Path(place), unfinished)
        assert record(fresh)["digest"] != record(found)["digest"]
    return found


def start(out: Path, unfinished: Unfinished) -> None:
    progress: Any = StopAfter(unfinished.after)
    if unfinished.kind in ("images", "own"):  # the latter are registered by `results`
        kenyon.run(**unfinished.asked, out=out, device="cpu", progress=progress)
    elif unfinished.kind == "games":
        from kenyon.rl.runner import execute_games, plan_games

        asked = dict(unfinished.asked)
        planned = plan_games(
            "rl-mini", [asked.pop("method")], asked.pop("seeds"), games=asked.pop("games"), overrides=asked,
            device="cpu", out=out,
        )  # fmt: skip
        execute_games(planned, progress=progress)
    else:
        from kenyon.sweep.here import Here

        from kenyon.sweep import carry_out, open_space, plan_sweep

        (out / "many.toml").write_text(SWEEP)
        sweep = plan_sweep(out / "many.toml", open_space(str(out)), tasks=2, fwt=False)
        left = [unfinished.after]

        def stopping() -> bool:
            left[0] -= 1
            return left[0] < 0

        with suppress(Exception):
            carry_out(sweep, Here("cpu", stop=stopping), stop=stopping)


def move(path: Path) -> None:
    """Every weight up by 0.01, in a state that is whole."""
    from kenyon.train.state import Position, read_head, save_state
    from safetensors import safe_open

    head = read_head(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name in {"theta", "best"} & set(tensors):
        tensors[name] = tensors[name] + 0.01
    save_state(path, tensors, Position.from_json(head["position"]), head["identity"])


if __name__ == "__main__":
    main()
