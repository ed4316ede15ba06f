"""Tables and numbers on the results pages agree with the published runs."""

import functools
import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import fedkd_flwr
from fedkd_flwr.analysis.safeguards import LOST_AND_WON, safeguarded
from fedkd_flwr.analysis.significance import effects_of
from fedkd_flwr.analysis.targets import cost_to_target

RESULTS = Path(__file__).parent.parent / "docs" / "results"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    """Make the scripts of the results pages importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RESULTS)
        yield importlib.import_module("check")


@pytest.fixture(scope="module")
def runs_script(scripts):
    return importlib.import_module("runs")


@pytest.mark.slow
def test_tables_numbers_and_claims_agree_with_the_runs(scripts, capsys):
    assert scripts.main([]) == 0, capsys.readouterr().out


def test_no_sentence_has_a_marker(scripts):
    for page in scripts.pages():
        rest = scripts.BLOCK.sub("", page.read_text())
        assert "<!-- from:" not in rest, page
        assert "<!-- end -->" not in rest, page


def test_a_wrong_number_in_a_table_is_reported_and_corrected(scripts, tmp_path):
    page = tmp_path / "page.md"
    call = "tables.table transfer/kt-pfl columns=accuracy"
    page.write_text(f"KT-pFL:\n\n<!-- from: {call} -->\n\n| 99.9 |\n\n<!-- end -->\n")
    text, differing = scripts.filled(page)
    assert differing == [call]
    assert "| `kt-pfl` | 84.5 ± 3.5 |" in text
    page.write_text(text)
    assert scripts.filled(page) == (text, [])


def test_a_gain_in_a_sentence_needs_its_interval(scripts, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "KT-pFL has +1.2 (+0.3 to +2.1), [-3.4 (-5.0 to -1.8)](other.md) and +0.5 (-0.7 before).\n"
        "`-c alpha=-0.5`\n\n| +2.0 |\n"
    )
    assert scripts.without_interval(page) == ["+0.5", "-0.7"]


def test_a_number_in_a_sentence_needs_a_table_a_setting_or_a_claim(scripts, tmp_path):
    page = tmp_path / "page.md"
    table = "<!-- from: tables.table transfer/kt-pfl columns=accuracy -->\n<!-- end -->\n"
    said = "KT-pFL has 84.5 with 20 clients, above 77.7 of Table 3 in `33` and CIFAR-10.\n"
    page.write_text(table + said)
    page.write_text(scripts.filled(page)[0])
    assert scripts.unsupported(page) == ["77.7"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"call": "means_above kt-pfl", "value": "7 of 8"}, "says 7 of 8, the runs say 8 of 8"),
        ({"value": "7 of 8"}, "has neither a call nor a source"),
        ({"source": "a paper", "value": "123456"}, "lack 123456"),
        ({"call": "gain transfer/kt-pfl none", "value": "8"}, "transfer/kt-pfl has no run"),
        ({"call": "means_above kt-pfl", "value": "8 of 8"}, ""),
        (
            {"call": "outcomes safeguard/dirichlet worse", "value": "all", "sentences": []},
            "says all, the runs say 4 of 12, so read its sentences again",
        ),
        ({"source": "a test", "value": "all", "sentences": ["leads all"]}, "lack leads all"),
        # In a generated table alone.
        ({"source": "a table", "value": "8 of 8 | 79 of 80"}, "lack 8 of 8"),
    ],
)
def test_a_wrong_claim_is_reported(scripts, changes, problem):
    found = scripts.wrong(
        {"id": "one", "page": "docs/results/benchmark-tuned/first-settings.md", **changes}
    )
    assert problem in found
    assert bool(problem) == bool(found)


def test_every_table_says_which_code_made_its_runs_and_what_cifar10_is(scripts):
    for page in scripts.results_pages():
        for _, call, content, _ in scripts.BLOCK.findall(page.read_text()):
            if call.startswith("speed_rows."):
                continue
            caption = content.strip().splitlines()[-1]
            assert re.search(r"[Mm]ade by (an earlier state|version)", caption), call
            if re.search(r"cifar10(?!0)", call) or re.search(r"CIFAR-10(?!0)", content):
                assert "JPEG" in caption or call.startswith("tables.measured"), call


def test_the_caption_names_version_commit_and_test_images(small, runs_script, tmp_path):
    tables = importlib.import_module("tables")
    columns = importlib.import_module("columns")
    run = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    runs_script.write_set("a/b", [run], tmp_path / "published")
    (again,) = runs_script.read_set("a/b", tmp_path / "published")
    caption = tables.caption({(): [columns.Result(again, 1, None)]}, {}, has_verdicts=False)
    project = run.description["project"]
    assert f"made by version {project['version']}, commit" in caption
    assert f"{run.clients['total'].min():,.0f}" in caption
    assert caption.endswith("test images a client.*")


def test_methods_with_different_numbers_of_rounds_are_corrected_together(runs_script):
    """As `fedkd compare` corrects them. A table by round has a family for each round."""
    tables, name = importlib.import_module("tables"), "persfl/cifar10-ds3-small"
    outcomes = [str(effect.outcome) for effect in runs_script.compared(name).effects.values()]
    *rows, _, caption = tables.table(name, "by=persfl.teacher", "columns=verdict").splitlines()
    verdicts = [row.split("|")[-2].strip() for row in rows[2:]]
    assert sorted(filter(None, verdicts)) == sorted(outcomes)
    assert "over 7 rows" in caption
    by_round = tables.table(name, "by=round", "columns=verdict").splitlines()[-1]
    assert "over 4 and 6 rows" in by_round


def test_published_runs_compare_like_the_original_runs(runs_script, small, tmp_path):
    changes = {"client-split": "50/20/30", "num-server-rounds": 3, "models": "mlp"}
    runs = [
        fedkd_flwr.run({**small, **changes, "strategy": name}, output_dir=tmp_path / name)
        for name in ("local", "fedavg")
    ]
    published = tmp_path / "published"
    runs_script.write_set("z/other", runs[:1], published)
    runs_script.write_set("a/both", runs, published)
    assert runs_script.set_names(folder=published) == ["a/both", "z/other"]
    again = runs_script.read_set("a/both", published)
    expected, found = fedkd_flwr.compare(runs), fedkd_flwr.compare(again)
    assert found.verdicts == expected.verdicts
    columns = ["accuracy", "accuracy_chosen", "clients_decile", "harmed", "harmed_shown", "bytes"]
    np.testing.assert_allclose(
        found.table[columns].astype(float), expected.table[columns].astype(float), atol=1e-4
    )
    target = runs[1].rounds["accuracy_mean"].iloc[1] - 1e-3
    costs, kept = cost_to_target(runs[1], target), cost_to_target(again[1], target)
    assert kept["rounds_to_target"] == costs["rounds_to_target"]
    assert kept["bytes_to_target"] == costs["bytes_to_target"]
    assert kept["seconds_to_target"] == pytest.approx(costs["seconds_to_target"], abs=0.01)


def test_published_safeguards_are_those_of_the_runs(runs_script, small, tmp_path):
    guarded = {**small, "safeguard": "blend", "models": "mlp", "strategy": "fedavg"}
    run = fedkd_flwr.run(guarded, output_dir=tmp_path / "run")
    runs_script.write_set("a/one", [run], tmp_path / "published")
    (again,) = runs_script.read_set("a/one", tmp_path / "published")
    expected, found = safeguarded(run), safeguarded(again)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    counted = list(LOST_AND_WON)
    assert (found[counted].to_numpy() == expected[counted].to_numpy()).all()


def test_accuracy_at_equal_bytes_is_that_of_the_last_round_within_the_budget(
    small, runs_script, tmp_path, monkeypatch
):
    tables, columns = importlib.import_module("tables"), importlib.import_module("columns")
    changes = {"num-server-rounds": 3, "evaluate-every": 1, "models": "mlp"}
    runs = [
        fedkd_flwr.run({**small, **changes, "strategy": name}, output_dir=tmp_path / name)
        for name in ("local", "fedavg")
    ]
    published = tmp_path / "published"
    runs_script.write_set("a/both", runs, published)
    monkeypatch.setattr(columns, "read_set", lambda name: runs_script.read_set(name, published))
    sizes = runs_script.read_set("a/both", published)[1].kept["bytes_to_round"]
    budgets = [sizes[0] - 1, sizes[1], sizes[2] - 1, sizes[2]]
    words = ",".join(str(size / 1e6) for size in budgets)
    rows = tables.at_bytes("a/both", f"megabytes={words}").splitlines()[2:4]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    last, averaged = ([f"{100 * a:.1f}" for a in run.rounds["accuracy_mean"]] for run in runs)
    assert cells[0] == ["`local`", "0 B", *[last[2]] * 4]
    assert cells[1][0] == "`fedavg`"
    assert cells[1][2:] == ["", averaged[1], averaged[1], averaged[2]]


def test_a_method_is_compared_with_the_shortest_local_that_takes_as_many_steps(
    small, runs_script, tmp_path, monkeypatch
):
    columns, equal_steps = (
        importlib.import_module("columns"),
        importlib.import_module("equal_steps"),
    )
    changes = {"client-split": "60/20/20", "models": "mlp"}

    def run(strategy, iterations, order=0):
        varied = {"strategy": strategy, "local-iterations": iterations, "batch-order": order}
        folder = tmp_path / f"{strategy}-{iterations}-{order}"
        return fedkd_flwr.run({**small, **changes, **varied}, output_dir=folder)

    published = tmp_path / "published"
    methods = [run(name, 2) for name in ("local", "fedavg", "kt-pfl")]
    longer = [run("local", 2, order=1), run("local", 3), run("local", 20)]
    runs_script.write_set("a/methods", methods, published)
    runs_script.write_set("a/controls", longer, published)
    monkeypatch.setattr(columns, "read_set", lambda name: runs_script.read_set(name, published))
    local, fedavg, kt_pfl = (run.summary["gradient_steps"] for run in methods)
    steps = [run.summary["gradient_steps"] for run in longer]
    assert fedavg == local == steps[0] < kt_pfl <= steps[1] < steps[2]
    # FedAvg takes the steps of `local`, and is in the table of the methods already.
    ((method, effect),) = equal_steps.over_equal_steps("a/methods", "a/controls").items()
    last = [run.summary["last_round"]["accuracy_mean"] for run in (methods[2], longer[1])]
    assert method == "kt-pfl" and effect.gain == pytest.approx(last[0] - last[1], abs=1e-4)
    rows = equal_steps.table("a/methods", "a/controls").splitlines()[2:]
    assert sum(row.startswith("| `local, ") for row in rows) == 3
    assert sum(row.startswith("| `kt-pfl` ") for row in rows) == 1


def test_the_same_method_twice_is_corrected_with_the_methods_of_its_table(scripts, monkeypatch):
    """A p value below 0.05 is shown by itself, and not beside two further rows."""
    same_twice = importlib.import_module("same_twice")
    gains = [0.004, 0.001, 0.003, -0.0005, 0.005, 0.001]
    own = [SimpleNamespace(gain=gain) for gain in gains]
    others = {"kt-pfl": [0.01, -0.02, 0.01], "fedavg": [0.02, -0.01, -0.01]}
    monkeypatch.setattr(same_twice, "gains_by_method", lambda name: others)
    alone, among = same_twice.effect_alone(own), same_twice.effect_among("a/b", own)
    assert alone.p_value == among.p_value < 0.05 < among.p_holm
    assert (alone.outcome, among.outcome) == ("better", "not shown")
    assert (alone.family, among.family) == (1, 3)


def test_fine_tuned_methods_stand_beside_themselves_without_it(scripts, monkeypatch):
    fine_tuned = importlib.import_module("fine_tuned")
    effects = effects_of({"large": [0.03, 0.031, 0.032], "none": [0.001, -0.001, 0.0]})
    found = {
        "benchmark-tuned/retuned-dirichlet": {"kt-pfl": effects["none"]},
        "benchmark-tuned/fine-tuned-dirichlet": {"kt-pfl": effects["large"]},
    }
    runs = [
        SimpleNamespace(strategy=name, accuracy=accuracy, seed=0)
        for name, accuracy in [("local", 0.8), ("kt-pfl", 0.831)]
    ]
    longer = SimpleNamespace(strategy="local", accuracy=0.812, seed=0)
    monkeypatch.setattr(fine_tuned, "effects", found.get)
    of_local = {
        name: [*runs[1:], local] for name, local in zip(found, [runs[0], longer], strict=True)
    }
    monkeypatch.setattr(fine_tuned, "results", of_local.get)
    monkeypatch.setattr(fine_tuned, "set_names", lambda: [*found])
    monkeypatch.setattr(fine_tuned, "caption", lambda *_, **__: "made by a test")
    *_, first, second, _, _ = fine_tuned.table("dirichlet").splitlines()
    assert first.startswith("| `kt-pfl` | 83.1 | +3.1 (") and "| better | +0.0 (" in first
    assert first.endswith("| not shown |") and second == "| `local` | 81.2 |  |  |  |  |"
    counts = fine_tuned.counts().splitlines()[2]
    assert counts.startswith("| Dirichlet 0.1 | +1.2")
    assert counts.endswith(" | 1 | 0 → 1 | 1 → 0 | 0 → 0 |")
    assert fine_tuned.by_method().splitlines()[2] == "| `kt-pfl` | 1 | 1 | 0 | 0 |"


def test_an_answer_is_surpassed_by_none_with_less_traffic(scripts, monkeypatch):
    answers = importlib.import_module("answers")
    found = [
        SimpleNamespace(method=method, is_better=is_better, gain=gain, traffic=traffic)
        for method, is_better, gain, traffic in [
            ("costly", True, 0.05, 100),
            ("surpassed", True, 0.02, 50),
            ("as cheap", True, 0.02, 10),
            ("cheap", True, 0.03, 10),
            ("not better", False, 0.06, 5),
            ("cheapest", True, 0.01, 1),
        ]
    ]
    monkeypatch.setattr(answers, "candidates", lambda clients: found)
    assert [one.method for one in answers.answers("any")] == ["costly", "cheap", "cheapest"]


def test_an_answer_is_better_at_equal_steps_on_all_data_sets(scripts):
    answers = importlib.import_module("answers")
    effects = effects_of({"large": [0.03, 0.031, 0.032], "none": [0.001, -0.001, 0.0]})
    large, none = effects["large"], effects["none"]
    method = functools.partial(answers.Answer, "kt-pfl", (large, large), runs=([], []))
    assert method(at_equal_steps=(large, large)).is_better
    assert not method(at_equal_steps=(large, none)).is_better
    usual, with_steps = method(at_equal_steps=(large, none)).cells
    assert usual.startswith("+3.1 (") and ";" not in usual
    assert with_steps.startswith(f"{usual}; +0.0 (")


def test_runs_are_published_in_parts_and_replaced(runs_script, small, tmp_path):
    runs = [
        fedkd_flwr.run({**small, "strategy": name}, output_dir=tmp_path / name)
        for name in ("local", "kt-pfl")
    ]
    published = tmp_path / "published"
    runs_script.write_set("a/b", runs, published)
    whole = runs_script.read_lines(published / "a.jsonl.xz")
    runs_script.write_set("a/b", runs[:1], published)
    runs_script.write_set("a/b", runs_script.with_others(runs[1:], "a/b", published), published)
    assert runs_script.read_lines(published / "a.jsonl.xz") == whole
    assert runs_script.with_others(runs[:1], "a/b", published)[1:] == runs[:1]
    assert all(json.loads(line)["set"] == "a/b" for line in whole)


def test_a_run_that_lacks_a_client_is_refused(runs_script, small, tmp_path):
    run = fedkd_flwr.run({**small, "strategy": "local"}, output_dir=tmp_path / "local")
    lines = (run.path / "clients.jsonl").read_text().splitlines()
    (run.path / "clients.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="local has 3 of 4 clients' results"):
        runs_script.published(fedkd_flwr.load_run(run.path))


# ---- The commands on the pages -------------------------------------------------------------

# Commands of benchmark-tuned have NAME in place of its eight comparisons.
FOLDERS = sorted(
    {page.parent for page in RESULTS.glob("*/README.md")} - {RESULTS / "benchmark-tuned"}
)


def commands_of(text):
    """Return the words of each command of a text, as bash expands its loops."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    script = "\n".join(['uv() { echo "$@"; }', *blocks])
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return [line.split()[1:] for line in ran.stdout.splitlines()]


def sets_read(text, paper_tables):
    """Return the sets that the tables of a text show."""
    calls = re.findall(r"<!-- from: tables\.table (.*?) -->", text)
    found = {word for call in calls for word in call.split() if "/" in word and "=" not in word}
    for page in re.findall(r"<!-- from: paper_tables\.table (\S+)", text):
        found |= {name for part in paper_tables.parts(page)[0] for name in part.sets}
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_set_of_a_page_is_made_by_a_command_beside_it(folder):
    text = "\n".join(page.read_text() for page in sorted(folder.glob("*.md")))
    commands = commands_of(text)
    made = {words[-1] for words in commands if words[1].endswith("runs.py")}
    assert sets_read(text, importlib.import_module("paper_tables")) <= made
    sweeps = {words[2] for words in commands if words[:2] == ["fedkd", "sweep"]}
    assert {sweep for sweep in sweeps if not (RESULTS.parents[1] / sweep).exists()} == set()


# ---- Papers beside our runs ----------------------------------------------------------------

PAPERS = [file.parent.name for file in sorted(RESULTS.glob("*/paper.toml"))]


@pytest.mark.parametrize("page", PAPERS)
def test_a_papers_figure_is_of_the_published_runs(scripts, page):
    figure = importlib.import_module("paper_figure")
    with Image.open(RESULTS / page / "paper.png") as image:
        found = image.text["Description"]
    assert found == figure.digest(figure.panels(page)), (
        f"Run `uv run python docs/results/paper_figure.py {page}`."
    )


@pytest.mark.parametrize("page", PAPERS)
def test_every_part_of_a_paper_is_in_a_table_of_its_page(scripts, page):
    paper_tables = importlib.import_module("paper_tables")
    named = re.findall(
        rf"<!-- from: paper_tables\.table {page} (.*) -->",
        (RESULTS / page / "README.md").read_text(),
    )
    shown = {name for words in named for name in shlex.split(words)}
    assert {part.table for part in paper_tables.parts(page)[0]} == shown


def test_rows_of_a_paper_are_those_that_were_run_and_local(scripts):
    paper_tables = importlib.import_module("paper_tables")
    conditions = {"round": "30"}
    names = ("kt-pfl/table-1", "kt-pfl/table-1-rivals")
    part = paper_tables.Part("Table 1", "", names, "kt-pfl-table-1:1", conditions)
    found = {row.method: row for row in paper_tables.rows(part)}
    assert list(found)[-2:] == ["`kt-pfl`", "`local`"]
    assert (found["`kt-pfl`"].paper, found["`local`"].paper) == (75.48, None)
    assert {one.value("kt-pfl.temperature") for one in found["`kt-pfl`"].own} == {10.0}
    assert [one.seed for one in found["`local`"].own] == [0, 1, 2]


def test_a_row_with_several_runs_of_a_seed_is_refused(scripts):
    paper_tables = importlib.import_module("paper_tables")
    part = paper_tables.Part("Table 2", "DS-2", ("persfl/mnist-ds2",), "persfl-mnist:2")
    with pytest.raises(ValueError, match="persfl/mnist-ds2 has several runs of a seed for"):
        paper_tables.rows(part)
