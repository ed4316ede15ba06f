"""What a node's own log says, and that clients of one user log nothing a message."""

import json
import logging
import re

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from helpers import breaking, key_of, replacing, run_with
from test_threat_model import NOISE, Silo

from fedkd_flwr.bundles.approved_runs import digest_of_run
from fedkd_flwr.client_app import app
from fedkd_flwr.clients import audit
from fedkd_flwr.clients.audit import AUDIT
from fedkd_flwr.clients.node_log import log_work
from strategies.core.exchange import DROPPED
from strategies.core.flower import TaskIdentity
from strategies.core.membership import LEFT_OUT, Membership
from strategies.core.plan import RunPlan


@pytest.fixture
def silo(tmp_path):
    return Silo(tmp_path)


METRICS = {"num-examples": 216, "train-loss": 0.41234, "correct": 77, "total": 108}
METRICS = {"num-examples": 216, "train-loss": 0.41234, "own-test-correct": 77,
           "own-test-total": 108}  # fmt: skip


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
        return app(message, context)

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


def test_an_audit_is_put_aside_when_it_is_long(silo, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 1)
    monkeypatch.setattr(audit, "MOST_FILES", 2)
    for run in ("a1", "a2", "a3"):
        silo.send(MessageType.QUERY, {"run-id": run})
    files = sorted((silo.folder / "state" / "0").glob(f"{AUDIT}*"))
    assert [json.loads(file.read_text())["run"] for file in files] == ["a3", "a2"]
