"""PersFL's second stage in runs that are interrupted, stopped or extended."""

import pandas as pd
import pytest

import fedkd_flwr
from fedkd_flwr.clients.persfl import PersFLClient
from fedkd_flwr.config import ConfigError
from strategies.core.replies import TooFewRepliesError
from strategies.persfl import PAIRS

GRID = {"persfl.imitation": "0,0.5,1", "persfl.temperatures": "1,5"}


@pytest.fixture
def small(small):
    return {**small, **GRID, "strategy": "persfl", "models": "mlp", "momentum": 0.0}


def cut_run(settings, folder, monkeypatch, cut_at):
    """Start a run, and simulate a power failure after some pairs of its second stage."""
    original, tried = PersFLClient.distilled, []

    def distilled(*arguments):
        if len(tried) == cut_at:
            raise KeyboardInterrupt
        tried.append(arguments)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PersFLClient, "distilled", distilled)
        with pytest.raises(KeyboardInterrupt):
            fedkd_flwr.run(settings, output_dir=folder)


def assert_same(run, whole):
    pd.testing.assert_frame_equal(run.table(PAIRS), whole.table(PAIRS))
    for column in ("loss", "accuracy", "lambda", "temperature", "teacher_round"):
        assert list(run.clients[column].dropna()) == list(whole.clients[column].dropna())


def test_a_run_interrupted_in_stage_2_repeats_it(small, tmp_path, monkeypatch):
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    cut_run(small, tmp_path / "cut", monkeypatch, cut_at=7)
    assert_same(fedkd_flwr.resume(tmp_path / "cut"), whole)


# ---- What stage 2 leaves where it fails ------------------------------------------------


def failing_at(monkeypatch, *clients):
    original = PersFLClient.distilled

    def distilled(client, logits, imitation, temperature, server_round):
        if client.partition_id in clients:
            raise RuntimeError("out of memory")
        return original(client, logits, imitation, temperature, server_round)

    monkeypatch.setattr(PersFLClient, "distilled", distilled)


def test_a_run_stopped_by_too_few_replies_in_stage_2_can_continue(small, tmp_path, monkeypatch):
    small |= {"min-replies": 3, "on-client-error": "drop"}
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        failing_at(patch, 0, 2)
        reason = r"2 valid replies and min-replies is 3 \(client 0: .*out of memory.*; client 2"
        with pytest.raises(TooFewRepliesError, match=reason):
            fedkd_flwr.run(small, output_dir=tmp_path / "cut")
    assert_same(fedkd_flwr.resume(tmp_path / "cut"), whole)


def test_an_extended_run_discards_its_personalized_models(small, tmp_path, monkeypatch):
    """A client that fails in the new second stage is evaluated with its teacher."""
    small |= {"on-client-error": "drop"}
    fedkd_flwr.run(small, output_dir=tmp_path / "run")
    failing_at(monkeypatch, 1)
    grown = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    whole = fedkd_flwr.run({**small, "num-server-rounds": 3}, output_dir=tmp_path / "whole")
    rows = [run.clients[run.clients["round"] == 3] for run in (grown, whole)]
    assert list(rows[0]["accuracy"]) == list(rows[1]["accuracy"])
    assert rows[0]["lambda"].isna().tolist() == [False, True, False, False]


def test_more_rounds_are_refused_where_the_last_one_gave_candidates_to_all(small, tmp_path):
    """An extended run would keep them; with the last teacher, or all clients, there are none."""
    sampled = {**small, "fraction-train": 0.5, "num-server-rounds": 1}
    fedkd_flwr.run(sampled, output_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="With fraction-train, the results of persfl depend"):
        fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    sampled |= {"persfl.teacher": "last"}
    fedkd_flwr.run(sampled, output_dir=tmp_path / "last")
    grown = fedkd_flwr.resume(tmp_path / "last", num_server_rounds=2)
    whole = fedkd_flwr.run({**sampled, "num-server-rounds": 2}, output_dir=tmp_path / "whole")
    rows = [run.clients[run.clients["round"] == 2] for run in (grown, whole)]
    assert list(rows[0]["loss"]) == list(rows[1]["loss"])
