"""The report and the site in a real browser: no console messages, hover works, light, dark and narrow.

Slow, and skipped where there is no Chromium; `.ci/full docs` runs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.data import digits, sentences

pytestmark = pytest.mark.slow
BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SITE = Path(__file__).parents[2] / "out" / "site"
TEXTS = [s.vectors for s in sentences()]
CASES = {
    "gru": (lambda: ns.zoo.gru(), TEXTS),
    "cnn": (lambda: ns.zoo.cnn(2), digits().images[:6, :, :, None]),
    "transformer": (lambda: ns.zoo.transformer(2), TEXTS),
}
PAGES = [
    *("index", "gallery", "layers", "neural_tangents", "benchmarks", "models", "gp"),
    *("reference/limit", "reference/functions", "reference/commands"),
    *("notebooks/a_from_paper_to_kernel", "notebooks/e_phase_diagrams"),
]
FEW = {"widths": (16, 32), "samples": 4}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("jinja2")
    if BROWSER is None:
        pytest.skip("there is no Chromium; install it, or set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, (make, x) in CASES.items():
        (folder / f"{name}.html").write_text(ns.report(make(), x, **FEW))
    return {name: folder / f"{name}.html" for name in CASES}


def opened(browser: Any, path: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """A page, and what it says on the console or asks of a network."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    shown, said = context.new_page(), []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on(
        "request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None
    )
    shown.goto(path.as_uri())
    return shown, said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", CASES)
def test_reports_open_without_a_message(
    name: str, width: int, scheme: str, browser: Any, pages: dict[str, Path]
) -> None:
    shown, said = opened(browser, pages[name], width, scheme)
    shown.wait_for_load_state("load")
    assert [line for line in said if not line.startswith(("data:", "blob:"))] == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    shown.close()


def test_the_pointer_shows_a_value(browser: Any, pages: dict[str, Path]) -> None:
    shown, said = opened(browser, pages["gru"], 1280, "light")
    shown.wait_for_load_state("load")
    shown.locator("#nngp .cell").nth(20).hover()
    tip = shown.wait_for_selector("#tip:not([hidden])", timeout=5_000)
    assert "error" in tip.inner_text()
    assert [line for line in said if not line.startswith(("data:", "blob:"))] == []


def test_paper_has_all_of_the_program_and_no_menu(browser: Any, pages: dict[str, Path]) -> None:
    """What is folded on the screen is printed, the graph fits, and paper is white."""
    shown, _ = opened(browser, pages["gru"], 1280, "dark")
    shown.wait_for_load_state("load")
    shown.emulate_media(media="print", color_scheme="dark")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not shown.is_visible("nav")
    assert shown.locator("details:not([open])").count() == 0
    graph, page = (shown.locator(f"{part}").first.bounding_box() for part in (".wide svg", "main"))
    assert graph["width"] <= page["width"]
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.locator("details:not([open])").count() > 0


def test_twelve_layers_on_a_hundred_inputs(tmp_path: Path, browser: Any) -> None:
    x = np.random.default_rng(0).standard_normal((100, 5))
    html = ns.report(ns.zoo.mlp(12, ns.tanh), x)
    assert len(html.encode()) < 5_000_000
    (tmp_path / "r.html").write_text(html)
    shown, said = opened(browser, tmp_path / "r.html", 1280, "light")
    shown.wait_for_load_state("load")
    assert [line for line in said if not line.startswith(("data:", "blob:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_of_the_site(name: str, scheme: str, browser: Any) -> None:
    """Nothing is loaded from elsewhere, and nothing is wider than a narrow screen."""
    if not SITE.exists():
        pytest.skip("the site is not built: python website/build.py")
    shown, said = opened(browser, SITE / f"{name}.html", 400, scheme)
    shown.wait_for_load_state("load")
    assert said == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_search_finds_in_a_site_of_files(browser: Any) -> None:
    if not SITE.exists():
        pytest.skip("the site is not built: python website/build.py")
    shown, said = opened(browser, SITE / "index.html", 1280, "light")
    shown.locator(".md-search__input").fill("phase diagram")
    found = shown.wait_for_selector(".md-search-result__link", timeout=30_000)
    assert found.get_attribute("href")
    assert said == []
