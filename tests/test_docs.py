"""The pages beside the README: their Python compiles, their files can be read, their options and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from kenyon.cli.app import app
from kenyon.experiments.config_file import asked, read_config
from kenyon.experiments.runner import plan

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(kind: str) -> list[str]:
    return [code for page in PAGES for code in re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_compile(code: str) -> None:
    compile(code, "docs", "exec")


@pytest.mark.parametrize("page", ["estimator.md", "own-backbone.md", "own-data.md"])
def test_pages_for_ones_own_run_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(compile(code, page, "exec"), names)


@pytest.mark.parametrize("text", blocks("toml"))
def test_configurations_can_be_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    wanted = asked(read_config(tmp_path / "mine.toml"), None, None, None, {})
    plan(wanted.benchmarks[0], wanted.methods, wanted.seeds, overrides=wanted.settings, device="cpu", out=tmp_path)


@pytest.mark.parametrize("text", blocks("sh"))
def test_commands_and_options_exist(text: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for line in text.replace("\\\n", " ").splitlines():
        program, *words = line.split("#")[0].split() or [""]
        if program == "kenyon":
            command = commands[words[0]]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (DOCS / target).exists(), target
