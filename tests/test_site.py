"""The site: built without a warning, whole, and asking no other server for anything."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import kenyon
from benchmarks import soundness
from tests.report.browser import PROGRAM, Browser, NoBrowser, chromium

ROOT = Path(__file__).parents[1]
installed = pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs pip install 'kenyon[docs]'")
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?([^"'\s>]+)|<link[^>]*\shref=["']?([^"'\s>]+)""")

SEARCH = """new Promise(done => {
  const query = document.querySelector(".md-search__input")
  query.focus()
  query.value = "forgetting"
  query.dispatchEvent(new Event("keyup", {bubbles: true}))
  const look = tries => {
    const results = document.querySelectorAll(".md-search-result__link").length
    results || !tries ? done(results) : setTimeout(look, 100, tries - 1)
  }
  look(100)
})"""


@installed
def test_the_site(tmp_path: Path) -> None:
    """In one test, so that it is built once, however tests are shared among processes."""
    site = tmp_path / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    _is_whole_and_asks_nobody(site)
    if PROGRAM is not None:
        with contextlib.suppress(NoBrowser), chromium(tmp_path / "profile") as browser:
            _works_from_a_folder(site, browser)


def _is_whole_and_asks_nobody(site: Path) -> None:
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    for page in (ROOT / "docs").glob("*.md"):
        assert f"{page.stem}.html" in pages
    for name, home in kenyon._HOMES.items():
        assert f'id="{home}.{name}"' in pages["api/kenyon.html"], name
    for page, text in pages.items():
        if page == "404.html":  # has addresses from the root, for servers
            continue
        for found in LOADED.findall(text):
            loaded = unquote(found[0] or found[1])
            assert not re.match(r"(https?:)?//", loaded), (page, loaded)
            file = (site / page).parent / re.sub(r"[?#].*", "", loaded)
            assert loaded.startswith("data:") or file.exists(), (page, loaded)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def _works_from_a_folder(site: Path, browser: Browser) -> None:
    """Nothing is fetched, phones need not scroll sideways, pictures follow the theme, and the search finds."""
    for page in ("index", "method", "api/kenyon"):
        browser.open(site / f"{page}.html", width=390, dark=True)
        assert browser("document.documentElement.scrollWidth") <= 390, page
        assert browser("document.body.dataset.mdColorScheme") == "slate"
        asked = [e["params"]["request"]["url"] for e in browser.events if e["method"].endswith("WillBeSent")]
        assert asked and all(url.startswith(("file:", "data:")) for url in asked)
        assert not [e for e in browser.events if e["method"] == "Runtime.exceptionThrown"]
    browser.open(site / "method.html", dark=True)
    visible = "[...document.images].filter(i => i.offsetWidth).map(i => i.getAttribute('src').split('#')[0])"
    drawn = [picture for picture in browser(visible) if "method-" in picture]
    assert len(drawn) == 9 and all(picture.endswith("-dark.svg") for picture in drawn)
    assert browser(SEARCH) > 3


def test_the_map_of_the_code_is_that_of_the_code() -> None:
    page = ROOT / "CONTRIBUTING.md"
    rendered = runpy.run_path(str(ROOT / "website" / "code_map.py"))["rendered"]
    assert rendered(page.read_text()) == page.read_text(), "run `python website/code_map.py`"


@installed
def test_what_the_reference_shows_has_words() -> None:
    hooks = runpy.run_path(str(ROOT / "website" / "hooks.py"))
    offered = {(home, name) for name, home in hooks["homes"]().items()}
    offered |= {(f"kenyon.{part}", name) for part in hooks["PARTS"] for name in hooks["offered"](part)}
    for home, name in sorted(offered):
        one: Any = getattr(import_module(home), name)
        if isclass(one) or isfunction(one):
            generated = isclass(one) and (one.__doc__ or "").startswith(f"{name}(")  # by a dataclass
            assert one.__doc__ and not generated, f"{home}.{name} has no docstring"


def test_the_pictures_can_be_drawn(tmp_path: Path) -> None:
    drawn = runpy.run_path(str(ROOT / "website" / "pictures.py"))["draw_all"](tmp_path)
    committed = {path.name for path in (ROOT / "docs" / "pictures").glob("method-*.svg")}
    assert {path.name for path in drawn} == committed


def test_the_table_of_what_was_tried_is_that_of_the_record() -> None:
    assert soundness.written(soundness.PAGE.read_text()) == soundness.PAGE.read_text(), "run benchmarks/soundness.py"
