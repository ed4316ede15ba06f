"""Evaluation messages are created in turn, so that not all clients' models are in memory."""

import weakref

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from strategies.core.client_info import ClientInfo
from strategies.core.exchange import Exchange
from strategies.core.plan import RunPlan
from strategies.core.versions import as_sent
from tests.helpers import arrays_of

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


def test_encoding_does_not_outlive_its_array():
    model, ended = np.arange(1000.0), exchange()
    encoded = weakref.ref(ended.encoded({"weights": model})["weights"])
    del ended
    assert encoded() is None


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
