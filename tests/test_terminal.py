"""What commands print on a terminal: tables that fit, progress, paths, and how to go on."""

from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.columns import in_bytes, points
from fedkd_flwr.cli import app, output, progress, results, tables
from fedkd_flwr.engines import find_engine, resolve_output
from strategies.core.rounds import Observer


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def terminal(monkeypatch):
    def of(width):
        printed = StringIO()
        console = Console(file=printed, force_terminal=True, width=width, color_system=None)
        for module in (output, results, tables, progress):
            if hasattr(module, "console"):
                monkeypatch.setattr(module, "console", lambda: console)
        return printed

    return of


@pytest.fixture
def two_runs(small, tmp_path):
    for strategy in ("local", "kt-pfl"):
        fedkd_flwr.run(
            small,
            output_dir=tmp_path / "runs" / strategy,
            strategy=strategy,
            models="mlp",
            num_server_rounds=1,
        )
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1500, "1.5 kB"), (999_400, "999 kB"),
        (999_600, "1 MB"), (12_345_678, "12.3 MB"), (3e12, "3 TB"), (5e15, "5e+03 TB"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits_and_the_unit_that_suits_them(size, told):
    assert in_bytes(size) == told


@pytest.mark.parametrize("width", [60, 80, 200])
def test_compare_on_a_terminal_is_short_and_explained_on_request(two_runs, terminal, width):
    compared = fedkd_flwr.compare(two_runs)
    printed = terminal(width)
    assert command("compare", two_runs, "--per-client").exit_code == 0
    short = printed.getvalue()
    printed = terminal(width)
    assert command("compare", two_runs, "--explain").exit_code == 0
    explained = " ".join(printed.getvalue().split())
    for text in (short, printed.getvalue()):
        assert "|" not in text and max(map(len, text.splitlines())) <= width
    headings, _, rows = short.partition("─")
    shown = {"method", "accuracy", "points", "over", "local", "verdict", "seeds"}
    assert set(headings.split()) == shown
    assert [row.split()[0] for row in rows.splitlines()[1:3]] == list(compared.table.index)
    assert "A verdict needs at least 3 seeds" in short and "Shown harmed" not in short
    for heading in compared.rendered().columns:
        assert set(heading.split()) <= set(explained.split())
    for remark in (*compared.verdicts, *compared.notes):
        assert remark in explained
    clients = short[short.index("\nclient") :].splitlines()
    accuracies = compared.clients.query("method == 'local'")["accuracy"]
    row = next(line.split() for line in clients if line.startswith("0 "))
    assert f"{accuracies.iloc[0]:.1%}" in row[1:]


def test_compare_is_markdown_when_piped(two_runs):
    assert command("compare", two_runs).stdout.startswith("| method | seeds |")


def test_the_path_of_a_run_is_printed_first_and_its_clients_on_request(small, tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text("\n".join(f"{k} = {v!r}" for k, v in small.items()).replace("'", '"'))
    result = command(
        "run", preset, "--output-dir", tmp_path / "run", "-c", "num-server-rounds=1", "--per-client"
    )
    assert result.stdout.startswith(f"Run directory: {tmp_path / 'run'}\n")
    clients = fedkd_flwr.load_run(tmp_path / "run").clients
    for row in clients.itertuples():
        told = (
            f"{row.partition_id} {row.model} {row.num_examples} {row.total:.0f} {row.accuracy:.1%}"
        )
        assert told in [" ".join(line.split()[:5]) for line in result.stdout.splitlines()]


def test_a_run_ends_with_what_it_gains_over_training_alone(small, tmp_path):
    options = [part for key, value in small.items() for part in ("-c", f"{key}={value}")]
    folder = tmp_path / "run"
    result = command("run", *options, "--with-local", "--output-dir", folder)
    assert result.exit_code == 0, result.stderr
    run, alone = map(fedkd_flwr.load_run, (folder, tmp_path / "run-local"))
    ours, theirs = (one.last_evaluations["accuracy"] for one in (run, alone))
    gain = ours - theirs
    assert result.stdout.splitlines()[-4:-1] == [
        f"kt-pfl: mean {ours.mean():.1%}, worst client {ours.min():.1%}.",
        f"local: mean {theirs.mean():.1%}, worst client {theirs.min():.1%}.",
        f"Over training alone: {points(gain.mean())} points. Of {len(gain)} clients, "
        f"{(gain > 0).sum()} gain and {(gain < 0).sum()} lose.",
    ]
    refused = command("run", "-c", "strategy=local", "--with-local")
    assert "--with-local is for a new run of another method than local." in refused.stderr


def press_ctrl_c_in(hook, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.RunProgress, hook, press)


def run_of(settings, folder):
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return command("run", *options, "--output-dir", folder)


def test_an_interrupted_run_prints_the_command_that_continues_it(small, tmp_path, monkeypatch):
    press_ctrl_c_in("round_finished", monkeypatch)
    result = run_of({**small, "num-server-rounds": 2}, tmp_path / "run")
    assert result.exit_code == 130
    assert result.stderr == (
        f"Stopped after round 1 of 2. Continue with: fedkd run --resume {tmp_path / 'run'}\n"
    )
    monkeypatch.undo()
    assert command("run", "--resume", tmp_path / "run").exit_code == 0
    assert len(fedkd_flwr.load_run(tmp_path / "run").rounds) == 2


def test_a_run_interrupted_in_its_first_round_leaves_nothing(small, tmp_path, monkeypatch):
    press_ctrl_c_in("clients_answered", monkeypatch)
    result = run_of(small, tmp_path / "run")
    assert result.exit_code == 130
    assert result.stderr == (
        "Stopped before the end of the first round; there is nothing to continue.\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_clients_are_counted_as_they_answer(small, tmp_path, cohort):
    told = []

    class Answers(Observer):
        def clients_answered(self, *answered):
            told.append(answered)

    values = {**small, "models": "mlp", "num-server-rounds": 2, "cohort": cohort}
    configuration = resolve_output(fedkd_flwr.config.read_config(values), tmp_path)
    find_engine("in-process")(configuration, Answers())
    clients = small["num-clients"]
    trained = [(done, total) for kind, done, total in told if kind == "train"]
    # Two rounds, and the last distillation.
    assert trained.count((clients, clients)) == 3
    if cohort == "off":
        assert trained == 3 * [(n, clients) for n in range(1, clients + 1)]
