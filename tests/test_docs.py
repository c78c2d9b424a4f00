"""The pages and notebooks are true: their code runs, from top to bottom, with little training.

A block that cannot run here says so to the reader: its first line is `# needs ...`, or it imports an optional package
that is not installed. Its Python is compiled, and its commands go as far as they get without training. The README's
commands are all treated so. A block that begins with a file's name, `# mine.py`, is that file for what follows;
commands with a file that a page only speaks of are parsed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.figure import Figure
from torch import Tensor
from typer.main import get_command

from kenyon.benchmarks.digits import _drawings
from kenyon.cli.app import app
from kenyon.data import Source
from kenyon.experiments import BENCHMARKS, hyper_search, runner
from kenyon.methods import METHODS
from kenyon.paper.analyses import ANALYSES, FlatnessSettings
from kenyon.rl.suites import SUITE_BENCHMARKS
from kenyon.sweep import open_storage, plan_sweep
from kenyon.utils.user_code import import_file
from tests.cli.conftest import Said
from tests.cli.conftest import kenyon as kenyon_fixture

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
OPTIONAL = {
    "avalanche",
    "datasets",
    "lightning",
    "onnx",
    "onnxruntime",
    "pandas",
    "ray",
    "tensorboard",
    "timm",
    "transformers",
    "wandb",
}
BEYOND = {"--optuna", "--ray", "atari", "tensorboard", "wandb"}  # words of commands that are only parsed
kenyon_cli = kenyon_fixture


class Block(NamedTuple):
    kind: str
    text: str

    @property
    def needs(self) -> bool:
        return self.text.startswith("# needs ")

    @property
    def file(self) -> str | None:
        named = re.match(r"# (\S+\.\w+)\n", self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    return [
        Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]


@cache
def _few_drawings(name: str) -> Source:
    source, every = _drawings(name), slice(0, None, 3)
    assert isinstance(source.test, Tensor)
    return replace(source, images=source.images[every], labels=source.labels[every], test=source.test[every])


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder with the examples: few drawings, an epoch, two seeds, and pictures that stay empty."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr("kenyon.benchmarks.digits._drawings", _few_drawings)
    monkeypatch.setattr(Figure, "savefig", lambda figure, place, **options: place.write(b"a picture"))
    monkeypatch.setattr("gc.collect", lambda: 0)  # after every fleet, through all that other tests left in memory
    checked = runner.check_seeds
    monkeypatch.setattr(runner, "check_seeds", lambda seeds: checked(seeds)[:2])
    flatness = replace(ANALYSES["flatness"], settings=FlatnessSettings(directions=2, steps=3, samples=32))
    monkeypatch.setitem(ANALYSES, "flatness", flatness)
    arena = SUITE_BENCHMARKS["rl-mini"]
    short = replace(
        arena.training, steps=64, copies=4, horizon=8, minibatches=4, importance_rollouts=1, evaluations=1
    )
    monkeypatch.setitem(SUITE_BENCHMARKS, "rl-mini", replace(arena, training=replace(short, episodes=1, longest=50)))
    known, methods = dict(BENCHMARKS), dict(METHODS)
    for name, bench in known.items():
        if not bench.source.needs:
            BENCHMARKS[name] = replace(bench, training=replace(bench.training, epochs=1))
    yield
    for registry, before in ((BENCHMARKS, known), (METHODS, methods)):  # what a page registers goes with it
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(
    page: Path, little: None, kenyon_cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)
        if block.kind == "python":
            _run_python(block, names)
        elif block.kind == "sh":
            for words in _commands(block.text):
                _run_command(words, block.needs or page.name == "README.md", kenyon_cli, monkeypatch)


def _run_python(block: Block, names: dict[str, Any]) -> None:
    code = compile(block.text, "page", "exec")
    if block.needs:
        return
    if block.file:
        names |= vars(import_file(Path(block.file), "method"))
        return
    try:
        exec(code, names)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in OPTIONAL:
            raise


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


class _Planned(BaseException):
    """A command has come to the point where it would train."""


def _run_command(
    words: list[str], only_planned: bool, kenyon_cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *words = words
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    if program != "kenyon":
        return
    _parse(words)
    files = [Path(part) for word in words for part in word.split(",") if part.endswith((".py", ".toml"))]
    if BEYOND & set(words) or not all(file.exists() for file in files):
        return
    if only_planned and words[0] not in ("run", "search"):
        return
    if not only_planned:
        said = kenyon_cli(*words)
        assert said.code == 0, f"kenyon {' '.join(words)}: {said.err}"
        return

    def planned(*args: Any, **options: Any) -> None:
        raise _Planned

    with monkeypatch.context() as patch:
        # What comes next, once all is planned: looking for the data, or training.
        steps = ((runner, "check_data"), (runner, "execute"), (hyper_search, "execute_search"))
        for module, name in steps:
            patch.setattr(module, name, planned)
        with pytest.raises(_Planned):
            raise AssertionError(f"kenyon {' '.join(words)}: {kenyon_cli(*words).err}")


def _parse(words: list[str]) -> None:
    """By the program's own parser, which knows commands, options and kinds of values."""
    command: Any = get_command(app)
    context, rest = command.make_context("kenyon", list(words)), list(words)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_run(notebook: Path, little: None) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_can_be_run(page: Path, tmp_path: Path) -> None:
    for kind, text in blocks(page):
        if kind == "toml":
            (tmp_path / "mine.toml").write_text(text)
            plan_sweep(tmp_path / "mine.toml", open_storage(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
