"""Damaged run directories: one sentence with the file and what to do, and no traceback."""

import itertools
import os
import shutil

import numpy as np
import pytest
from helpers import change_json

import fedkd_flwr
from fedkd_flwr.memory.folder import FORGOTTEN
from fedkd_flwr.runs import DamagedRunError, RunDirectoryError, load_run

TEXTS = ("config.json", "summary.json", "rounds.jsonl", "clients.jsonl", "evaluations.jsonl")
CHECKPOINT = "checkpoint/server.safetensors"


def half(path):
    os.truncate(path, path.stat().st_size // 2)


def garbage(path):
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def empty(path):
    path.write_bytes(b"")


def latin_1(path):
    path.write_bytes("{'é': 'ü'}\n".encode("latin-1") + path.read_bytes())


def list_of_numbers(path):
    path.write_text("[1, 2]\n[3]\n")


def number(path):
    path.write_text("17\n17\n")


def object_of_something_else(path):
    path.write_text('{"config": {"strategy": 3}, "rounds": "two"}\n')


def folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (half, garbage, empty, latin_1, list_of_numbers, number, object_of_something_else, folder)


MATRIX_FILES = ("matrices/coefficients.npy", "matrices/coefficients-starts.npy")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of KT-pFL, which has a matrix, that no test changes."""
    from conftest import SMALL

    settings = {**SMALL, "strategy": "kt-pfl", "models": "mlp"}
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("good") / "run").path


@pytest.fixture
def run(finished, tmp_path):
    """The path of a run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def refusal(function, *arguments, **options):
    with pytest.raises(DamagedRunError) as refused:
        function(*arguments, **options)
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        # Half a table of evaluations may still have lines of the last round.
        *(
            pair
            for pair in itertools.product(TEXTS, DAMAGES)
            if pair != ("evaluations.jsonl", half)
        ),
        *itertools.product(MATRIX_FILES, [half, garbage, empty, folder]),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_damaged_file_is_named_with_a_remedy(name, damage, run):
    damage(run / name)
    sentence = refusal(load_run, run)
    assert sentence.startswith(f"{run / name} is damaged (")
    assert "restore it" in sentence or "remove it" in sentence
    assert refusal(fedkd_flwr.resume, run, num_server_rounds=3) == sentence


def test_a_table_of_something_else_is_named_with_a_remedy(run):
    (run / "patients.jsonl").write_text('{"id": 1}\n')
    sentence = refusal(load_run, run)
    assert sentence.startswith(f"{run / 'patients.jsonl'} is damaged (")
    assert "move it elsewhere to read the run without this table" in sentence


@pytest.mark.parametrize(
    "changes", [{"started": "yesterday"}, {"started": 5}, {"continued": [{"after_round": 1}]}]
)
def test_a_time_that_cannot_be_read_is_damage(changes, run):
    change_json(run / "config.json", **changes)
    assert "a time in it cannot be read" in refusal(load_run, run)


@pytest.mark.parametrize("damage", [half, garbage, empty, folder], ids=lambda d: d.__name__)
def test_a_damaged_checkpoint_cannot_be_continued(damage, run):
    damage(run / CHECKPOINT)
    sentence = refusal(fedkd_flwr.resume, run, num_server_rounds=3)
    assert sentence.startswith(f"{run / CHECKPOINT} is damaged (")
    assert f"remove {run} and run it again" in sentence
    assert load_run(run).finished


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rounds.jsonl", "it holds 0 of 2 rounds"),
        ("clients.jsonl", "it has no line of round 1"),
        ("evaluations.jsonl", "it has no line of round 2"),
    ],
)
def test_a_finished_run_without_its_lines_is_damaged(name, sentence, run):
    (run / name).unlink()
    assert sentence in refusal(load_run, run)


def test_without_config_a_directory_is_no_run_and_without_summary_it_is_unfinished(run):
    (run / "summary.json").unlink()
    assert not load_run(run).finished
    assert fedkd_flwr.resume(run).finished
    (run / "config.json").unlink()
    with pytest.raises(RunDirectoryError, match="holds no run"):
        load_run(run)


def test_a_run_without_matrices_can_be_read_but_not_continued(run):
    (run / "matrices/coefficients.npy").unlink()
    assert load_run(run).matrices == {}
    sentence = refusal(fedkd_flwr.resume, run, num_server_rounds=3)
    assert sentence.startswith(f"{run / 'matrices/coefficients.npy'} is damaged (")
    assert "a part of the first 2 rounds is missing" in sentence


@pytest.mark.parametrize("name", MATRIX_FILES)
def test_a_run_can_be_read_after_the_remedy_for_a_damaged_matrix(name, run):
    empty(run / name)
    remedy = "remove coefficients.npy and coefficients-starts.npy to read the run without"
    assert remedy in refusal(load_run, run)
    for file in MATRIX_FILES:
        (run / file).unlink()
    assert load_run(run).matrices == {}


def test_matrices_of_version_0_1_are_not_read(run, logged):
    np.savez(run / "matrices.npz", coefficients=np.zeros((2, 4, 4)))
    assert load_run(run).matrices["coefficients"].any()
    assert logged() == [f"{run}: matrices.npz is a format of version 0.1 and is not read."]
    with pytest.raises(RunDirectoryError, match="continue with the version of fedkd-flwr"):
        fedkd_flwr.resume(run, num_server_rounds=3)


def test_a_stopped_run_without_lines_or_checkpoint_cannot_be_continued(run):
    """What a crash leaves may go on; what lacks rounds that were complete may not."""
    (run / "summary.json").unlink()
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(lines[0] + lines[1][:40])
    assert len(load_run(run).rounds) == 1
    assert "a part of the first 2 rounds is missing" in refusal(fedkd_flwr.resume, run)
    (run / "rounds.jsonl").write_text(lines[1] + lines[0])
    assert "rounds are missing or out of order" in refusal(load_run, run)
    (run / "rounds.jsonl").write_text("".join(lines))
    (run / CHECKPOINT).unlink()
    assert f"{run / CHECKPOINT} is damaged (it is missing)" in refusal(fedkd_flwr.resume, run)
    assert len(load_run(run).rounds) == 2


def test_an_unknown_setting_is_reported_with_its_file(run):
    change_json(run / "config.json", config={"magic": 1})
    assert len(load_run(run).rounds) == 2
    sentence = refusal(fedkd_flwr.resume, run, num_server_rounds=3)
    assert sentence.startswith(f"{run / 'config.json'} holds no valid run config: ")
    assert "no key magic" in sentence


def test_a_run_with_a_damaged_or_lost_memory_cannot_be_continued(run):
    memories = sorted((run / "checkpoint" / "clients").rglob("*.safetensors"))
    half(memories[0])
    sentence = refusal(fedkd_flwr.resume, run, num_server_rounds=3)
    assert sentence.startswith(f"{memories[0]} is damaged (")
    # Older memories would not fit the server's state.
    for memory in memories:
        memory.rename(memory.with_name("round-000001.safetensors"))
    with pytest.raises(RunDirectoryError, match="memory of round 2 is not found in the state-dir"):
        fedkd_flwr.resume(run, num_server_rounds=3)
    assert load_run(run).finished
    (run / CHECKPOINT).unlink()
    with pytest.raises(RunDirectoryError, match="finished run without its checkpoint"):
        fedkd_flwr.resume(run, num_server_rounds=3)


def test_an_evicted_memory_is_reported_before_a_run_is_continued(run):
    own = run / "checkpoint" / "clients" / "1" / load_run(run).run_id
    own.mkdir(parents=True)
    (own / FORGOTTEN).touch()
    with pytest.raises(RunDirectoryError, match=f"{run} cannot be continued: this node has remov"):
        fedkd_flwr.resume(run, num_server_rounds=3)
    assert load_run(run).finished


@pytest.mark.parametrize("path", ["a\0b", "~nobody-has-this-name/run", "x" * 5000])
def test_an_invalid_path_is_refused(path, small):
    with pytest.raises((RunDirectoryError, fedkd_flwr.ConfigError)) as refused:
        load_run(path)
    assert "\n" not in str(refused.value)
    for start in (fedkd_flwr.resume, fedkd_flwr.compare, fedkd_flwr.run_sweep):
        with pytest.raises((RunDirectoryError, fedkd_flwr.ConfigError)):
            start(path)
    with pytest.raises((RunDirectoryError, fedkd_flwr.ConfigError)):
        fedkd_flwr.run(small, output_dir=path)
