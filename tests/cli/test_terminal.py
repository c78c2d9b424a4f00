"""Whatever files call things: no control character reaches a terminal but newlines and what Kenyon itself writes."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

import kenyon.cli
from kenyon.cli import main
from kenyon.cli.consoles import PlainConsole, _Stream
from kenyon.cli.progress import Decoding, FleetBar
from kenyon.errors import DataError
from kenyon.estimator.learn_task import progress_bar
from kenyon.utils.text import printable
from tests.cli.conftest import Said

GOOD = Path(__file__).parents[1] / "experiments" / "format-1" / "result.json"
SCORES = Path(__file__).parents[2] / "benchmarks/cpu-games/rl-mini/ewc/scores.json"
STYLES = re.compile(r"\x1b\[[0-9;]*m")  # SGR
MOVES = re.compile(r"\x1b\[\?25[lh]|\r?(\x1b\[1A|\x1b\[2K)+|\r(?=\n)")  # of bars
BIDI = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = (
    "\x1b[31mred", "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x9d0;title\x9c", "a\rb", "a\nError: b",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1bP", "\x1b", "\x7f", "\u202egnp.exe", "[red]x[/red]", "[bold",
    "[/]", "\x08\x08", "[link=http://x]y[/link]", ":smile:", "\\[x]", "\x1b[1A\x1b[2K", "\x1b[?25l", "\u2028",
    "\x85", "é", "漢字" * 30,
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.lists(st.sampled_from(HOSTILE), max_size=3).map("".join),
)
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


def check(text: str, *, moves: bool = False, styles: bool = True) -> None:
    left = STYLES.sub("", text) if styles else text
    left = MOVES.sub("", left) if moves else left
    strange = [c for c in left if (unicodedata.category(c) == "Cc" and c != "\n") or c in BIDI]
    assert not strange, (strange, text[:500])


@given(NAMES)
@settings(max_examples=300, **QUIET)
def test_printable(name: str) -> None:
    shown = printable(name)
    assert len(shown) == len(name) and printable(shown) == shown and "\n" not in shown
    check(shown, styles=False)
    assert printable(name, lines=True).count("\n") == name.count("\n")
    if all(unicodedata.category(c) != "Cc" and c not in BIDI for c in name):
        assert shown == name


@given(NAMES, NAMES)
@settings(max_examples=100, **QUIET)
def test_consoles_show_names_as_they_are(name: str, other: str) -> None:
    """As text, styled text, in tables with titles, bars and lists; without colours nothing but the text is there."""
    for colours in (None, "truecolor"):
        written = io.StringIO()
        console = PlainConsole(file=written, force_terminal=True, color_system=colours, width=300)
        console.print(name, style="yellow", soft_wrap=True)
        console.print(Text.assemble((name, "bold red"), other))
        table = Table(title=name, caption=other)
        table.add_column(name)
        table.add_row(Text(other, style="green"))
        console.print(table, [name], {other: name})
        check(written.getvalue(), styles=colours is not None)
    written = io.StringIO()
    PlainConsole(file=written, width=300).print(name, soft_wrap=True)
    if name == "".join(name.split("\t\r\x0b\x0c\x07\x08")):
        assert written.getvalue() == printable(re.sub("[\x07\x08\x0b\x0c\r]", "", name), lines=True) + "\n"


@given(NAMES, NAMES)
@settings(max_examples=25, **QUIET)
def test_bars_show_names_as_they_are(name: str, other: str) -> None:
    for terminal in (True, False):
        written = io.StringIO()
        console = PlainConsole(file=written, force_terminal=terminal, width=200)
        with FleetBar(console) as bar:
            bar.begins(name, other, 0, 10)
            bar.goes_on(3, other)
            Decoding(console, bar.bars).progress(f"decoding {name}", 0, 5)
            Decoding(console, bar.bars).notice(name)
            bar.warn(other)
            bar.ends(name)
        check(written.getvalue(), moves=True)


def test_markup_in_names_is_text() -> None:
    written = io.StringIO()
    console = PlainConsole(file=written, force_terminal=True, color_system="truecolor", width=200)
    table = Table(title="[bold]title")
    table.add_column("[red]head")
    table.add_row("[link=http://x]cell[/link] :smile: [/]")
    console.print(table)
    shown = STYLES.sub("", written.getvalue())
    for text in ("[bold]title", "[red]head", "[link=http://x]cell[/link] :smile: [/]"):
        assert text in shown
    assert "\x1b]8" not in written.getvalue()


@given(st.text(st.one_of(st.sampled_from("\x1b[0123456789;mAKJH?25lh\r\n\x9b\x07 x"), st.characters()), max_size=40))
@settings(max_examples=500, **QUIET)
def test_streams_let_nothing_else_through(text: str) -> None:
    written = io.StringIO(newline="")
    _Stream(written, lambda error: None).write(text)
    check(written.getvalue(), moves=True)


def test_every_command_speaks_through_consoles() -> None:
    """Nothing below kenyon.cli prints by itself, or makes a console of Rich's own."""
    for path in Path(kenyon.cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.name != "consoles.py":
                assert node.func.id not in ("print", "Console"), f"{path}, line {node.lineno}"
                if node.func.id == "TextColumn":  # of bars, which would take brackets in names for markup
                    assert any(word.arg == "markup" for word in node.keywords), f"{path}, line {node.lineno}"


# ------------------------------------------------------------------ the program


def renamed(value: Any, names: list[str]) -> Any:
    """A document whose texts are others, as far as they may be."""
    if isinstance(value, dict):
        return {key: renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, names) for inner in value]
    return f"{value}{names[len(value) % len(names)]}" if isinstance(value, str) else value


@pytest.mark.parametrize("file", [GOOD, SCORES], ids=["result", "scores"])
@pytest.mark.parametrize("form", ["table", "json", "markdown", "latex", "csv"])
def test_results_from_elsewhere(file: Path, form: str, kenyon: Callable[..., Said], tmp_path: Path) -> None:
    body = json.loads(file.read_text())
    for number in range(0, len(HOSTILE), 3):
        out = tmp_path / f"{number}"
        out.mkdir()
        (out / file.name).write_text(json.dumps(renamed(body, list(HOSTILE[number : number + 3]))))
        for words in (("show", out, "--format", form), ("report", out, "--out", out / "r.html"), ("analyse", out)):
            said = kenyon(*words)
            check(said.out + said.err, styles=False)


@pytest.mark.parametrize("name", [name for name in HOSTILE if "/" not in name])
def test_folders_and_files_of_any_name(
    name: str, kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, classes, benchmarks and methods of files, and settings: in errors, notices, progress and tables."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name[:40]
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    (folder / "c.toml").write_text(f"benchmark = {json.dumps(name)}\nmethod = {json.dumps(name)}\n")
    (folder / "o.py").write_text(f"raise ValueError({name!r})\n")
    for words in (
        ("show", folder), ("run", folder / "o.py"), ("run", "--config", folder / "c.toml"), ("run", name),
        ("run", "digits", "-m", name), ("run", "digits", "--set", f"{name}=1"), ("run", "digits", "--seeds", name),
        (name,), ("list", f"--{name}"), ("data", "get", name), ("data", "list", "--data", folder),
        ("show", folder / "no"),
        ("analyse", folder, "--what", name), ("reproduce", name), ("sweep", folder / "c.toml"), ("watch", folder),
    ):  # fmt: skip
        said = kenyon(*words)
        check(said.out + said.err, styles=False)


def test_a_line_of_a_name_does_not_look_like_a_message(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    folder = tmp_path / "a\nError: all is well"
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    said = kenyon("show", folder)
    assert said.code == 1 and len([line for line in said.err.splitlines() if line.startswith("Error:")]) == 1


def test_errors_that_nobody_expected(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['kenyon', 'data', 'list']\n"
        "import kenyon.datasets as l\n"
        "def fail(*a, **k): raise ValueError('\\x1b[31mred\\x9b')\n"
        "l.locate = fail\n"
        "from kenyon.cli import program; program()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ValueError: \ufffd[31mred\ufffd" in done.stderr
    check(done.stderr, styles=False)


def test_the_estimator_too(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    from kenyon import ContinualLearner

    with progress_bar("[red]\x1b[31m", verbose=True):
        pass
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    ContinualLearner(method="finetune", epochs=1, verbose=True).fit(x, y, task="\x1b[31m[red]cats")
    said = capsys.readouterr()
    assert "\ufffd[31m[red]cats: 2 classes" in said.err
    check(said.out + said.err, styles=False)


def test_styles_of_our_own_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["kenyon", "show", "nowhere"])
    with pytest.raises(SystemExit):
        main()
    assert "\x1b[1;31mError:" in capsys.readouterr().err


def test_an_error_says_what_it_is_about() -> None:
    assert "\x1b" in str(DataError("\x1b"))  # in Python messages are what they are: a program may want the name
