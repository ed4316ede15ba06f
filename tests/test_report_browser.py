"""The report in a browser: it fits wide and narrow windows, in light and dark.

Requires Chromium, such as the Debian package ``chromium``, under a name in `BROWSERS`.
"""

import shutil

import pytest
from report_runs import write_runs

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.report import write_report

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"width": 400, "height": 800}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if not found:
        pytest.skip(f"no browser found ({', '.join(BROWSERS)})")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    with playwright.sync_playwright() as driver:
        # The sandbox does not work for root in a container.
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(compare(write_runs(folder / "runs")), folder / "report.html")


@pytest.fixture
def open_page(browser, report):
    """Open the report without network, and fail on errors, warnings and requests."""
    problems, pages = [], []

    def opened(viewport, color_scheme="light"):
        page = browser.new_page(viewport=viewport, color_scheme=color_scheme, offline=True)
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on(
            "request",
            lambda asked: (
                None if asked.url.startswith(("file:", "data:")) else problems.append(asked.url)
            ),
        )
        page.goto(report.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_the_page_and_its_figures_fit_the_window(open_page, viewport):
    page = open_page(viewport)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    edges = page.locator("figure svg").evaluate_all(
        "drawings => drawings.map(drawing => drawing.getBoundingClientRect().right)"
    )
    assert len(edges) == 7
    assert max(edges) <= viewport["width"]


@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_no_text_of_a_figure_is_cut_off(open_page, viewport):
    cut_off = (
        open_page(viewport)
        .locator("figure svg")
        .evaluate_all("""drawings =>
        drawings.flatMap(drawing => {
            const frame = drawing.getBoundingClientRect();
            return [...drawing.querySelectorAll("text")].filter(text => {
                const box = text.getBoundingClientRect();
                return box.left < frame.left - 1 || box.right > frame.right + 1;
            }).map(text => text.textContent);
        })""")
    )
    assert cut_off == []


def test_tables_show_all_columns_at_1280_pixels(open_page):
    hidden = (
        open_page(DESK)
        .locator(".wide")
        .evaluate_all("tables => tables.map(table => table.scrollWidth - table.clientWidth)")
    )
    assert len(hidden) > 5
    assert set(hidden) == {0}


def test_page_and_figures_follow_the_dark_theme(open_page):
    colors = """[getComputedStyle(document.body).backgroundColor,
                 getComputedStyle(document.querySelector('svg text')).fill]"""
    assert open_page(DESK).evaluate(colors) == ["rgb(255, 255, 255)", "rgb(27, 29, 33)"]
    assert open_page(DESK, "dark").evaluate(colors) == ["rgb(21, 23, 28)", "rgb(231, 233, 238)"]
