"""A grid that polls for replies: often at first, then less often, and not after the timeout."""

import time
from contextlib import nullcontext
from types import SimpleNamespace
from urllib.error import URLError

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedkd_flwr.engines import superlink
from fedkd_flwr.grids import LONGEST_PAUSE, SHORTEST_PAUSE, FastPollingGrid


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
    replies = FastPollingGrid(nodes).send_and_receive(messages_to(1, 3, 2))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3]
    assert nodes.looks == 3
    assert 2 * SHORTEST_PAUSE <= time.monotonic() - started_at < 2


def test_it_tells_how_long_each_node_took():
    grid = FastPollingGrid(SlowNodes())
    grid.send_and_receive(messages_to(1, 3))
    assert list(grid.waited) == [1, 3]
    assert grid.waited[3] >= grid.waited[1] + 2 * SHORTEST_PAUSE


def test_late_replies_are_not_waited_for():
    replies = FastPollingGrid(SlowNodes()).send_and_receive(messages_to(1, 999), timeout=0.3)
    assert [reply.metadata.src_node_id for reply in replies] == [1]


def test_the_last_poll_is_at_the_deadline():
    """A longer pause is shortened, and replies that arrived meanwhile are collected."""
    grid = FastPollingGrid(SlowNodes())
    grid.pause = lambda waited: 5.0
    started_at = time.monotonic()
    replies = grid.send_and_receive(messages_to(1, 2), timeout=0.3)
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2]
    assert time.monotonic() - started_at < 3


def test_the_pause_between_polls_is_a_share_of_the_wait():
    grid = FastPollingGrid(SlowNodes())
    assert grid.pause(0.0) == SHORTEST_PAUSE
    assert grid.pause(20.0) == pytest.approx(1.0)
    assert grid.pause(3600.0) == LONGEST_PAUSE


def test_a_superlink_that_is_slow_to_answer_is_asked_again(monkeypatch):
    answers = iter([URLError("refused"), TimeoutError("timed out"), ConnectionResetError(), None])

    def urlopen(address, timeout):
        if error := next(answers):
            raise error
        return nullcontext()

    monkeypatch.setattr(superlink.urllib.request, "urlopen", urlopen)
    superlink._wait_until_healthy(SimpleNamespace(poll=lambda: None), "1")
    assert next(answers, "none left") == "none left"
