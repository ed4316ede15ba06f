"""A run estimates its duration after the first clients have trained."""

import time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from helpers import run_with

from fedkd_flwr import grids
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.engines import in_process
from fedkd_flwr.grids import DurationEstimate, FastPollingGrid, duration


def announced(logged):
    return [line for line in logged() if line.startswith("This run takes")]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(61, "1 minute"), (100, "2 minutes"), (7100, "118 minutes"), (3 * 3600, "3 hours")],
)
def test_a_duration_in_words(seconds, words):
    assert duration(seconds) == words


def test_the_estimate_counts_rounds_and_clients_and_is_made_once(logged):
    estimate = DurationEstimate(rounds=10)
    estimate.trained(18.0, done=2, total=8)
    estimate.trained(500.0, done=3, total=8)
    assert announced(logged) == ["This run takes about 12 minutes: 10 rounds of 8 clients."]


class SlowClock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    sleep = staticmethod(time.sleep)

    def serve(self, message, context):
        if message.metadata.message_type == MessageType.TRAIN:
            self.now += 30.0
        return client_app(message, context)


def test_an_in_process_run_logs_the_estimate_after_the_first_client(
    small, tmp_path, logged, monkeypatch
):
    clock = SlowClock()
    monkeypatch.setattr(in_process, "time", clock)
    run_with(clock.serve, small, tmp_path / "run", strategy="local", models="mlp")
    # Two rounds of four clients, 30 seconds each.
    assert announced(logged) == ["This run takes about 4 minutes: 2 rounds of 4 clients."]


def test_a_federation_logs_the_estimate_after_the_first_exchange(logged, monkeypatch):
    clock = SlowClock()
    monkeypatch.setattr(grids, "time", clock)

    def push_messages(messages):
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
        sent.extend(messages)
        return [message.metadata.message_id for message in messages]

    def pull_messages(message_ids):
        clock.now += 45.0
        return [Message(RecordDict(), reply_to=message) for message in sent]

    sent = []
    nodes = SimpleNamespace(push_messages=push_messages, pull_messages=pull_messages)
    content = RecordDict({"config": ConfigRecord({})})
    grid = FastPollingGrid(nodes)
    grid.duration = DurationEstimate(rounds=4)
    grid.send_and_receive([Message(content, node, MessageType.QUERY) for node in (1, 2)])
    assert announced(logged) == []
    sent.clear()
    grid.send_and_receive([Message(content, node, MessageType.TRAIN) for node in (1, 2)])
    assert announced(logged) == ["This run takes about 3 minutes: 4 rounds of 2 clients."]
