"""A grid that polls for replies: often at first, then less often, and not after the timeout."""

import time
from contextlib import nullcontext
from types import SimpleNamespace
from urllib.error import URLError

import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from helpers import Witness, run_with

from fedkd_flwr.config import read_config
from fedkd_flwr.engines import superlink
from fedkd_flwr.grids import LONGEST_PAUSE, SHORTEST_PAUSE, Closing, FastPollingGrid
from strategies.core.exchange import delay_of


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
