"""An interrupted second stage of PersFL does not repeat the pairs it has tried."""

import errno

import pandas as pd
import pytest
import torch
from helpers import client_of

import fedkd_flwr
from fedkd_flwr import runs
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.clients.persfl import PersFLClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import resolve_output
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.engines.starting import resumed
from fedkd_flwr.memory import PROGRESS
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.server_app import serve
from strategies.core.replies import TooFewRepliesError
from strategies.persfl import PAIRS

GRID = {"persfl.imitation": "0,0.5,1", "persfl.temperatures": "1,5"}
PAIRS_TRIED = 5
"""The pairs of `GRID`."""


@pytest.fixture
def small(small):
    return {**small, **GRID, "strategy": "persfl", "models": "mlp", "momentum": 0.0}


class Attempts:
    """Counts the pairs that clients try, and simulates a power failure at one of them."""

    def __init__(self, monkeypatch, cut_at=None):
        self.tried = []
        original = PersFLClient.distilled

        def distilled(client, logits, imitation, temperature, server_round):
            if len(self.tried) == cut_at:
                raise KeyboardInterrupt
            self.tried.append((client.partition_id, imitation, temperature))
            return original(client, logits, imitation, temperature, server_round)

        monkeypatch.setattr(PersFLClient, "distilled", distilled)


def cut_run(settings, folder, monkeypatch, cut_at):
    with monkeypatch.context() as patch:
        Attempts(patch, cut_at)
        with pytest.raises(KeyboardInterrupt):
            fedkd_flwr.run(settings, output_dir=folder)


def resumed_run(folder, monkeypatch):
    """Resume a run; return it and the pairs that were tried."""
    with monkeypatch.context() as patch:
        attempts = Attempts(patch)
        return fedkd_flwr.resume(folder), attempts.tried


def assert_same(run, whole):
    pd.testing.assert_frame_equal(run.table(PAIRS), whole.table(PAIRS))
    for column in ("loss", "accuracy", "lambda", "temperature", "teacher_round"):
        assert list(run.clients[column].dropna()) == list(whole.clients[column].dropna())


@pytest.mark.parametrize(
    ("models", "cohort", "cut_at", "left"),
    [
        ("mlp", "off", 0, 20),
        ("mlp", "off", 7, 13),  # in the middle of the second client's
        ("mlp", "on", 8, 15),  # side by side: the first of four clients notes its second pair
        # It draws what it drops; two clients.
        pytest.param("vgg11", "off", 2, 8, marks=pytest.mark.slow),
    ],
)
def test_a_run_interrupted_in_stage_2_continues_after_the_last_pair(
    models, cohort, cut_at, left, small, tmp_path, monkeypatch
):
    small |= {"models": models, "cohort": cohort}
    if models == "vgg11":
        small |= {"num-clients": 2, "max-samples": 150, "num-server-rounds": 1}
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    cut_run(small, tmp_path / "cut", monkeypatch, cut_at)
    finished, tried = resumed_run(tmp_path / "cut", monkeypatch)
    assert len(tried) == left
    assert_same(finished, whole)
    assert not list((tmp_path / "cut").rglob(PROGRESS))


def test_a_node_interrupted_in_stage_2_continues_too(small, tmp_path, monkeypatch):
    """Its memory is in its context and in its own folder."""
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    configuration = resolve_output(
        read_config({**small, "output-dir": str(tmp_path / "cut")}), tmp_path / "cut"
    )
    with monkeypatch.context() as patch:
        Attempts(patch, cut_at=7)
        with pytest.raises(KeyboardInterrupt):
            serve(InProcessGrid(client_app, 4, configuration.flat()), configuration)
    assert len(list((tmp_path / "cut").rglob(PROGRESS))) == 2
    with monkeypatch.context() as patch:
        attempts = Attempts(patch)
        configuration = resumed(tmp_path / "cut")
        finished = serve(InProcessGrid(client_app, 4, configuration.flat()), configuration)
    # The first client was done, and the second had two pairs.
    assert [[n for n, *_ in attempts.tried].count(n) for n in range(4)] == [0, 3, 5, 5]
    assert_same(finished, whole)
    assert not list((tmp_path / "cut").rglob(PROGRESS))


def test_a_full_disk_at_the_end_of_the_round_loses_no_pair(small, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    small |= {"num-server-rounds": 1}
    with monkeypatch.context() as patch:
        patch.setattr(runs.directory, "write_checkpoint", full)
        with pytest.raises(RunDirectoryError, match="No space left"):
            fedkd_flwr.run(small, output_dir=tmp_path / "run")
    assert resumed_run(tmp_path / "run", monkeypatch)[1] == []


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
    finished, tried = resumed_run(tmp_path / "cut", monkeypatch)
    assert {n for n, *_ in tried} == {0, 2}
    assert_same(finished, whole)


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


# ---- The file of the progress ----------------------------------------------------------


def noting_client(small, folder):
    """Return a client with a teacher that saves its progress in a folder, if there is one."""
    client = client_of(small, **{"state-dir": str(folder) if folder else ""})
    client.session.request = Request(server_round=2, run_id="ab12")
    client.consider_teacher(0)
    return client


def personalized(client, monkeypatch):
    with monkeypatch.context() as patch:
        attempts = Attempts(patch)
        counts = client.personalize(server_round=2)
    return counts.tolist(), len(attempts.tried)


def cut_short(client, monkeypatch):
    with monkeypatch.context() as patch:
        Attempts(patch, cut_at=3)
        with pytest.raises(KeyboardInterrupt):
            client.personalize(server_round=2)


def test_the_progress_with_another_teacher_is_ignored(small, tmp_path, monkeypatch):
    cut_short(noting_client(small, tmp_path), monkeypatch)
    small |= {"persfl.teacher": "last"}
    counts = []
    for folder in (None, tmp_path):
        client = noting_client(small, folder)
        with torch.no_grad():
            for parameter in client.model.parameters():
                parameter.mul_(10)
        client.consider_teacher(0)
        result, tried = personalized(client, monkeypatch)
        assert tried == PAIRS_TRIED
        counts.append(result)
    assert counts[0] == counts[1]


def test_damaged_progress_is_ignored_with_a_warning(small, tmp_path, monkeypatch, logged):
    whole = personalized(noting_client(small, None), monkeypatch)
    cut_short(noting_client(small, tmp_path), monkeypatch)
    (notes,) = tmp_path.rglob(PROGRESS)
    notes.write_bytes(notes.read_bytes()[:100])
    assert personalized(noting_client(small, tmp_path), monkeypatch) == whole
    assert any("The message starts over" in line for line in logged())
