"""Stopped runs: what is on disk goes on to the numbers of an uninterrupted run."""

import json

import numpy as np
import pytest
import torch
from helpers import client_of, most_of_them_slow

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.request import Request
from fedkd_flwr.clients.serving import ServingClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import resolve_output
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models import model_pool
from fedkd_flwr.runs import RunDirectory, RunDirectoryError, directory
from fedkd_flwr.runs.arrays import append_array
from fedkd_flwr.server_app import serve
from strategies.core.method_record import Need

SAME = ["round", "accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"]


class PowerCut(BaseException):
    """Ends a run the hard way: nothing may catch it."""


def settings_for(strategy, small):
    """Return a run in which one client in four is not asked in a round."""
    one_model = Need.ONE_ARCHITECTURE in METHODS[strategy].record.needs
    supernet = {
        "supernet-channels": 2,
        "supernet-cells": 3,
        "supernet-nodes": 1,
        "supernet-stem-stride": 2,
        "supernet-operations": "none,skip_connect,sep_conv_3x3",
    }
    models = "darts" if "fedkma" in strategy else "mlp" if one_model else "mlp,lenet"
    if models == "darts":
        supernet["max-samples"] = 150
    changes = {"num-server-rounds": 4, "fraction-train": 0.75, "momentum": 0.9}
    return {**small, **supernet, **changes, "strategy": strategy, "models": models}


def interrupted(settings, folder, at_round, at_client):
    """Run until one client is about to answer in one round, then cut the power."""

    def app(message, context):
        config = message.content.config_records["config"]
        is_train = message.metadata.message_type == "train"
        here = is_train and config["server-round"] == at_round
        if here and context.node_config["partition-id"] >= at_client:
            raise PowerCut
        return client_app(message, context)

    configuration = resolve_output(read_config({**settings, "output-dir": str(folder)}), folder)
    grid = InProcessGrid(app, 4, configuration.flat())
    with pytest.raises(PowerCut):
        serve(grid, configuration)


def stopped_and_resumed(settings, folder, last_round):
    """Run up to a round, as if the user then pressed Ctrl-C, and resume."""

    def stop(row):
        if row["round"] == last_round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=folder, on_round=stop)
    return fedkd_flwr.resume(folder)


@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_a_resumed_run_equals_an_uninterrupted_one(strategy, small, tmp_path):
    settings = {**settings_for(strategy, small), "num-server-rounds": 3}
    model_pool.clear()
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    interrupted(settings, tmp_path / "cut", at_round=3, at_client=2)
    model_pool.clear()
    assert len((tmp_path / "cut" / "rounds.jsonl").read_text().splitlines()) == 2
    resumed = fedkd_flwr.resume(tmp_path / "cut")
    assert resumed.finished
    for column in SAME:
        assert list(resumed.rounds[column]) == list(whole.rounds[column])
    for name, matrix in whole.matrices.items():
        np.testing.assert_array_equal(resumed.matrices[name], matrix)
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


def test_clients_not_yet_asked_by_a_resumed_run_keep_their_memory(small, tmp_path):
    """One of four is asked a round, and nobody is evaluated before the end."""
    changes = {"num-server-rounds": 6, "fraction-train": 0.25, "evaluate-every": 6}
    settings = {**small, **changes, "strategy": "local", "models": "mlp"}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")

    resumed = stopped_and_resumed(settings, tmp_path / "cut", last_round=3)
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_a_client_that_fails_in_its_evaluation_forgets_the_round(
    cohort, small, tmp_path, monkeypatch
):
    """In memory and on disk alike, so that a resumed run has the same numbers."""
    original = ServingClient._count

    def count(self, server_round):
        if (server_round, self.partition_id) == (2, 0):
            raise MemoryError
        return original(self, server_round)

    monkeypatch.setattr(ServingClient, "_count", count)
    settings = {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 4}
    settings |= {"cohort": cohort, "min-replies": 1}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")

    resumed = stopped_and_resumed(settings, tmp_path / "cut", last_round=2)
    assert list(whole.rounds["failures"]) == [0, 1, 0, 0]
    assert list(resumed.clients["loss"].dropna()) == list(whole.clients["loss"].dropna())


def test_a_node_repeats_a_round_from_its_memory_of_the_round_before(small, tmp_path):
    flat = {**small, "strategy": "local", "models": "mlp", "state-dir": str(tmp_path)}
    context = client_of(flat).context

    def loss_of(server_round):
        request = Request(server_round=server_round, run_id="a1", starts=(0,))
        return client_of(flat, context=context).serve(request).metrics["train-loss"]

    first, second, again = map(loss_of, (1, 2, 2))
    assert first != second == again


def test_a_run_interrupted_in_its_first_round_starts_over(small, tmp_path):
    settings = settings_for("kt-pfl", small)
    interrupted(settings, tmp_path / "cut", at_round=1, at_client=2)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    resumed = fedkd_flwr.resume(tmp_path / "cut")
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])


def test_a_moved_run_can_be_resumed(small, tmp_path):
    settings = settings_for("kt-pfl", small)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    interrupted(settings, tmp_path / "cut", at_round=3, at_client=0)
    moved = (tmp_path / "cut").rename(tmp_path / "moved")
    resumed = fedkd_flwr.resume(moved)
    assert resumed.path == moved
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])


def test_half_written_lines_and_rounds_without_a_checkpoint_are_taken_back(small, tmp_path):
    """A crash between the files: the round is repeated, no line is lost or doubled."""
    settings = settings_for("kt-pfl", small)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    cut = tmp_path / "cut"
    interrupted(settings, cut, at_round=3, at_client=0)
    row = json.loads((cut / "rounds.jsonl").read_text().splitlines()[-1])
    with (cut / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({**row, "round": 3}) + "\n" + '{"round": 4, "accu')
    (cut / "checkpoint" / ".server.safetensors.tmp").write_bytes(b"half a checkpoint")
    append_array(cut / "matrices" / "coefficients.npy", np.zeros((4, 4)))
    resumed = fedkd_flwr.resume(cut)
    assert list(resumed.rounds["round"]) == [1, 2, 3, 4]
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])
    np.testing.assert_array_equal(resumed.matrices["coefficients"], whole.matrices["coefficients"])


def test_a_finished_or_missing_run_cannot_be_resumed(small, tmp_path):
    finished = fedkd_flwr.run({**small, "strategy": "local", "models": "mlp"},
                              output_dir=tmp_path / "run")  # fmt: skip
    with pytest.raises(RunDirectoryError, match="finished run; to add rounds"):
        fedkd_flwr.resume(finished.path)
    with pytest.raises(RunDirectoryError, match="holds no run"):
        fedkd_flwr.resume(tmp_path / "nowhere")


def test_a_full_disk_names_the_command_that_continues(small, tmp_path, monkeypatch):
    settings = settings_for("kt-pfl", small)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    append = RunDirectory._append

    def refuse(directory, name, rows):
        if name == "rounds.jsonl" and rows[0]["round"] == 3:
            raise OSError(28, "No space left on device")
        append(directory, name, rows)

    monkeypatch.setattr(RunDirectory, "_append", refuse)
    with pytest.raises(RunDirectoryError, match=r"No space left on device.*--resume"):
        fedkd_flwr.run(settings, output_dir=tmp_path / "cut")
    monkeypatch.undo()
    resumed = fedkd_flwr.resume(tmp_path / "cut")
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])


def test_a_disk_full_in_the_last_round_is_reported_and_the_run_can_be_finished(
    small, tmp_path, monkeypatch
):
    settings = settings_for("local", small)
    write_json = directory.write_json

    def refuse(file, content):
        if file.name == "summary.json":
            raise OSError(28, "No space left on device")
        write_json(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_json", refuse)
        with pytest.raises(RunDirectoryError, match="cannot be written: No space left on device"):
            fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert fedkd_flwr.resume(tmp_path / "run").finished


def test_another_method_with_settings_of_its_own_is_refused(small, tmp_path):
    fedkd_flwr.run({**small, "strategy": "local", "models": "mlp"}, output_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"with another .*strategy; only"):
        fedkd_flwr.resume(tmp_path / "run", strategy="examples.own_method:nearest")


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedkma"])
def test_exported_models_give_the_accuracy_on_their_cards(strategy, small, tmp_path):
    settings = {**settings_for(strategy, small), "num-server-rounds": 1}
    settings["models-dir"] = str(tmp_path / "models")
    finished = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    for n in range(4):
        model = fedkd_flwr.load_model(tmp_path / "models" / f"{n}.safetensors")
        card = json.loads((tmp_path / "models" / f"{n}.json").read_text())
        data = fedkd_flwr.client_data(finished, n)
        with torch.inference_mode():
            correct = (model(data.test_images).argmax(dim=1) == data.test_labels).sum()
        assert int(correct) == card["metrics"]["correct"]
        row = finished.clients.query(f"partition_id == {n} and round == 1").iloc[0]
        assert row["correct"] == card["metrics"]["correct"]
        assert card["model"] == row["model"]
