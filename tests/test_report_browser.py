"""The report in a browser: figures are drawn, sliders move, tables sort, in light and dark.

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
DESK = {"width": 1200, "height": 900}


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

    def opened(viewport=DESK, color_scheme="light"):
        page = browser.new_page(viewport=viewport, color_scheme=color_scheme, offline=True)
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda said: problems.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("file:", "data:", "blob:"))
                else problems.append(asked.url)
            ),
        )
        page.goto(report.as_uri())
        page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


def drawn_matrix(page):
    """Return the image of the first matrix as drawn by the browser."""
    return (
        page.locator("#knowledge .plot")
        .first.locator(".heatmaplayer image")
        .evaluate("image => image.href.baseVal")
    )


def first_column(page, table=0):
    rows = page.locator("#methods table").nth(table).locator("tbody tr td:first-child")
    return rows.all_inner_texts()


def test_every_figure_is_drawn(open_page):
    page = open_page()
    plots = page.locator(".chart .plot")
    assert plots.count() == 5
    for plot in plots.all():
        assert plot.locator(".scatterlayer .trace, .heatmaplayer image").count() > 0


def test_the_slider_changes_matrix_clusters_and_text(open_page):
    page = open_page()
    last = drawn_matrix(page)
    matrix, clusters = page.locator("#knowledge .steps").all()
    matrix.locator("input").fill("0")
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    assert matrix.locator("output").inner_text() == "round 1"
    first = drawn_matrix(page)
    assert first != last
    matrix.locator("input").fill("1")
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    assert drawn_matrix(page) == last

    mark = clusters.locator(".shapelayer path")
    at_last = mark.get_attribute("d")
    assert clusters.locator(".text").inner_text().endswith("absent: 3")
    clusters.locator("input").fill("0")
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    assert clusters.locator(".text").inner_text() == "cluster 0: 0, 1; cluster 1: 2, 3"
    assert mark.get_attribute("d") != at_last


def test_a_slider_that_moves_fast_shows_its_final_position(open_page):
    page = open_page()
    last = drawn_matrix(page)
    slider = page.locator("#knowledge input").first
    slider.evaluate("""slider => {
        for (const position of [0, 1, 0, 1, 0, 1]) {
            slider.value = position;
            slider.dispatchEvent(new Event("input"));
        }
    }""")
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    assert drawn_matrix(page) == last
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    assert drawn_matrix(page) != last


def test_a_click_on_a_heading_sorts_ascending_then_descending(open_page):
    page = open_page()
    heading = page.locator("#methods th", has_text="accuracy, last round")
    heading.locator("button").click()
    assert first_column(page) == ["perfed-ckt", "local", "kt-pfl"]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").click()
    for table in range(3):
        assert first_column(page, table) == ["kt-pfl", "local", "perfed-ckt"]
    page.locator("#methods th", has_text="beat local").locator("button").click()
    assert first_column(page)[-1] == "local"  # local has no value in this column


def test_tables_show_all_columns_at_1280_pixels(open_page):
    page = open_page({"width": 1280, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    hidden = page.locator(".scrolled").evaluate_all(
        "tables => tables.map(table => table.scrollWidth - table.clientWidth)"
    )
    assert len(hidden) > 5
    assert set(hidden) == {0}


@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_no_text_of_a_figure_is_cut_off(open_page, viewport):
    page = open_page(viewport)
    cut_off = page.locator(".plot").evaluate_all("""plots => plots.flatMap(plot => {
        const frame = plot.getBoundingClientRect();
        return [...plot.querySelectorAll("svg text")].filter(text => {
            const box = text.getBoundingClientRect();
            return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1);
        }).map(text => text.textContent);
    })""")
    assert cut_off == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_the_width_of_a_phone(open_page, scheme):
    page = open_page(PHONE, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    edges = page.locator(".plot svg").evaluate_all(
        "drawings => drawings.map(drawing => drawing.getBoundingClientRect().right)"
    )
    assert max(edges) <= PHONE["width"]
    page.set_viewport_size(DESK)
    page.wait_for_function("document.querySelector('#accuracy svg').clientWidth > 800")
    page.wait_for_function(
        "[...document.querySelectorAll('.plot')].every("
        "plot => plot.querySelector('svg').clientHeight === plot.clientHeight)"
    )


def test_figures_follow_the_change_to_a_dark_theme(open_page):
    page = open_page()
    style = """[getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.querySelector('.plot text')).fill]"""
    light = page.evaluate(style)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"({style})[1] !== '{light[1]}'")
    dark = page.evaluate(style)
    assert light == ["rgb(255, 255, 255)", "rgb(27, 29, 33)"]
    assert dark == ["rgb(21, 23, 28)", "rgb(231, 233, 238)"]
