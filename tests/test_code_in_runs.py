"""Somebody else's run directory: code that its config names is not imported unasked."""

import shutil
import sys

import pytest
from conftest import SMALL
from helpers import change_json
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app, options
from fedkd_flwr.plots import plot_partition
from fedkd_flwr.report import write_report
from fedkd_flwr.runs import CodeNotNamedError, DamagedRunError, names_of_code

EVIL = "peer.evil:x"
"""Code in the folder of the run, which writes a file where it is imported."""

NAMING = {
    "strategy": EVIL,
    "dataset": EVIL,
    "public-dataset": EVIL,
    "models": f"mlp,{EVIL}",
    "partition": EVIL,
    "fml.shared-model": EVIL,
    "own-settings": f"mine.network = '{EVIL}'",
}
"""Settings that name code, by the key that does."""

READERS = {
    "report": ["report", "{run}", "-o", "{out}/report.html"],
    "figures": ["compare", "{run}", "--figures", "{out}"],
    "cross": ["cross", "{run}"],
    "genotypes": ["genotypes", "{run}"],
    "resume": ["run", "--resume", "{run}", "-c", "num-server-rounds=3"],
}
"""Command lines that rebuild a part of a run."""

TABLES = {
    "compare": ["compare", "{run}"],
    "rank": ["rank", "{run}"],
    "across": ["compare", "--across", "{run}", "{out}"],
}
"""Command lines that read tables, for which names are words."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    settings = {**SMALL, "strategy": "local", "models": "mlp", "num-server-rounds": 1}
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("own") / "run")


@pytest.fixture
def peer(finished, tmp_path, monkeypatch):
    """A copy of the run; code beside it writes the file ``ran`` where it is imported."""
    folder = tmp_path / "peer"
    shutil.copytree(finished.path, folder)
    (folder / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\ndef x(*_): raise OSError"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "peer"]:
        del sys.modules[name]


def naming(run, **settings):
    """Name code in the config of a run; return its path."""
    change_json(run / "config.json", config=settings)
    return run


def typed(line, run, *more):
    """Type a command line; return its result."""
    words = [word.format(run=run, out=run.parent / "out") for word in line]
    return CliRunner().invoke(app, [*words, *more])


@pytest.mark.parametrize("key", NAMING)
@pytest.mark.parametrize("command", READERS)
def test_a_command_refuses_code_that_the_user_has_not_named(command, key, peer, tmp_path):
    result = typed(READERS[command], naming(peer, **{key: NAMING[key]}))
    assert result.exit_code == 1, result.output
    # Genotypes are refused first where a run has no architectures.
    assert command == "genotypes" or "--allow-code peer" in result.output
    assert not (tmp_path / "ran").exists()
    assert "peer.evil" not in sys.modules


@pytest.mark.parametrize("command", TABLES)
def test_a_table_takes_names_for_words(command, peer, tmp_path):
    typed(TABLES[command], naming(peer, **{k: v for k, v in NAMING.items() if k != "own-settings"}))
    assert not (tmp_path / "ran").exists()


def test_code_that_the_user_names_is_imported(peer, tmp_path):
    result = typed(READERS["cross"], naming(peer, models=EVIL), "--allow-code", "peer")
    assert "--allow-code" not in result.output
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("given", ["other", "peer.evi", "peer.evil:y", "pee"])
def test_another_name_does_not_allow_it(given, peer, tmp_path):
    result = typed(READERS["cross"], naming(peer, models=EVIL), "--allow-code", given)
    assert "--allow-code peer" in result.output
    assert not (tmp_path / "ran").exists()


PYTHON = {
    "resume": lambda path, **given: fedkd_flwr.resume(path, num_server_rounds=2, **given),
    "cross": fedkd_flwr.cross,
    "client_data": lambda path, **given: fedkd_flwr.client_data(
        fedkd_flwr.load_run(path, **given), 0
    ),
    "plot_partition": lambda path, **given: plot_partition(fedkd_flwr.load_run(path, **given)),
    "report": lambda path, **given: write_report(
        fedkd_flwr.compare(path, **given), path.parent / "report.html"
    ),
}


@pytest.mark.parametrize("function", PYTHON)
def test_python_refuses_until_the_code_is_named(function, peer, tmp_path):
    naming(peer, models=EVIL, dataset=EVIL)
    with pytest.raises(CodeNotNamedError, match=r"dataset = peer.evil:x.*allow_code=\['peer'\]"):
        PYTHON[function](peer)
    assert not (tmp_path / "ran").exists()
    try:
        PYTHON[function](peer, allow_code="peer.evil")
    except CodeNotNamedError:
        raise
    except Exception:  # what the code itself leads to
        pass
    assert (tmp_path / "ran").exists()


def test_what_is_named_in_the_call_itself_needs_no_second_name(small, tmp_path):
    """Runs on an own network: begun, compared and continued by whoever names it."""
    own = {**small, "strategy": "local", "models": "examples.own_model:TinyNet"}
    run = fedkd_flwr.run(own, output_dir=tmp_path / "run", num_server_rounds=1)
    assert fedkd_flwr.cross(run).accuracies.shape == (4, 4)
    with pytest.raises(CodeNotNamedError, match="--allow-code examples"):
        fedkd_flwr.resume(run.path, num_server_rounds=2)
    changes = {"num_server_rounds": 2, "models": "examples.own_model:TinyNet"}
    assert len(fedkd_flwr.resume(run.path, **changes).rounds) == 2
    resumed = fedkd_flwr.resume(run.path, num_server_rounds=3, allow_code="examples")
    assert len(resumed.rounds) == 3


def test_folders_and_data_sets_of_the_hub_are_no_code():
    config = {"dataset": "folder:images", "public-dataset": "hf:mnist", "output-dir": "a:b"}
    assert names_of_code({**config, "partition": "iid", "models": "object:net_1"}) == {}
    assert names_of_code({"partition": "hf:mnist"}) == {"hf:mnist": ["partition"]}
    assert names_of_code({"models": ["mlp", " a.b:c"]}) == {"a.b:c": ["models"]}


def test_modules_in_a_run_directory_are_not_found(peer, monkeypatch):
    """Else ``wandb.py`` there would stand in for a package that is not installed."""
    monkeypatch.setattr(sys, "path", [])
    for folder in (peer, peer / "checkpoint"):
        monkeypatch.chdir(folder)
        options.find_modules_here()
    assert sys.path == []
    monkeypatch.chdir(peer.parent)
    options.find_modules_here()
    assert sys.path == [str(peer.parent)]


def test_commands_that_read_runs_look_for_no_modules_here(peer, monkeypatch):
    monkeypatch.chdir(peer.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    typed(TABLES["compare"], peer)
    assert sys.path == before
    typed(TABLES["compare"], peer, "--allow-code", "peer")
    assert sys.path == [*before, str(peer.parent)]


def test_an_id_that_leads_elsewhere_is_refused(peer):
    change_json(peer / "config.json", id="/etc")
    with pytest.raises(DamagedRunError, match="its id is '/etc'"):
        fedkd_flwr.cross(peer)
