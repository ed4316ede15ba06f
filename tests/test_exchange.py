"""Evaluation messages are created in turn, so that not all clients' models are in memory."""

import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from fedkd_flwr.config import read_config
from fedkd_flwr.engines import superlink
from fedkd_flwr.grids import SHORTEST_PAUSE, Closing, FastPollingGrid
from strategies.core.exchange import Exchange, delay_of
from strategies.core.plan import RunPlan
from strategies.core.replies import ClientInfo
from strategies.core.versions import as_sent
from tests.helpers import Witness, arrays_of, run_with

CLIENTS = range(20)


class ServesInTurn:
    serves_in_turn = True


def exchange():
    infos = {n: ClientInfo(n, 100 + n, "mlp", 5) for n in CLIENTS}
    plan = RunPlan(num_clients=len(CLIENTS), num_server_rounds=3, num_classes=10)
    return Exchange(infos, 1, plan)


def test_each_message_is_created_when_it_is_sent():
    made = []

    def payload_for(n):
        made.append(n)
        return {"weights": np.full(1000, n)}

    messages = exchange().to_evaluate(CLIENTS, payload_for, ServesInTurn())
    assert len(messages) == 20 and not made
    waiting = iter(messages)
    for n in CLIENTS:
        message = next(waiting)
        assert made[-1] == n and len(made) == n + 1
        assert message.metadata.dst_node_id == 100 + n
        assert message.metadata.message_type == MessageType.EVALUATE


def test_deleted_models_are_released_and_not_confused_with_others():
    alive = []

    def payload_for(n):
        weights = np.full(1000, n)
        alive.append(weakref.ref(weights))
        return {"weights": weights}

    # Each array is let go of before the next, which often gets its place in memory.
    for n, message in zip(
        CLIENTS, exchange().to_evaluate(CLIENTS, payload_for, ServesInTurn()), strict=True
    ):
        assert (arrays_of(message)["weights"] == n).all()
        assert alive[n]() is None


def test_an_array_for_all_clients_is_encoded_once():
    shared = np.arange(1000.0)
    messages = list(exchange().to_evaluate(CLIENTS, lambda n: {"weights": shared}, ServesInTurn()))
    encoded = {id(message.content["arrays"]["weights"].data) for message in messages}
    assert len(encoded) == 1


def test_replies_are_sorted_by_client_in_whatever_order_they_arrive():
    """Sums of floating-point numbers depend on their order."""
    exchanged, replies = exchange(), []
    payloads = {n: {} for n in CLIENTS}
    messages = exchanged.messages(MessageType.TRAIN, "train", payloads)
    for n, message in zip(CLIENTS, messages, strict=True):
        info = ConfigRecord({"partition-id": n, "versions": as_sent()})
        content = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord(), "info": info})
        replies.append(Message(content, reply_to=message))
    valid = exchanged.valid_replies(replies[::-1], lambda n: {}, (), lambda reply: None)
    assert list(valid) == list(CLIENTS)


# ---- A grid that polls for replies ---------------------------------------------------


class SlowNodes:
    """A fake network: node n's reply is available from the n-th poll on."""

    def __init__(self):
        self.looks, self.sent = 0, {}

    def push_messages(self, messages):
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            self.sent[str(number)] = message
        return list(self.sent)

    def pull_messages(self, message_ids):
        self.looks += 1
        there = [key for key in message_ids if self.sent[key].metadata.dst_node_id <= self.looks]
        return [Message(RecordDict(), reply_to=self.sent[key]) for key in there]


def messages_to(*nodes):
    content = RecordDict({"config": ConfigRecord({})})
    return [Message(content, node, MessageType.TRAIN) for node in nodes]


def test_replies_are_collected_as_they_arrive():
    nodes = SlowNodes()
    started_at = time.monotonic()
    grid = FastPollingGrid(nodes)
    replies = grid.send_and_receive(messages_to(1, 3, 2))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3]
    assert nodes.looks == 3
    assert 2 * SHORTEST_PAUSE <= time.monotonic() - started_at < 2
    assert list(grid.waited) == [1, 2, 3]
    assert grid.waited[3] >= grid.waited[1] + 2 * SHORTEST_PAUSE


def test_a_node_that_stalls_costs_the_others_nothing():
    """A round closes soon after the first reply; what is late comes later, once."""
    grid = FastPollingGrid(SlowNodes())
    grid.closing = Closing(seconds=0.3, replies=1)
    started_at = time.monotonic()
    replies = grid.send_and_receive(messages_to(1, 9, 999), timeout=1.5)
    assert time.monotonic() - started_at < 1
    assert [reply.metadata.src_node_id for reply in replies] == [1]
    assert {9, 999} == grid.busy
    while 9 in grid.busy:
        time.sleep(0.01)
    late = [reply.metadata.src_node_id for reply in grid.late_replies()]
    assert (late, grid.busy, grid.late_replies()) == ([9], {999}, [])
    while grid.busy:  # until its timeout is over
        assert time.monotonic() - started_at < 5
        time.sleep(0.1)


def test_a_round_does_not_close_upon_failures_or_questions():
    failed = [Message(Error(0, "failed"), reply_to=message) for message in messages_to(1, 2)]
    assert not Closing(1.0, 1).is_due(MessageType.TRAIN, failed)
    assert not Closing(1.0, 1).is_due(MessageType.QUERY, messages_to(1))
    assert Closing(1.0, 1).is_due(MessageType.TRAIN, [*failed, *messages_to(1)])


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"strategy": "kt-pfl"}, True),
        ({"strategy": "kt-pfl", "public-size": 20}, False),  # other samples in each round
        ({"strategy": "fedavg", "models": "mlp"}, False),
    ],
)
def test_late_predictions_count_in_the_next_round(changes, counts, small, tmp_path):
    slow = {"num-server-rounds": 6, "close-after": 3.0, "delay": 4.0, "min-replies": 2}
    slow |= {"public-size": small["held-out-size"], "local-epochs": 1, **changes}
    witness = Witness()
    run, _ = run_with(witness, small, tmp_path, **slow)
    plan, clients = read_config({**small, **slow}).run.server_plan(), set(range(4))
    late = set()
    for row in run.rounds.itertuples():
        trained = clients - late
        assert witness.trained(row.round) == sorted(trained)
        delays = {n: delay_of(plan, n, row.round) for n in trained}
        before, closed = late, sorted(delays.values())[1] + 3.0
        late = {n for n in trained if delays[n] > closed}
        assert row.replies == len(trained - late) + counts * len(before)
        assert row.failures == len(late)
    assert run.rounds["failures"].sum() and run.clients["accuracy"].notna().all()


def test_the_last_poll_is_at_the_deadline():
    """A longer pause is shortened, and replies that arrived meanwhile are collected."""
    grid = FastPollingGrid(SlowNodes())
    grid.pause = lambda waited: 5.0
    started_at = time.monotonic()
    replies = grid.send_and_receive(messages_to(1, 2), timeout=0.3)
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2]
    assert time.monotonic() - started_at < 3


def test_a_superlink_that_is_slow_to_answer_is_asked_again(monkeypatch):
    answers = iter([URLError("refused"), TimeoutError("timed out"), ConnectionResetError(), None])

    def urlopen(address, timeout):
        if error := next(answers):
            raise error
        return nullcontext()

    monkeypatch.setattr(superlink.urllib.request, "urlopen", urlopen)
    superlink._wait_until_healthy(SimpleNamespace(poll=lambda: None), "1")
    assert next(answers, "none left") == "none left"
