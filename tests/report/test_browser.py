"""The page in a Chromium: drawing, accessibility, sorting, layout, and no requests.

Skipped where no Chromium is installed (Debian: apt-get install chromium).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kenyon.report.page import write_report
from tests.report.browser import PROGRAM, Browser, NoBrowser, chromium
from tests.report.made import made, saved
from tests.report.test_page import hostile
from tests.report.test_views import GOOD

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with ExitStack() as open_while_needed:
        try:
            started = open_while_needed.enter_context(chromium(tmp_path_factory.mktemp("profile")))
        except NoBrowser as error:
            pytest.skip(f"Chromium does not start here: {error}")
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    results = [made("finetune", seeds=1), made("ewc"), made("caf-ewc", learners=3), made("joint", joint=True)]
    saved(folder / "results", *results)
    analysis = folder / "results" / "digits" / "ewc" / "analysis"
    analysis.mkdir()
    (analysis / "kinds.json").write_text(json.dumps(list(GOOD.values())))
    return write_report(folder / "results", folder / "report.html").path


def complaints(browser: Browser) -> list[Any]:
    """Return errors and warnings in the console, and requests other than of the file itself and data URIs."""
    browser("1")  # what was sent before has then arrived
    wrong: list[Any] = []
    for event in browser.events:
        method, body = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            wrong.append(body)
        if method == "Network.requestWillBeSent":
            url = body["request"]["url"]
            if not url.startswith("data:") and not (url.startswith("file:") and body.get("type") == "Document"):
                wrong.append(url)
    return wrong


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_draws_everything_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert complaints(browser) == []
    assert browser("document.documentElement.scrollWidth") <= width
    charts = browser("[...document.querySelectorAll('.chart')].map(c => [c.id, c.clientHeight, c.childElementCount])")
    assert len(charts) > 12 and all(height > 20 and inside for _, height, inside in charts)
    paper = browser("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 23, 27)" if dark else "rgb(255, 253, 249)")
    # Whatever leaves its box to the right is in a box that scrolls.
    assert (
        browser(
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
            " && !e.closest('.scroll') && !e.closest('.skip')).map(e => e.outerHTML.slice(0, 80))"
        )
        == []
    )


@pytest.mark.parametrize("width", [1264, 390])
def test_points_of_a_large_grid_can_be_told_apart(browser: Browser, tmp_path: Path, width: int) -> None:
    values = [(a, b, g) for a in (1000, 50000) for b in (1e-8, 1e-6) for g in (0.001, 0.01, 0.1)]
    points = [made("ewc", point={"lambda_sp": a, "lambda_af": b, "gamma": g}) for a, b, g in values]
    browser.open(write_report(saved(tmp_path / "results", *points), tmp_path / "r.html").path, width=width)
    assert browser("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.summary tbody th')].filter(t => t.scrollWidth > t.clientWidth).length"
    assert browser(cut) == 0
    drawn = browser("[...document.querySelectorAll('.chart')].map(c => c.textContent).join(' ')")
    assert "…" not in drawn and drawn.count("gamma=0.001") >= 3
    assert (browser("document.querySelectorAll('.key').length") > 0) == (width < 480)  # names below the chart
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.call("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    wide = browser("document.documentElement.scrollWidth")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert wide <= 718  # paper, A4


# Text whose contrast with what is behind it is below 4.5.
ILLEGIBLE = """(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (e) => {
    const c = e ? numbers(getComputedStyle(e).backgroundColor) : [255, 255, 255];
    return c.length < 4 || c[3] > 0 ? c : ground(e.parentElement);
  };
  const worded = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const seen = (e) => e.getClientRects().length && !e.closest(".unseen");
  return [...document.querySelectorAll("body *")].filter((e) => worded(e) && seen(e)).filter((e) => {
    const style = getComputedStyle(e), a = light(numbers(e instanceof SVGElement ? style.fill : style.color));
    const b = light(ground(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  }).map((e) => e.outerHTML.slice(0, 80));
})()"""
UNNAMED = """[...document.querySelectorAll('a, button, select, summary, [tabindex="0"]')]
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
  .map((e) => e.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_for_eyes_and_for_screen_readers(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    browser("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert browser(ILLEGIBLE) == []
    levels = browser("[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(b <= a + 1 for a, b in pairwise(levels))  # no level is left out
    assert browser("[...document.querySelectorAll('th')].every((h) => h.scope)")
    assert browser("[...document.querySelectorAll('table')].every((t) => t.caption)")
    assert browser(UNNAMED) == []


def test_hostile_results_do_nothing(browser: Browser, tmp_path: Path) -> None:
    written = write_report(hostile(tmp_path), tmp_path / "report.html")
    for width in (1280, 360):
        browser.open(written.path, width=width)
        assert complaints(browser) == []
        assert browser("document.documentElement.scrollWidth") <= width
    assert browser("document.images.length") == 0
    assert browser("document.querySelector('.swatch svg') !== null")


def test_the_policy_lets_nothing_else_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    browser("document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.org/a.png'}))")
    assert browser("window.ran") is None
    told = [e["params"]["entry"]["text"] for e in browser.events if e.get("method") == "Log.entryAdded"]
    assert all("Content Security Policy" in text for text in told)


TIP = "(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.innerText })()"


@pytest.mark.parametrize("kind", ["lines", "scatter", "bars", "heatmap"])
def test_values_on_hover_and_on_focus(browser: Browser, page: Path, kind: str) -> None:
    browser.open(page)
    chart = f"figure.{kind} .chart"
    assert browser(TIP) is None
    for y in (0.15, 0.3, 0.5):  # somewhere there is a value near the pointer
        browser.hover(chart, 0.5, y)
        if browser(TIP):
            break
    assert browser(TIP)
    browser.hover("h1")
    assert browser(TIP) is None
    browser(f"document.querySelector('{chart}').focus({{focusVisible: true}})")
    first = browser(TIP)
    assert first and browser("document.getElementById('said').textContent")
    browser.key("ArrowDown" if kind in ("scatter", "bars") else "ArrowRight")
    second = browser(TIP)
    assert second and second != first
    spoken = browser("document.getElementById('said').textContent")
    assert spoken and spoken.split(", ")[0] in second
    browser.key("Escape")
    assert browser(TIP) is None
    assert browser(f"document.querySelector('{chart}').getAttribute('aria-label')")


def first_column(browser: Browser) -> list[str]:
    names: list[str] = browser("[...document.querySelectorAll('.summary tbody th')].map(t => t.innerText.trim())")
    return names


def test_sorting_by_click_and_by_enter(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert first_column(browser) == ["finetune", "ewc", "caf-ewc", "joint"]
    order = "[...document.querySelectorAll('.summary tbody tr')].map(r => parseFloat(r.cells[1].dataset.value))"
    browser.click(".summary thead th:nth-child(2) button")
    values = browser(order)
    assert values == sorted(values, reverse=True)
    head = "document.querySelector('.summary thead th:nth-child(2)').getAttribute('aria-sort')"
    assert browser(head) == "descending"
    browser("document.querySelector('.summary thead th:nth-child(2) button').focus()")
    browser.key("Enter")
    assert browser(order) == sorted(values) and browser(head) == "ascending"
    browser.click(".summary thead th:nth-child(4) button")  # BWT: joint training has none, and stays last
    assert first_column(browser)[-1] == "joint"
    browser.click(".summary thead th:nth-child(4) button")
    assert first_column(browser)[-1] == "joint"
    browser.click(".summary thead th:nth-child(1) button")
    assert first_column(browser) == ["caf-ewc", "ewc", "finetune", "joint"]


def test_tab_reaches_every_chart_and_arrows_walk_the_table(browser: Browser, page: Path) -> None:
    browser.open(page)
    wanted = set(browser("[...document.querySelectorAll('.chart')].map(c => c.id)"))
    reached: set[str] = set()
    skip = None
    for number in range(140):
        browser.key("Tab")
        what = browser(
            "[document.activeElement.id, document.activeElement.className, document.activeElement.tagName]"
        )
        skip = what[1] if number == 0 else skip
        reached.add(what[0])
        if what[2] == "BODY":
            break
    assert skip == "skip"
    assert wanted <= reached
    browser("document.querySelector('.summary tbody a').focus({focusVisible: true})")
    browser.key("ArrowRight")
    assert browser("document.activeElement.closest('td').cellIndex") == 1
    tip = browser(TIP)
    assert tip and "runs:" in tip
    browser.key("ArrowDown")
    assert browser("document.activeElement.closest('tr').rowIndex") == 2


def test_a_number_leads_to_its_origin(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(".summary tbody tr:nth-child(2) td:nth-child(2) a")
    assert browser("location.hash") == "#origin-digits-ewc"
    assert browser(
        "[...document.querySelectorAll('details.origin[open]')].map(d => d.querySelector('code').innerText)"
    ) == ["results/digits/ewc/result.json"]


def test_a_run_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page)
    cell = "document.querySelector('figure.heatmap tbody td').textContent"
    pixels = (
        "document.querySelectorAll('figure.heatmap canvas')[1].getContext('2d').getImageData(0, 0, 4, 4).data.join()"
    )
    before = browser(cell), browser(pixels)
    browser(
        "(() => { const s = document.querySelector('select[data-frames]'); s.value = 'seed 0';"
        "s.dispatchEvent(new Event('change')) })()"
    )
    after = browser("document.querySelector('figure.heatmap caption span').textContent"), browser(pixels)
    assert after[0] == ", seed 0" and after[1] != before[1]
    browser(
        "(() => { const s = document.querySelector('select[data-frames]'); s.value = 'mean of the runs';"
        "s.dispatchEvent(new Event('change')) })()"
    )
    assert (browser(cell), browser(pixels)) == before


def test_the_choice_of_colours_is_remembered(browser: Browser, page: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"

    def opened_again(colour: str, **how: bool) -> bool:
        """Retry: on a busy machine, stored values reach the next page with a delay."""
        for _ in range(50):
            browser.open(page, **how)
            if browser(paper) == colour:
                return True
            time.sleep(0.1)
        return False

    def choose() -> str:
        """The colour after a click. A page that is left at once may end before its browser has what it stores."""
        browser.click(".theme")
        time.sleep(0.5)
        return str(browser(paper))

    browser.open(page)
    try:
        light = browser(paper)
        dark = choose()
        assert dark != light and opened_again(dark)
        assert choose() == light
        assert opened_again(light, dark=True)  # chosen, whatever the system says
    finally:
        browser("localStorage.clear()")
    assert complaints(browser) == []


def test_it_reads_without_script_and_prints(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert browser("[...document.querySelectorAll('.chart, .theme, .choice')].every(e => e.hidden)")
        assert browser("document.querySelector('.summary').innerText").count("±") > 5
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.open(page, dark=True)
    printed = browser.call("Page.printToPDF")["data"]
    assert len(printed) > 10_000
    assert browser("document.documentElement.dataset.theme") is None
