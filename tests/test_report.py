"""Content of the report, read without a browser."""

import errno
import os
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import write_runs
from typer.testing import CliRunner

from fedkd_flwr.analysis.columns import COLUMNS
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.cli import app
from fedkd_flwr.report import render_page, write_report
from fedkd_flwr.runs import RunDirectoryError

HOSTILE = "</style></td></svg><script>alert(1)</script><img src=x onerror='f(\"$title\")'>&amp;"
"""Text that would end what it stands in, load something, or run."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "new" / "report.html"
    return write_report(comparison, file).read_text()


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
