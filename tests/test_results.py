"""Tables, figures and pages of results agree with the published runs."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedkd_flwr
from fedkd_flwr.analysis.harm import safeguarded
from fedkd_flwr.analysis.reference_runs import validation_accuracy
from results import figures, pages, published, tables

TEXT = """
<!-- table: a method=x,y columns=method,gain,bytes -->
<!-- end -->
It gains <!--= a method=x gain -->old<!--/--> points.
"""


@pytest.fixture
def small_table(tmp_path, monkeypatch):
    rows = {
        "method": ["x", "y", "z"],
        "settings": ["", "k=1", "k=2.0, l=3"],
        "gain": [1.25, 2.5, -0.04],
        "gain_low": [0.25, 1.5, np.nan],
        "gain_high": [2.25, 3.5, np.nan],
        "accuracy": [80.0, 81.26, 79.0],
        "theirs": [79.0, np.nan, 81.0],
        "bytes": [1_000_000, 2_500_000, 0],
        "insiders": [np.nan, 0, 2],
        "split": ["a", "b", "b"],
    }
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr(pages, "TABLES", tmp_path)
    monkeypatch.setattr(pages, "read_table", pages.read_table.__wrapped__)


def test_all_pages_agree_with_the_tables():
    assert [page.name for page in pages.outdated()] == []


def test_no_comment_of_a_page_is_left_unread():
    for page in pages.pages():
        rest = pages.INLINE.sub("", pages.BLOCK.sub("", page.read_text()))
        assert not re.search(r"<!--= |<!--/-->|<!-- table:|<!-- end -->", rest), page


def test_tables_and_phrases_are_written_and_stay(small_table, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    monkeypatch.setattr(pages, "pages", lambda: [page])
    assert pages.write_pages() == [page]
    assert page.read_text() == (
        "\n<!-- table: a method=x,y columns=method,gain,bytes -->\n\n"
        "| method | over local, points | exchanged in a run |\n| --- | ---: | ---: |\n"
        "| `x` | +1.2 ± 1.0 | 1 MB |\n| `y` | +2.5 ± 1.0 | 2.5 MB |\n\n<!-- end -->\n"
        "It gains <!--= a method=x gain -->1.2 ± 1.0<!--/--> points.\n"
    )
    assert pages.write_pages() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a method=z gain", "0.0"),
        ("a method!=z count", "2"),
        ("a method=x accuracy:beside", "80.0 / 79.0"),
        ("a method=y accuracy:beside", "81.3 / -"),
        ("a 'settings=k=2.0, l=3' method", "z"),
        ("a insiders=2 method", "z"),
    ],
)
def test_what_a_phrase_can_say(small_table, words, said):
    assert pages.phrase(words) == said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("b method=x gain", "there is no table b"),
        ("a methods=x gain", "there is no column methods"),
        ("a method=w gain", "no row has method=w"),
        ("a gain", "3 rows meet all filters"),
        ("a method=x gains", "there is no column gains"),
        ("a method=x gain:nice", "nice is no format"),
    ],
)
def test_a_wrong_phrase_is_refused_with_its_page(small_table, words, problem):
    with pytest.raises(pages.SelectorError, match=f"page.md: {words}: .*{problem}"):
        pages.filled(f"<!--= {words} -->1<!--/-->", "page.md")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(tables.MADE))
def test_committed_tables_are_those_of_the_runs(name, tmp_path):
    made = pd.read_csv(tables.write_table(name, tmp_path))
    committed = pd.read_csv(tables.TABLES / f"{name}.csv")
    pd.testing.assert_frame_equal(made, committed, rtol=1e-5, atol=2e-4)


def test_rows_by_hand_say_where_they_are_from():
    by_hand = {path.stem for path in tables.TABLES.glob("*.csv")} - set(tables.MADE)
    for name in by_hand - {"commands"}:
        assert pd.read_csv(tables.TABLES / f"{name}.csv")["source"].str.startswith("by hand").all()


def test_a_tuned_method_is_compared_with_the_best_local_by_validation(small, tmp_path, monkeypatch):
    def run(strategy, iterations):
        varied = {"strategy": strategy, "local-iterations": iterations, "client-split": "40/20/40"}
        folder = tmp_path / f"{strategy}-{iterations}"
        return fedkd_flwr.run({**small, **varied, "models": "mlp"}, output_dir=folder)

    tuned, *longer = locals_ = [run("local", steps) for steps in (2, 3, 20)]
    sets = {f"{tables.TUNED}-x": [tuned, run("fedavg", 2)], f"{tables.STEPS}-x": longer}
    for name, runs in sets.items():
        published.write_set(name, runs, tmp_path / "runs")
    stored = {name: published.read_set(name, tmp_path / "runs") for name in sets}
    monkeypatch.setattr(published, "read_set", stored.get)
    monkeypatch.setattr(tables, "read_set", stored.get)
    best = max(locals_, key=validation_accuracy)
    assert best is not tuned
    found = tables.over_best("x")
    fedavg = published.accuracy(sets[f"{tables.TUNED}-x"][1])
    assert found["fedavg"].gain == pytest.approx(fedavg - published.accuracy(best))
    assert list(found) == ["fedavg"]


def test_round_and_moment_are_chosen_by_validation():
    means = "accuracy_mean", "validation_accuracy_mean", "distilled_accuracy_mean"
    rows = [(0.9, 0.1, 0.2, 0.6), (0.3, 0.5, 0.4, 0.6), (0.8, 0.4, 0.7, 0.5)]
    names = (*means, "distilled_validation_accuracy_mean")
    rounds = [{"round": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)]
    run = SimpleNamespace(round_rows=rounds)
    shown = {
        moment: published.chosen(published.evaluations(run, of))
        for moment, of in tables.WHEN.items()
    }
    assert shown == {"best": 0.2, "trained": 0.3, "distilled": 0.2}


def test_an_answer_is_better_on_both_data_and_surpassed_by_none_with_less_traffic(monkeypatch):
    def rows(method, gain, size, other="better"):
        gains = {"gain": gain, "gain_low": gain}
        place = {"clients": "groups", "models": "one", "method": method, "bytes": size, "steps": 60}
        verdicts = {"Fashion-MNIST": "better", "CIFAR-10": other}
        return [{**place, **gains, "data": d, "verdict": v} for d, v in verdicts.items()]

    benchmark = [
        *rows("costly", 5.0, 100), *rows("surpassed", 2.0, 50), *rows("as cheap", 2.0, 10),
        *rows("cheap", 3.0, 10), *rows("not better", 6.0, 5, "not shown"), *rows("least", 1.0, 1),
    ]  # fmt: skip
    monkeypatch.setattr(tables, "benchmark", lambda: benchmark)
    assert [row["method"] for row in tables.answers()] == ["costly", "cheap", "least"]


def test_every_set_has_a_command_and_every_figure_is_committed():
    commands = pd.read_csv(tables.TABLES / "commands.csv")
    assert set(commands["set"]) == set(published.set_names())
    assert all((pages.ROOT / sweep).exists() for sweep in commands["sweep"])
    committed = (tables.RESULTS / "figures").glob("*.png")
    assert {path.stem for path in committed} == set(figures.MADE)


def test_published_runs_compare_like_the_original_runs(small, tmp_path):
    changes = {"client-split": "50/20/30", "models": "mlp", "safeguard": "blend"}
    for name in ("local", "fedavg"):
        settings = {**small, **changes, "num-server-rounds": 3, "strategy": name}
        fedkd_flwr.run(settings, output_dir=tmp_path / "own" / name)
    folder = tmp_path / "runs"
    published.publish(tmp_path / "own" / "local", "z/other", folder)
    published.publish(tmp_path / "own", "a/both", folder)
    published.publish(tmp_path / "own", "a/both", folder)
    assert published.set_names(folder) == ["a/both", "z/other"]
    again = published.read_set("a/both", folder)
    expected, found = fedkd_flwr.compare(tmp_path / "own"), fedkd_flwr.compare(again)
    assert found.verdicts == expected.verdicts
    columns = ["accuracy", "accuracy_chosen", "clients_decile", "harmed", "bytes"]
    pd.testing.assert_frame_equal(found.table[columns], expected.table[columns])
    guarded = [safeguarded(one.groups["fedavg"][0]) for one in (found, expected)]
    pd.testing.assert_frame_equal(*guarded, check_dtype=False)
    assert not guarded[0].empty


def test_users_and_pairs_of_persfl_are_published(small, tmp_path):
    settings = {"strategy": "persfl", "models": "mlp", "persfl.temperatures": "1,5"}
    settings |= {"client-split": "50/20/30", "persfl.imitation": "0,0.5"}
    run = fedkd_flwr.run({**small, **settings}, output_dir=tmp_path)
    found = published.also_measured(run)
    assert set(found["users"]) == {"lambda", "temperature", "teacher_round"}
    own = run.table("pairs").query("`lambda` == 0.5 and temperature == 5")["accuracy"]
    assert found["pairs"]["lambda"] == [0, 0.5, 0.5]
    assert found["pairs"]["accuracy"][-1] == pytest.approx(own.mean())


def test_the_contrast_of_m_is_the_weight_within_groups_over_that_across():
    row = [0.3, 0.5, 0.1, 0.1]
    config = {"partition": "k-classes-grouped", "groups": 2}
    measured = {"sharing": [[row, row, row[::-1], row[::-1]]]}
    runs = [SimpleNamespace(config=config, also_measured=measured)]
    assert tables.of_groups(runs) == [pytest.approx((0.4, 0.1))]
    assert tables.contrast(0.4, 0.1) == 4
    runs[0].config["partition"] = "k-classes"
    assert tables.of_groups(runs) == []


def test_a_run_that_lacks_a_client_is_refused(small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    lines = (run.path / "clients.jsonl").read_text().splitlines()
    (run.path / "clients.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="local has 3 of 4 clients' results"):
        published.published(fedkd_flwr.load_run(run.path))
