"""Tables, figures and pages of results agree with the published runs."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.safeguards import LOST_AND_WON, safeguarded
from fedkd_flwr.analysis.significance import effects_of
from fedkd_flwr.config import ConfigError
from fedkd_flwr.sweeps import read_sweep
from results import figures, pages, papers, published, tables
from results.__main__ import main
from tests.test_comparison import write_run

RESULTS = pages.ROOT / "results"
TEXT = """
<!-- table: a method=x,y columns=method,gain,bytes sort=-gain -->
old
<!-- end -->
It gains <!--= a method=x gain -->old<!--/--> points, <!--= a method!=z gain:max -->old<!--/-->.
"""


@pytest.fixture
def small_tables(tmp_path, monkeypatch):
    """A folder with one small table."""
    rows = {
        "method": ["x", "y", "z"],
        "settings": ["", "k=1", "k=2"],
        "gain": [1.25, 2.5, -0.04],
        "gain_low": [0.25, 1.5, np.nan],
        "gain_high": [2.25, 3.5, np.nan],
        "accuracy": [80.0, 81.26, 79.0],
        "accuracy_sd": [1.0, np.nan, 2.0],
        "bytes": [1_000_000, 2_500_000, 0],
        "theirs": [79.0, np.nan, 81.0],
    }
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr(pages, "TABLES", tmp_path)
    pages.read_table.cache_clear()
    yield
    pages.read_table.cache_clear()


# ---- Pages ---------------------------------------------------------------------------------


def test_all_pages_agree_with_the_tables():
    assert [page.name for page in pages.outdated()] == []


def test_no_comment_of_a_page_is_left_unread():
    for page in pages.pages():
        rest = pages.INLINE.sub("", pages.BLOCK.sub("", page.read_text()))
        assert not re.search(r"<!--= |<!--/-->|<!-- table:|<!-- end -->", rest), page


def test_tables_and_phrases_are_written_and_stay(small_tables):
    text = pages.filled(TEXT)
    assert text == (
        "\n<!-- table: a method=x,y columns=method,gain,bytes sort=-gain -->\n\n"
        "| method | over local, points | exchanged in a run |\n| --- | ---: | ---: |\n"
        "| `y` | +2.5 ± 1.0 | 2.5 MB |\n| `x` | +1.2 ± 1.0 | 1 MB |\n\n<!-- end -->\n"
        "It gains <!--= a method=x gain -->1.2 ± 1.0<!--/--> points, "
        "<!--= a method!=z gain:max -->2.5 ± 1.0<!--/-->.\n"
    )
    assert pages.filled(text) == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a method=z gain", "0.0"),
        ("a count", "3"),
        ("a method=x accuracy:sd", "80.0 ± 1.0"),
        ("a method=y accuracy:sd", "81.3"),
        ("a method=x gain:interval", "0.2 to 2.2"),
        ("a method=x gain:mean", "1.2"),
        ("a method:list", "`x`, `y`, `z`"),
        ("a bytes:range", "0 B to 2.5 MB"),
        ("a method=x accuracy:beside", "80.0 / 79.0"),
        ("a method=y accuracy:beside", "81.3 / -"),
        ("a settings=k=2 method", "z"),
    ],
)
def test_what_a_phrase_can_say(small_tables, words, said):
    assert pages.phrase(words) == said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("b method=x gain", "there is no table b"),
        ("a methods=x gain", "there is no column methods"),
        ("a method=w gain", "no row has method=w"),
        ("a gain", "3 rows meet all filters"),
        ("a method=x settings=k=1 gain", "no row has settings=k=1"),
        ("a method=x gains", "there is no column gains"),
        ("a method=x gain:nice", "nice is no format"),
    ],
)
def test_a_wrong_phrase_is_refused_with_its_page(small_tables, words, problem):
    with pytest.raises(pages.SelectorError, match=f"page.md: {words}: .*{problem}"):
        pages.filled(f"<!--= {words} -->1<!--/-->", "page.md")


def test_a_pivot_has_a_column_for_each_value(small_tables):
    words = "a method=x,y pivot=method:y=Why,x=Ex columns=settings,gain"
    assert pages.table_of(words).splitlines() == [
        "| settings | Why | Ex |", "| --- | ---: | ---: |",
        "|  |  | +1.2 ± 1.0 |", "| k=1 | +2.5 ± 1.0 |  |",
    ]  # fmt: skip


def test_a_page_that_differs_fails_the_check(small_tables, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    monkeypatch.setattr(pages, "pages", lambda: [page])
    monkeypatch.setattr("sys.argv", ["results", "--check"])
    with pytest.raises(SystemExit, match=r"page\.md differ from the tables"):
        main()
    pages.write_pages()
    main()
    assert "1.2 ± 1.0" in page.read_text()


# ---- Tables --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", list(tables.MADE))
def test_committed_tables_are_those_of_the_runs(name, tmp_path):
    made = pd.read_csv(tables.write_table(name, tmp_path))
    committed = pd.read_csv(tables.TABLES / f"{name}.csv")
    pd.testing.assert_frame_equal(made, committed, rtol=1e-5, atol=2e-4)


def test_every_published_set_has_a_command_whose_sweep_exists():
    commands = pd.read_csv(tables.TABLES / "commands.csv")
    assert set(commands["set"]) == set(published.set_names())
    assert all((pages.ROOT / sweep).exists() for sweep in commands["sweep"])
    used = {RESULTS / "sweeps" / name for name in commands["sweep"].str.split("/").str[-1]}
    sweeps = set((RESULTS / "sweeps").glob("*.toml"))
    at_paper_size = {"perfed-ckt-table-1", "perfed-ckt-table-2", "kt-pfl-table-1-paper-size"}
    unused = {path.stem for path in sweeps - used}
    assert {name for name in unused if name not in at_paper_size} <= {
        "batch-norm-statistics", "fedkma-tables", "public-implementations",
        "public-implementations-public-data",
    }  # fmt: skip


def test_rows_by_hand_say_where_they_are_from():
    for name in ("agreement", "batch-norm", "fedkma-groups", "robustness", "searches", "speed"):
        assert pd.read_csv(tables.TABLES / f"{name}.csv")["source"].str.startswith("by hand").all()


def test_a_method_is_compared_with_the_shortest_local_that_takes_as_many_steps(
    small, tmp_path, monkeypatch
):
    changes = {"client-split": "60/20/20", "models": "mlp"}

    def run(strategy, iterations, order=0):
        varied = {"strategy": strategy, "local-iterations": iterations, "batch-order": order}
        folder = tmp_path / f"{strategy}-{iterations}-{order}"
        return fedkd_flwr.run({**small, **changes, **varied}, output_dir=folder)

    methods = [run(name, 2) for name in ("local", "fedavg", "kt-pfl")]
    longer = [run("local", 3), run("local", 20)]
    published.write_set("benchmark-tuned/retuned-x", methods, tmp_path / "runs")
    published.write_set("benchmark-tuned/controls-steps-x", longer, tmp_path / "runs")
    stored = {
        name: published.read_set(name, tmp_path / "runs")
        for name in ("benchmark-tuned/retuned-x", "benchmark-tuned/controls-steps-x")
    }
    monkeypatch.setattr(published, "read_set", stored.get)
    found = tables.over_equal_steps("x")
    last = [run.summary["last_round"]["accuracy_mean"] for run in (methods[2], longer[0])]
    local, _, kt_pfl = (run.summary["gradient_steps"] for run in methods)
    assert local < kt_pfl <= longer[0].summary["gradient_steps"]
    assert found["kt-pfl"].gain == pytest.approx(last[0] - last[1], abs=1e-4)
    # FedAvg takes the steps of `local`.
    usual = [run.summary["last_round"]["accuracy_mean"] for run in (methods[1], methods[0])]
    assert found["fedavg"].gain == pytest.approx(usual[0] - usual[1], abs=1e-4)


def test_an_answer_is_better_on_both_data_and_surpassed_by_none_with_less_traffic(monkeypatch):
    def rows(method, gain, size, verdict="better", other="better"):
        effect = {
            f"gain{part}{end}": gain for part in ("", "_steps") for end in ("", "_low", "_high")
        }
        place = {"clients": "groups", "models": "one", "method": method, "bytes": size, "steps": 60}
        return [
            {**place, **effect, "data": data, "verdict_steps": shown}
            for data, shown in (("Fashion-MNIST", verdict), ("CIFAR-10", other))
        ]

    monkeypatch.setattr(
        tables,
        "benchmark",
        lambda: [
            *rows("costly", 5.0, 100),
            *rows("surpassed", 2.0, 50),
            *rows("as cheap", 2.0, 10),
            *rows("cheap", 3.0, 10),
            *rows("not better", 6.0, 5, other="not shown"),
            *rows("cheapest", 1.0, 1),
        ],
    )
    assert [row["method"] for row in tables.answers()] == ["costly", "cheap", "cheapest"]


# ---- Papers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_of_a_paper_are_those_that_were_run_and_local():
    own = [row for row in papers.beside("kt-pfl") if row.data == "Fashion-MNIST, Non-IID 1"]
    found = {row.method: row for row in own}
    assert list(found)[-2:] == ["kt-pfl", "local"]
    assert (found["kt-pfl"].theirs, found["local"].theirs) == (75.48, None)
    assert {run.settings["kt-pfl.temperature"] for run in found["kt-pfl"].runs} == {10.0}
    assert len(found["local"].accuracies) == 3


@pytest.fixture
def small_paper(tmp_path, monkeypatch):
    """The file of a paper with two columns."""
    (tmp_path / "mine.toml").write_text(
        """
[[columns]]
table = "Table 1"
where = { num-clients = 3 }
size = { num-server-rounds = 200 }
figures = [
    { strategy = "hypcluster", hypcluster.clusters = 2, accuracy = 34.0 },
    { strategy = "hypcluster", hypcluster.clusters = 3, accuracy = 60.0 },
]

[[columns]]
table = "Table 1"
where = { num-clients = 4 }
figures = [{ strategy = "hypcluster", hypcluster.clusters = 3, accuracy = 1.0 }]
"""
    )
    read = papers.columns_of
    monkeypatch.setattr(papers, "columns_of", lambda paper: read(paper, tmp_path))
    return tmp_path / "mine.toml"


def test_own_runs_stand_beside_the_figure_with_their_settings(tmp_path, small_paper):
    runs = tmp_path / "runs"
    write_run(runs, "hypcluster", 0, [0.6, 0.7, 0.8], **{"hypcluster.clusters": 3})
    write_run(runs, "local", 0, [0.5, 0.5, 0.5])
    *_, row, _, note = papers.beside_paper(compare(runs), "mine", "Table 1").splitlines()
    assert row == "| hypcluster | 70.0 | 60.00 | +10.0 |"
    assert note == "Not at the paper's size: num-server-rounds is 2, in the paper 200."
    with pytest.raises(ConfigError, match="mine, Table 2, has no number for any of these runs"):
        papers.beside_paper(compare(runs), "mine", "Table 2")


def test_an_unknown_setting_of_a_paper_is_refused(small_paper):
    small_paper.write_text(small_paper.read_text().replace("num-clients = 4", "clients = 4"))
    with pytest.raises(ConfigError, match="names clients, which is not a setting"):
        papers.columns_of("mine")


@pytest.mark.parametrize(
    ("sweep", "paper", "table"),
    [
        ("kt-pfl-table-2", "kt-pfl", "Table 2"),
        ("perfed-ckt-table-1", "perfed-ckt", "Table 1"),
        ("perfed-ckt-table-2", "perfed-ckt", "Table 2"),
        ("persfl-cifar10", "persfl", "Table 2"),
        ("fedkma-tables", "fedkma", "Table I"),
    ],
)
def test_the_sweep_of_a_paper_has_the_papers_size(sweep, paper, table):
    found = []
    for run in read_sweep(RESULTS / "sweeps" / f"{sweep}.toml", {"seed": 0}).values():
        settings = run.flat()
        for column in papers.columns_of(paper):
            figure = column.figure_of(settings)
            if column.table == table and figure and column.where.items() <= settings.items():
                assert {name: settings[name] for name in column.size} == column.size
                found.append(figure)
    assert found


# ---- Figures -------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_seed_is_a_dot_or_a_triangle_at_the_edge():
    figure = figures.gain_over_local()
    low, high = figures.LIMITS
    for axes, name in zip(figure.axes, figures.PANELS.values(), strict=True):
        drawn = [x for points in axes.collections for x in points.get_offsets()[:, 0]]
        comparison = published.compared(name)
        gains = [g for method in figures.SHOWN for g in published.gains(comparison, method)]
        assert sorted(drawn) == pytest.approx(sorted(np.clip(100 * np.array(gains), low, None)))
        assert 100 * max(gains) < high


def test_every_figure_is_committed():
    assert {path.stem for path in figures.FIGURES.glob("*.png")} == set(figures.MADE)


# ---- Publishing ----------------------------------------------------------------------------


def test_published_runs_compare_like_the_original_runs(small, tmp_path):
    changes = {"client-split": "50/20/30", "num-server-rounds": 3, "models": "mlp"}
    runs = [
        fedkd_flwr.run({**small, **changes, "strategy": name}, output_dir=tmp_path / name)
        for name in ("local", "fedavg")
    ]
    folder = tmp_path / "runs"
    published.write_set("z/other", runs[:1], folder)
    published.write_set("a/both", runs, folder)
    assert published.set_names(folder=folder) == ["a/both", "z/other"]
    again = published.read_set("a/both", folder)
    expected, found = fedkd_flwr.compare(runs), fedkd_flwr.compare(again)
    assert found.verdicts == expected.verdicts
    columns = ["accuracy", "accuracy_chosen", "clients_decile", "harmed", "harmed_shown", "bytes"]
    np.testing.assert_allclose(
        found.table[columns].astype(float), expected.table[columns].astype(float), atol=1e-4
    )


def test_published_safeguards_are_those_of_the_runs(small, tmp_path):
    guarded = {**small, "safeguard": "blend", "models": "mlp", "strategy": "fedavg"}
    run = fedkd_flwr.run(guarded, output_dir=tmp_path / "run")
    published.write_set("a/one", [run], tmp_path / "runs")
    (again,) = published.read_set("a/one", tmp_path / "runs")
    expected, found = safeguarded(run), safeguarded(again)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    counted = list(LOST_AND_WON)
    assert (found[counted].to_numpy() == expected[counted].to_numpy()).all()


def test_runs_are_published_in_parts_and_replaced(small, tmp_path):
    for name in ("local", "kt-pfl"):
        fedkd_flwr.run({**small, "strategy": name}, output_dir=tmp_path / name / "run")
    folder = tmp_path / "runs"
    assert published.publish(tmp_path / "local", "a/b", add=False, folder=folder) == 1
    assert published.publish(tmp_path / "kt-pfl", "a/b", add=True, folder=folder) == 2
    assert published.publish(tmp_path / "local", "a/b", add=True, folder=folder) == 2
    lines = published.read_lines(folder / "a.jsonl.xz")
    assert all(json.loads(line)["set"] == "a/b" for line in lines)
    assert published.publish(tmp_path / "local", "a/b", add=False, folder=folder) == 1


def test_a_run_that_lacks_a_client_is_refused(small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    lines = (run.path / "clients.jsonl").read_text().splitlines()
    (run.path / "clients.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="local has 3 of 4 clients' results"):
        published.published(fedkd_flwr.load_run(run.path))


def test_the_makers_are_versions_and_commits(small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    project = run.description["project"]
    found = published.makers([run, run])
    assert found["version"] == project["version"]
    effects = effects_of({"one": [0.01, 0.02, 0.03]})
    assert published.in_points("gain", effects["one"])["gain"] == 2.0
