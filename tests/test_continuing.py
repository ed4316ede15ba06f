"""Continued runs: more rounds after the end, what may change, and what is refused."""

import errno

import numpy as np
import pytest
from helpers import SMALLEST_SUPERNET, change_json
from test_cli import command, refusal

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import InProcessGrid
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import RunDirectory, RunDirectoryError, load_run, provenance
from fedkd_flwr.runs.provenance import other_major_versions
from fedkd_flwr.server_app import check_run, serve
from strategies.core.method_record import Need

SAME = ["round", "accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"]


def settings_for(strategy, small):
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    settings = {**small, "models": "mlp" if one_model else "mlp,lenet"}
    if strategy == "fedkma":
        settings |= {**SMALLEST_SUPERNET, "max-samples": 150}
    if strategy == "fedkd":
        settings |= {"fedkd.energy-end": 0.95}  # what rises does so over the planned rounds
    return {**settings, "strategy": strategy, "momentum": 0.9}


def same_rounds(run, whole, ended=None, added=()):
    """Compare the rounds, but for columns to which the end of an earlier leg has added."""
    for column in SAME:
        pairs = zip(run.rounds["round"], run.rounds[column], whole.rounds[column], strict=True)
        differing = [r for r, here, there in pairs if here != there]
        assert differing == [ended] if column in added else not differing, column


@pytest.fixture
def local(small):
    """The quickest run there is."""
    return {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 1}


# ---- More rounds after the end ---------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", ["kt-pfl", "perfed-ckt", "persfl", "fedavg-ft", "fedkma", "fedkd"]
)
def test_an_extended_run_equals_a_longer_run(strategy, small, tmp_path):
    settings = settings_for(strategy, small)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole", num_server_rounds=3)
    fedkd_flwr.run(settings, output_dir=tmp_path / "run", num_server_rounds=2)
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    assert longer.finished
    # A stage 2, or a last distillation, has ended the first leg. It is no part of a longer run.
    added = {"persfl": SAME[1:], "kt-pfl": ["numbers_down"]}
    same_rounds(longer, whole, 2, added.get(strategy, ()))
    np.testing.assert_equal(longer.matrices, whole.matrices)
    losses = [run.clients[run.clients["round"] == 3]["loss"].tolist() for run in (longer, whole)]
    assert losses[0] == losses[1]
    assert longer.summary["rounds"] == 3
    assert longer.summary["last_round"] == whole.summary["last_round"]
    assert longer.config["num-server-rounds"] == 3
    assert [note["after_round"] for note in longer.description["continued"]] == [2]


def test_seconds_are_summed_over_continuations(local, tmp_path):
    fedkd_flwr.run(local, output_dir=tmp_path / "run", num_server_rounds=8)
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=9)
    phases = longer.rounds[["seconds_train", "seconds_server", "seconds_evaluate"]]
    # The first leg had eight of nine rounds.
    assert longer.summary["seconds"] >= phases.to_numpy().sum() - 0.01


# ---- flwr run with resume=true ---------------------------------------------------------


def served(settings, **changes):
    configuration = read_config({**settings, **changes})
    return serve(InProcessGrid(client_app, 4, configuration.flat()), configuration)


def test_flwr_run_adds_rounds_and_refuses_other_settings(local, tmp_path):
    settings = {**local, "output-dir": str(tmp_path / "run"), "state-dir": str(tmp_path / "state")}
    served(settings)
    with pytest.raises(ConfigError, match="with another learning-rate, seed; only"):
        served(settings, resume=True, **{"learning-rate": 0.1, "seed": 3, "num-server-rounds": 2})
    longer = served(settings, resume=True, **{"num-server-rounds": 2})
    whole = fedkd_flwr.run(local, output_dir=tmp_path / "whole", num_server_rounds=2)
    same_rounds(longer, whole)


def test_clients_without_memory_are_not_restarted_silently(local, tmp_path):
    settings = {**local, "output-dir": str(tmp_path / "run")}
    served(settings)
    with pytest.raises(RunDirectoryError, match=r"is not kept without a state-dir"):
        check_run(read_config({**settings, "resume": True, "num-server-rounds": 2}))


# ---- What may change -------------------------------------------------------------------


def test_the_command_line_prints_changes_and_continues(local, tmp_path):
    run = fedkd_flwr.run(local, output_dir=tmp_path / "run")
    changes = "-c", "num-server-rounds=2", "-c", "device=auto", "--save-models"
    result = command("run", "--resume", run.path, *changes)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if "continues" in line]
    for change in ("num-server-rounds 1 → 2", "device cpu → auto", "models-dir none → "):
        assert change in line
    assert load_run(run.path).config["num-server-rounds"] == 2
    assert len(list((run.path / "models").glob("*.safetensors"))) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-c", "learning-rate=0.5", "-c", "kt-pfl.rho=0.9"],
            "with another kt-pfl.rho, learning-rate; only",
        ),
        (
            ["-c", "num-server-rounds=1"],
            "num-server-rounds = 1 is less than the 2 rounds of the run",
        ),
        (["--output-dir", "elsewhere"], "output-dir must not change; move the directory"),
        (["-c", "state-dir=/nowhere"], "with another state-dir"),
        (["-c", "nope=1"], "no key nope"),
        ([], "finished run; to add rounds, type -c num-server-rounds=N with N above 2"),
    ],
)
def test_other_changes_are_refused_by_name(arguments, sentence, finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert sentence in refusal("run", "--resume", finished, *arguments)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Path of a finished run of two rounds that no test changes."""
    from conftest import SMALL

    settings = {**SMALL, "strategy": "local", "models": "mlp"}
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("finished") / "run").path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning-rate-schedule": "cosine"}, "schedule = cosine depends on the planned"),
        ({"strategy": "fedkd"}, "With fedkd.energy-end, the results of fedkd depend on the"),
        ({"strategy": "persfl", "patience": 1}, "With patience, the results of persfl depend"),
    ],
)
def test_rounds_cannot_be_added_to_methods_that_depend_on_their_number(
    changes, sentence, local, tmp_path
):
    run = fedkd_flwr.run({**local, **changes}, output_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=sentence):
        fedkd_flwr.resume(run.path, num_server_rounds=2)


# ---- Rounds that are evaluated as the last alone ---------------------------------------


def test_patience_does_not_count_a_round_that_is_no_longer_the_last(local, tmp_path):
    """Nothing is learned: round 2 is the best, and round 4 the one that is waited for."""
    settings = {**local, "learning-rate": 1e-9, "patience": 1, "evaluate-every": 2}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole", num_server_rounds=6)
    fedkd_flwr.run(settings, output_dir=tmp_path / "run", num_server_rounds=3)
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=6)
    assert list(longer.rounds["round"]) == list(whole.rounds["round"]) == [1, 2, 3, 4, 5]
    assert longer.summary["last_round"] == whole.summary["last_round"]


def test_the_round_chosen_on_validation_data_is_that_of_a_longer_run(local, tmp_path):
    settings = {**local, "learning-rate": 1e-9, "evaluate-every": 3}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole", num_server_rounds=2)
    fedkd_flwr.run(settings, output_dir=tmp_path / "run", num_server_rounds=1)
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    # Of equals it would be the first, which a run of two rounds does not evaluate.
    assert longer.summary["validation_round"] == whole.summary["validation_round"]


# ---- Runs that never completed a round -------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state-dir": "FILE/state"}, "The state-dir .* cannot be written: Not a directory"),
        ({"models-dir": "FILE/models"}, "The models-dir .* cannot be written: Not a directory"),
        ({"device": "cuda:77"}, "device = cuda:77 cannot be used here"),
        ({"learning-rate": 1e30}, "Round 1 has 0 valid replies"),
    ],
)
def test_a_run_that_never_completed_a_round_leaves_nothing(changes, sentence, local, tmp_path):
    (tmp_path / "file").write_text("")
    changes = {
        key: str(value).replace("FILE", str(tmp_path / "file")) if key.endswith("dir") else value
        for key, value in changes.items()
    }
    with pytest.raises((ConfigError, RuntimeError, OSError), match=sentence):
        fedkd_flwr.run({**local, **changes}, output_dir=tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()
    assert fedkd_flwr.run(local, output_dir=tmp_path / "deep" / "run").finished


def test_a_disk_full_in_the_first_round_says_how_to_go_on(small, tmp_path, monkeypatch):
    """With noise the run stays, so it cannot be started again."""
    noise = {"soft-predictions.clip-norm": 1.0, "soft-predictions.noise-multiplier": 1.0}
    small |= {"models": "mlp"}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_append", full)
        with pytest.raises(RunDirectoryError, match=r"No space left.*then start the run again"):
            fedkd_flwr.run(small, output_dir=tmp_path / "plain")
        for attempt in (
            lambda: fedkd_flwr.run({**small, **noise}, output_dir=tmp_path / "noised"),
            lambda: fedkd_flwr.resume(tmp_path / "noised"),
        ):
            with pytest.raises(RunDirectoryError, match=r"No space left.*then continue with"):
                attempt()
    assert not (tmp_path / "plain").exists()
    assert fedkd_flwr.resume(tmp_path / "noised").finished


def test_a_failed_run_removes_no_file_that_was_there_before(local, tmp_path):
    """They have names that runs use too, as in the folder of a W&B project."""
    names = ["data.csv", "models/global-000007.safetensors"]
    folders = ("checkpoint", "matrices", "tensorboard", "wandb", "mlflow")
    files = [tmp_path / "run" / name for name in (*names, *(f"{f}/mine" for f in folders))]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    before = set((tmp_path / "run").iterdir())
    with pytest.raises(RuntimeError, match="Round 1 has 0 valid replies"):
        fedkd_flwr.run({**local, "learning-rate": 1e30}, output_dir=tmp_path / "run")
    assert [file.read_text() for file in files] == [file.name for file in files]
    assert set((tmp_path / "run").iterdir()) == before


class OutOfOrderError(RuntimeError):
    """Stands for whatever ends an attempt before its first round is complete."""


def contents(folder):
    """Return all files below a folder, except the lock, which names the last process."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture
def settings(small):
    return {**small, "strategy": "kt-pfl", "models": "mlp", "num-server-rounds": 4}


def test_a_failed_attempt_to_continue_changes_nothing(settings, tmp_path, monkeypatch):
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    before = contents(run.path)

    def fails(*_, **__):
        raise OutOfOrderError

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "send_and_receive", fails)
        with pytest.raises(OutOfOrderError):
            fedkd_flwr.resume(run.path, num_server_rounds=5)
    assert contents(run.path) == before
    assert load_run(run.path).finished
    resumed = fedkd_flwr.resume(run.path, num_server_rounds=5)
    assert list(resumed.rounds["round"]) == [1, 2, 3, 4, 5]
    assert resumed.config["num-server-rounds"] == 5


@pytest.mark.parametrize("name", ["flwr", "torch", "fedkd-flwr"])
def test_another_major_version_is_refused_unless_it_is_intended(name, settings, tmp_path):
    run = fedkd_flwr.run({**settings, "num-server-rounds": 1}, output_dir=tmp_path / "run")
    of_project = {"project": {"version": "7.1.2"}}
    recorded = of_project if name == "fedkd-flwr" else {"versions": {name: "7.1.2"}}
    change_json(run.path / "config.json", **recorded)
    with pytest.raises(RunDirectoryError, match=rf"{name} 7.1.2 \(now .*--accept-changes"):
        fedkd_flwr.resume(run.path, num_server_rounds=2)
    assert fedkd_flwr.resume(run.path, num_server_rounds=2, accept_changes=True).finished
    # The last leg counts from now on.
    assert fedkd_flwr.resume(run.path, num_server_rounds=3).finished


def test_which_number_is_the_major_version(monkeypatch):
    monkeypatch.setattr(provenance, "version", {"flwr": "1.41.0", "torch": "2.12.0+cpu"}.get)
    monkeypatch.setattr(provenance, "__version__", "0.2.0")
    same = {"project": {"version": "0.2.7"}, "versions": {"flwr": "1.9", "torch": "2.0.1"}}
    assert other_major_versions(same) == []
    assert other_major_versions({}) == []
    other = {"project": {"version": "0.1.0"}, "versions": {"flwr": "2.0", "torch": "2.0.1"}}
    assert other_major_versions(other) == ["fedkd-flwr 0.1.0 (now 0.2.0)", "flwr 2.0 (now 1.41.0)"]
    assert other_major_versions({**other, "continued": [same]}) == []


def test_a_run_from_elsewhere_does_not_say_where_models_are_written(settings, tmp_path):
    """Its models-dir may be a folder of this machine with models in use."""
    own = {**settings, "num-server-rounds": 1, "models-dir": str(tmp_path / "in use")}
    run = fedkd_flwr.run(own, output_dir=tmp_path / "run")
    assert fedkd_flwr.resume(run.path, num_server_rounds=2).finished
    moved = run.path.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"has been moved.*-c models-dir=FOLDER"):
        fedkd_flwr.resume(moved, num_server_rounds=3)
    resumed = fedkd_flwr.resume(moved, num_server_rounds=3, models_dir=str(tmp_path / "models"))
    assert resumed.finished
    assert (tmp_path / "models" / "0.safetensors").exists()
