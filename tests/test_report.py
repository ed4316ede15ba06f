"""The report: its content, and in a browser its layout in wide and narrow windows."""

import errno
import os
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_comparison import write_run
from typer.testing import CliRunner

from fedkd_flwr.analysis.columns import COLUMNS
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.cli import app
from fedkd_flwr.files import append_array
from fedkd_flwr.report import render_page, write_report
from fedkd_flwr.runs import RunDirectoryError

COEFFICIENTS = np.array(
    [
        np.full((4, 4), 0.25),
        [[0.5, 0.45, 0.05, 0.0], [0.4, 0.6, 0.0, 0.0], [0, 0.1, 0.9, 0], [0, 0, 0, 1]],
    ]
)
"""Two rounds, receiver and giver; the largest weight between two clients is 0.45."""

CLUSTERS = np.array([[0, 0, 1, 1], [0, 0, 1, -1]])
"""Two rounds; the last client is absent in the second."""

ACCURACIES = {
    ("local", 0): [0.5, 0.6, 0.7, 0.8],
    ("local", 1): [0.6, 0.6, 0.6, 0.7],
    ("kt-pfl", 0): [0.6, 0.7, 0.8, 0.7],
    ("kt-pfl", 1): [0.7, 0.7, 0.7, 0.6],
    ("perfed-ckt", 0): [0.5, 0.5, 0.5, 0.5],
}
MATRICES = {"kt-pfl": {"coefficients": COEFFICIENTS}, "perfed-ckt": {"clusters": CLUSTERS}}


def write_runs(folder, **settings):
    for (strategy, seed), accuracies in ACCURACIES.items():
        size = {"max-samples": 600, "held-out-size": 60}
        path = write_run(folder, strategy, seed, accuracies, **size | settings)
        for name, rounds in MATRICES.get(strategy, {}).items():
            for matrix in rounds:
                append_array(path / "matrices" / f"{name}.npy", matrix)
    return folder


HOSTILE = "</style></td></svg><script>alert(1)</script><img src=x onerror='f(\"$title\")'>&amp;"
"""Text that would end what it stands in, load something, or run."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="module")
def written(comparison, tmp_path_factory):
    return write_report(comparison, tmp_path_factory.mktemp("page") / "new" / "report.html")


@pytest.fixture(scope="module")
def page(written):
    return written.read_text()


def figures_of(page):
    found = re.findall(r"<figure><figcaption>([^<]*)</figcaption>(.*?)</figure>", page, re.DOTALL)
    return dict(found)


def headings_of(page):
    return re.findall(r"<h3>([^<]*)</h3>", unescape(page))


class Elements(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = set(), {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value)


def test_the_page_shows_the_results_of_the_comparison(page, comparison):
    body = unescape(page)
    assert len(comparison.verdicts) == 2
    for sentence in (*comparison.verdicts, *comparison.notes):
        assert sentence in body
    spreads = {"kt-pfl": 1, "local": 1, "perfed-ckt": 0}
    for label, row in comparison.table.iterrows():
        own = f"{100 * row['accuracy']:.1f}"
        own += f" ± {100 * row['accuracy_std']:.1f}%" if spreads[label] else "%"
        jain = f"{row['jain']:.4f}"
        assert re.search(rf"<td>{label}</td>.*?>{own}<.*?>{jain}<", body, re.DOTALL), label
        body = body.replace(f">{jain}<", "><")
    # Percent and points everywhere, as in the figures and the verdicts.
    assert re.findall(r"<td>[+-]?0\.\d{4}<", body) == []


def test_the_page_names_another_reference(runs):
    body = unescape(render_page(compare(runs, against="kt-pfl")))
    assert "Gain in accuracy over kt-pfl, in points" in body
    for wrong in ("ain over local", "above local", "beat local", "below local"):
        assert wrong not in body, wrong


def test_the_tables_of_methods_hold_each_column_once(page, comparison):
    topics = dict.fromkeys(column.topic for column in COLUMNS.values())
    absent = {"New clients", "With a safeguard"}  # no run of the comparison has any
    shown = [topic for topic in headings_of(page) if topic in topics]
    assert shown == [topic for topic in topics if topic not in absent]
    methods = page[: page.index("Every method over each other")]
    headings = re.findall(r"<th>([^<]*)</th>", unescape(methods))
    rendered = list(comparison.rendered().columns)
    assert sorted(headings) == sorted(rendered[1:] + ["method"] * len(shown))


def test_a_full_disk_leaves_the_old_report_and_no_temporary_file(comparison, tmp_path, monkeypatch):
    def fill_disk(path, *_, **__):
        path.write_bytes(b"half a report")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "report.html"
    file.write_text("old")
    monkeypatch.setattr(Path, "write_text", fill_disk)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        write_report(comparison, file)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "old"


def test_the_page_loads_nothing_and_runs_nothing(page):
    elements = Elements(page)
    assert elements.tags.isdisjoint({"script", "img", "iframe", "object", "embed"})
    linked = [elements.attributes.get(name, set()) for name in ("href", "xlink:href", "src")]
    assert all(link.startswith(("#", "data:")) for links in linked for link in links)
    assert not [name for name in elements.attributes if name.startswith("on")]
    assert len(page) < 300_000


def test_the_page_has_the_figures_of_the_comparison_as_svg(page):
    figures = figures_of(page)
    assert list(figures) == [
        "mean gain over local",
        "gain over local",
        "accuracy over rounds",
        "gain against bytes",
        "kt-pfl coefficients",
        "perfed-ckt clusters",
        "partition",
    ]
    for name, drawing in figures.items():
        assert drawing.startswith("<svg") and drawing.rstrip().endswith("</svg>"), name
        assert "#000000" not in drawing  # invisible on a dark page
    assert "perfed-ckt</text>" in figures["accuracy over rounds"]


def test_what_a_figure_refers_to_is_in_this_figure_alone(page):
    defined = {}
    for name, drawing in figures_of(page).items():
        ids = set(re.findall(r' id="([^"]*)"', drawing))
        used = set(re.findall(r'(?:url\(#|href="#)([^")]*)', drawing))
        assert used <= ids, name
        for found in ids:
            assert defined.setdefault(found, name) == name


def test_nothing_in_a_run_becomes_html(tmp_path, page):
    write_runs(tmp_path, foreign={"new-key": HOSTILE, HOSTILE: 1})
    hostile = compare(tmp_path)
    names = {"kt-pfl": f"kt-pfl ({HOSTILE})", "local": f"local ({HOSTILE})"}
    groups = {names.get(label, label): runs for label, runs in hostile.groups.items()}
    labeled = replace(
        hostile,
        groups=groups,
        references=References(groups),
        table=hostile.table.rename(index=names),
        clients=hostile.clients.replace({"method": names}),
        verdicts=[HOSTILE],
        notes=[HOSTILE],
        effects={},
    )
    found, expected = Elements(render_page(labeled)), Elements(page)
    assert found.tags == expected.tags
    assert found.attributes.keys() == expected.attributes.keys()
    shown = unescape(render_page(labeled))
    assert shown.count(HOSTILE) > 20
    assert f"kt-pfl ({HOSTILE}) coefficients" in shown


def test_the_command_prints_the_path_and_rejects_an_unwritable_one(runs, comparison, tmp_path):
    result = CliRunner().invoke(app, ["report", str(runs), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert result.output.split("Report: ")[1].strip() == str(tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_report(comparison, tmp_path / "file" / "report.html")


# ---- In a browser --------------------------------------------------------------------


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SELF = ("file:", "data:")
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


@pytest.fixture
def open_page(browser, written):
    """Open the report without network, and fail on errors, warnings and requests."""
    problems, pages = [], []

    def opened(viewport, color_scheme="light"):
        page = browser.new_page(viewport=viewport, color_scheme=color_scheme, offline=True)
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on("request", lambda asked: asked.url[:5] in SELF or problems.append(asked.url))
        page.goto(written.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_the_page_and_its_figures_fit_the_window(open_page, viewport):
    page = open_page(viewport)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    edges = page.locator("figure svg").evaluate_all(
        "drawings => drawings.map(drawing => drawing.getBoundingClientRect().right)"
    )
    assert len(edges) == 7
    assert max(edges) <= viewport["width"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_tables_show_all_columns_at_1280_pixels(open_page):
    hidden = (
        open_page(DESK)
        .locator(".wide")
        .evaluate_all("tables => tables.map(table => table.scrollWidth - table.clientWidth)")
    )
    assert len(hidden) > 5
    assert set(hidden) == {0}


@pytest.mark.slow
def test_page_and_figures_follow_the_dark_theme(open_page):
    colors = """[getComputedStyle(document.body).backgroundColor,
                 getComputedStyle(document.querySelector('svg text')).fill]"""
    assert open_page(DESK).evaluate(colors) == ["rgb(255, 255, 255)", "rgb(27, 29, 33)"]
    assert open_page(DESK, "dark").evaluate(colors) == ["rgb(21, 23, 28)", "rgb(231, 233, 238)"]
