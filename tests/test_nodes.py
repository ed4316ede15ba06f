"""How each client took part in a run: `fedkd nodes`, and what a node's own log says."""

import json
import logging
import os
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from helpers import Witness, breaking, key_of, read_lines, replacing, run_with, write_lines
from test_threat_model import NOISE, Silo
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.nodes import nodes_table, progress
from fedkd_flwr.bundles.approved_runs import digest_of_run
from fedkd_flwr.cli import app
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients import audit
from fedkd_flwr.clients.audit import AUDIT
from fedkd_flwr.clients.node_log import log_work
from fedkd_flwr.clients.privacy_ledger import LEDGER
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import load_run
from strategies.core.exchange import DROPPED
from strategies.core.flower import TaskIdentity
from strategies.core.membership import LEFT_OUT, Membership
from strategies.core.plan import RunPlan


@pytest.fixture
def run(small, tmp_path):
    """A run of two rounds in which client 1 failed in the last."""
    fedkd_flwr.run(small, strategy="local", num_server_rounds=2, output_dir=tmp_path / "run")
    path = tmp_path / "run/clients.jsonl"
    rows = read_lines(path)
    failed = next(row for row in rows if (row["round"], row["partition_id"]) == (2, 1))
    # An evaluation without a reply leaves no traffic.
    failed |= {"model": None, "failure": "no reply in time \x1b[2J", "numbers_up": None}
    rows = [row | {"name": "charite"} if row["partition_id"] == 1 else row for row in rows]
    for row in rows:
        row |= {"seconds": 2.5 * row["round"]} if row["partition_id"] == 0 else {}
    rows = [row for row in rows if row["partition_id"] != 2]  # was never connected
    write_lines(path, rows)
    return load_run(tmp_path / "run")


def test_rounds_and_failures_of_each_client(run):
    table = nodes_table(run)
    assert list(table.loc[0, ["last_asked", "last_valid", "asked", "failures"]]) == [2, 2, 2, 0]
    assert list(table.loc[1, ["last_asked", "last_valid", "asked", "failures"]]) == [2, 1, 2, 1]
    assert table.loc[1, "last_failure"].startswith("no reply in time")
    assert (table.loc[0, "last_failed"], table.loc[0, "last_failure"]) == (0, "")
    assert (table.loc[1, "last_failed"], list(table["name"])[:2]) == (2, ["", "charite"])
    assert list(table.loc[2, ["last_asked", "last_valid", "asked", "failures"]]) == [0, 0, 0, 0]
    assert table.loc[1, "model"] == run.config["models"].split(",")[1]


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_only_clients_that_received_a_message_were_asked(strategy, small, tmp_path):
    """Clients of `local` keep their evaluation until they train again; those of `fedavg` do not."""
    witness = Witness()
    sampled = {"strategy": strategy, "num-server-rounds": 4, "fraction-train": 0.5}
    run, _ = run_with(witness, {**small, **sampled, "models": "mlp"}, tmp_path / "run")
    contacts = {(client, server_round) for server_round, _, client in witness.down if server_round}
    rounds = {n: sorted(t for client, t in contacts if client == n) for n in range(4)}
    assert (sum(map(len, rounds.values())) < len(run.clients)) == (strategy == "local")
    table = nodes_table(run)
    assert table["asked"].to_dict() == {n: len(asked) for n, asked in rounds.items()}
    for column in ("last_asked", "last_valid"):
        assert table[column].to_dict() == {n: asked[-1] for n, asked in rounds.items()}


class Timed(InProcessGrid):
    """A grid that knows how long each node took in the last exchange."""

    @property
    def waited(self):
        return {node: node / 4 for node in self.get_node_ids()}


def test_seconds_are_recorded_where_the_grid_measures_them(small, tmp_path):
    settings = {**small, "num-server-rounds": 1}
    run, grid = run_with(client_app, settings, tmp_path / "timed", Timed)
    assert run.clients["seconds"].tolist() == [node / 4 for node in sorted(grid.get_node_ids())]
    plain, _ = run_with(client_app, settings, tmp_path / "plain")
    assert "seconds" not in plain.clients


def test_when_the_last_round_ended(run):
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    os.utime(run.path / "rounds.jsonl", (moment, moment))
    text = progress(run, datetime.fromtimestamp(moment + 90, UTC))
    assert text.startswith("round 2 of 2, finished 2026-01-02 03:04:05 UTC (90 s ago), ")
    taken = run.rounds[["seconds_train", "seconds_server", "seconds_evaluate"]].sum(axis=1).median()
    assert text.endswith(f"{taken:.1f} s a round (median)")


def test_the_command_prints_reasons_without_commands_for_the_terminal(run):
    result = CliRunner().invoke(app, ["nodes", str(run.path)])
    assert result.exit_code == 0
    assert "client 1, round 2: no reply in time [2J\n" in result.output
    assert "\x1b" not in result.output
    assert CliRunner().invoke(app, ["nodes", str(run.path.parent)]).exit_code == 1


# ---- What a node's own log says ------------------------------------------------------


METRICS = {"num-examples": 216, "train-loss": 0.41234, "own-test-correct": 77,
           "own-test-total": 108}  # fmt: skip


@pytest.fixture
def silo(tmp_path):
    return Silo(tmp_path)


def logged_by(monkeypatch, caplog, node_config, kind, config, metrics, group_id="3"):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    asked = RecordDict({"config": ConfigRecord(config)})
    message = Message(asked, 1, kind, group_id=group_id if kind == "train" else "")
    reply = Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO):
        context = Context(0, 0, node_config, RecordDict(), {})
        assert log_work(message, context, lambda *_: reply) is reply
    return [record.getMessage() for record in caplog.records]


def test_a_node_logs_when_which_round_and_how_well(monkeypatch, caplog):
    lines = logged_by(monkeypatch, caplog, {"trust-server": False}, "train", {}, METRICS)
    expected = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC round 3, train: 216 samples, "
        r"training loss 0\.4123, accuracy 71\.3% of 108, \d+\.\d s"
    )
    assert len(lines) == 1
    assert re.fullmatch(expected, lines[0])


def test_the_server_cannot_write_lines_into_the_log(monkeypatch, caplog):
    node, forged = {"trust-server": False}, "3\n2026-11-24 10:31:07 UTC approved"
    lines = logged_by(monkeypatch, caplog, node, "train", {}, METRICS, group_id=forged)
    assert len(lines) == 1 and "\n" not in lines[0]


def test_the_reason_of_the_server_is_logged_without_commands_for_a_terminal(monkeypatch, caplog):
    config = {LEFT_OUT: "client 3 has another public set\x1b[2J"}
    lines = logged_by(monkeypatch, caplog, {"trust-server": False}, "query", config, {})
    assert lines[0].endswith("left this node out: client 3 has another public set[2J")
    assert re.search(r"UTC query: \d+\.\d s$", lines[1])


def test_the_reason_of_a_dropped_reply_is_logged(monkeypatch, caplog):
    config = {DROPPED: "no reply in time\x1b[2J"}
    lines = logged_by(monkeypatch, caplog, {"trust-server": False}, "train", config, METRICS)
    assert lines[0].endswith("the server dropped this node's last reply: no reply in time[2J")
    assert len(lines) == 2


def test_a_node_is_told_once_why_its_last_reply_was_dropped(small, tmp_path):
    told = {}

    def serve(message, context):
        server_round, phase, n = key_of(message, context)
        told[server_round, phase, n] = message.content.config_records["config"].get(DROPPED)
        return client_app(message, context)

    wrong = replacing(weights=np.zeros(3, dtype=np.float32))
    settings = {**small, "models": "mlp", "strategy": "fedavg", "num-server-rounds": 3}
    run_with(breaking(wrong, 1, only_round=1, answer=serve), settings, tmp_path / "run")
    reasons = {key: reason for key, reason in told.items() if reason}
    assert list(reasons) == [(1, "evaluate", 1)]
    assert "weights" in reasons[1, "evaluate", 1]


def test_a_client_of_the_same_user_logs_nothing(monkeypatch, caplog):
    assert logged_by(monkeypatch, caplog, {"trust-server": True}, "train", {}, METRICS) == []


def test_a_node_is_told_why_it_was_left_out():
    members = Membership(RunPlan(num_clients=2, num_classes=10), needs_public_data=False)
    members.pending.exclude(7, 1, "partition 9 is outside 0..1")
    members.pending.exclude(7, 2, "no answer in time")
    told = members._question(7)["config"]
    assert told[LEFT_OUT] == "no answer in time; partition 9 is outside 0..1"
    assert members._question(8)["config"][LEFT_OUT] == ""


def audit_of(silo):
    lines = (silo.folder / "state" / "0" / AUDIT).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_an_audit_says_what_left_and_what_was_refused(silo):
    silo.node["epsilon-budget"] = 50.0
    silo.send(message={"run-id": "a1"}, **NOISE)
    silo.refuses("batch-size", **{"batch-size": 1})
    sent, *refused = audit_of(silo)
    assert sent["arrays"] == {"predictions": [20, 10]} and 800 <= sent["bytes"] < 1000
    assert sent["metrics"] == ["gradient-steps"] and 0 < sent["ledger-epsilon"] < 50
    assert (sent["run"], sent["round"], sent["method"]) == ("a1", "1", "kt-pfl")
    assert sent["config"] == digest_of_run({**silo.config, **NOISE})
    assert len(refused) == 3 and all("batch-size has to be" in line["error"] for line in refused)
    file = silo.folder / "state" / "0" / AUDIT
    assert file.stat().st_mode & 0o077 == 0


def test_an_audit_without_the_ledger_neither_loses_a_reply_nor_tells_a_path(silo):
    ledger = silo.folder / "state" / "0" / LEDGER
    ledger.mkdir(parents=True)
    assert isinstance(silo.send(strategy="local"), Message)
    assert "ledger-epsilon" not in audit_of(silo)[0]
    silo.node["state-dir"] = "~no-such-account/state"
    assert "RuntimeError: it failed" in silo.send(strategy="local")


def test_an_audit_is_put_aside_when_it_is_long(silo, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 1)
    monkeypatch.setattr(audit, "MOST_FILES", 2)
    for run in ("a1", "a2", "a3"):
        silo.send(MessageType.QUERY, {"run-id": run})
    files = sorted((silo.folder / "state" / "0").glob(f"{AUDIT}*"))
    assert [json.loads(file.read_text())["run"] for file in files] == ["a3", "a2"]
