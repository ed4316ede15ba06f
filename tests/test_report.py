"""Content of the report, read without a browser."""

import errno
import json
import os
import re
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from report_runs import COEFFICIENTS, write_runs
from typer.testing import CliRunner

from fedkd_flwr.analysis.columns import COLUMNS
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.cli import app
from fedkd_flwr.report import write_report
from fedkd_flwr.report.figures import new_clients_figure, sharing_figure, shown_rounds
from fedkd_flwr.report.page import render_page
from fedkd_flwr.report.tables import method_tables
from fedkd_flwr.runs import RunDirectoryError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    return write_report(
        comparison, tmp_path_factory.mktemp("page") / "new" / "report.html"
    ).read_text()


def body_of(page):
    """Return the page without its scripts."""
    return page.partition("<footer>")[0]


def figures_of(page):
    """Return the figures by title; the last one if several have the same title."""
    pattern = r'<figure class="chart" aria-label="([^"]*)">\s*<script[^>]*>(.*?)</script>'
    return {title: json.loads(text) for title, text in re.findall(pattern, page, re.DOTALL)}


def test_the_page_shows_the_results_of_the_comparison(page, comparison):
    body = unescape(body_of(page))
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
    assert re.findall(r">[+-]?0\.\d{4}<", body) == []


def test_the_page_names_another_reference(runs):
    body = unescape(body_of(render_page(compare(runs, against="kt-pfl"))))
    assert "Gain in accuracy over kt-pfl, in points" in body
    assert "more accurate than under kt-pfl" in body and "accuracy of kt-pfl" in body
    for wrong in (
        "Gain over local",
        "above local",
        "under local",
        "of local<",
        "accuracy of local",
    ):
        assert wrong not in body, wrong


def test_the_page_names_the_evaluated_split(tmp_path):
    settings = {"evaluated-split": "validation", "client-split": "60/20/20"}
    body = body_of(render_page(compare(write_runs(tmp_path, **settings))))
    assert "on its own validation split." in body


def test_the_tables_of_methods_hold_each_column_once(comparison):
    tables = method_tables(comparison)
    topics = dict.fromkeys(column.topic for column in COLUMNS.values())
    absent = {"New clients", "With a safeguard"}  # no run of the comparison has any
    assert [table.caption for table in tables] == [t for t in topics if t not in absent]
    shown = [heading for table in tables for heading in table.headings[1:]]
    assert sorted(shown) == sorted(comparison.rendered().columns[1:])
    for table in tables:
        assert [row[0].text for row in table.rows] == list(comparison.table.index)


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


def test_the_page_loads_nothing_from_the_network(page):
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', body_of(page)) == []
    assert page.count("plotly.js v") == 1


def test_curves_of_several_seeds_have_a_band(page, comparison):
    figure = figures_of(page)["Mean accuracy over rounds"]
    curves = [trace for trace in figure["data"] if trace["mode"] == "lines+markers"]
    bands = [trace for trace in figure["data"] if trace["mode"] == "none"]
    assert [trace["name"] for trace in curves] == list(comparison.table.index)
    assert {trace["legendgroup"] for trace in bands} == {"kt-pfl", "local"}
    local = next(trace for trace in curves if trace["name"] == "local")
    assert local["line"]["color"] == "var(--ink)"  # black is invisible on a dark page


def test_matrices_have_a_frame_per_round_and_clusters_list_their_members(page):
    figure = figures_of(page)["Coefficients: weight of each giver for each receiver"]
    assert [frame["name"] for frame in figure["frames"]] == ["round 1", "round 2"]
    largest_between_two = 0.45
    assert figure["data"][0]["zmax"] == pytest.approx(largest_between_two)
    assert "cluster 0: 0, 1; cluster 1: 2; absent: 3" in body_of(page)


def test_frames_show_the_matrices_of_their_rounds(comparison):
    figure = sharing_figure(comparison.groups["kt-pfl"][0], "coefficients", [1, 2])
    receivers = [int(name) for name in figure.data[0].y]
    for frame, matrix in zip(figure.frames, COEFFICIENTS, strict=True):
        np.testing.assert_allclose(frame.data[0].z, matrix[np.ix_(receivers, receivers)])


def test_clients_that_joined_later_leave_the_color_scale_as_it_is(comparison):
    run = comparison.groups["kt-pfl"][0]
    joined = COEFFICIENTS.copy()
    joined[0, 3] = joined[0, :, 3] = np.nan

    def largest(matrices):
        other = replace(run)
        vars(other)["matrices"] = {"coefficients": matrices}
        return sharing_figure(other, "coefficients", [1, 2]).data[0].zmax

    assert largest(joined) == pytest.approx(0.45)
    assert largest(np.full_like(COEFFICIENTS, np.nan)) == 1.0


def test_new_clients_have_a_section_only_if_there_are_any(comparison, page, tmp_path):
    assert 'id="new-clients"' not in body_of(page)
    results = comparison.results.assign(new_accuracy=comparison.results["accuracy"] / 2)
    results.loc[results["method"] == "perfed-ckt", "new_accuracy"] = np.nan
    with_new = replace(comparison, results=results)
    assert "New clients" in figures_of(write_report(with_new, tmp_path / "page.html").read_text())
    figure = new_clients_figure(with_new)
    ours = results.query("method == 'kt-pfl'")
    seeds, mean = (trace.x for trace in figure.data[2:4])
    assert next(iter(comparison.groups)) == "kt-pfl"
    np.testing.assert_allclose(mean, ours["new_accuracy"].mean())
    np.testing.assert_allclose(seeds, ours["new_accuracy"])
    labels = [annotation.text for annotation in figure.layout.annotations]
    assert "perfed-ckt: 50.0%, new clients -" in labels


def test_long_runs_show_fifty_rounds_including_first_and_last():
    assert shown_rounds(3) == [1, 2, 3]
    rounds = shown_rounds(1000)
    assert (len(rounds), rounds[0], rounds[-1]) == (50, 1, 1000)


def test_sections_without_data_are_omitted(comparison, tmp_path):
    fedavg = comparison.groups["local"][0]
    page = body_of(write_report(compare(fedavg), tmp_path / "report.html").read_text())
    assert 'id="knowledge"' not in page
    assert "There is no run of local" in page
    assert set(figures_of(page)) == {
        "Mean accuracy over rounds",
        "Samples by client and class",
    }


def test_the_page_says_why_the_partition_cannot_be_shown(tmp_path):
    write_runs(tmp_path, **{"dataset": "mnist", "data-root": str(tmp_path)})
    body = body_of(write_report(compare(tmp_path), tmp_path / "report.html").read_text())
    assert "The partition cannot be shown: " in body
    assert "Samples by client" not in body


def test_settings_of_runs_are_escaped(tmp_path):
    write_runs(tmp_path, foreign={"new-key": "</script><img src=x>"})
    body = body_of(write_report(compare(tmp_path), tmp_path / "report.html").read_text())
    assert "<img" not in body
    assert "&lt;/script&gt;&lt;img" in body


def test_the_command_prints_the_path_and_rejects_an_unwritable_one(runs, comparison, tmp_path):
    result = CliRunner().invoke(app, ["report", str(runs), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert result.output.split("Report: ")[1].strip() == str(tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_report(comparison, tmp_path / "file" / "report.html")


def test_a_missing_extra_raises_an_error_with_the_install_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: The report needs plotly, which is not installed: `uv sync --extra report`, "
        "or `pip install 'fedkd-flwr[report]'`.\n"
    )


def test_the_page_shows_the_number_of_rounds(page, tmp_path):
    assert "4 clients, 2 rounds." in body_of(page)
    runs = write_runs(tmp_path)
    longest = sorted(runs.iterdir())[0] / "rounds.jsonl"
    row = json.loads(longest.read_text().splitlines()[-1])
    longest.write_text(longest.read_text() + json.dumps({**row, "round": 3}) + "\n")
    said = write_report(compare(runs), tmp_path / "report.html").read_text()
    assert "4 clients, 2 to 3 rounds." in body_of(said)
