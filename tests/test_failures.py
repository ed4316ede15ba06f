"""Failing clients are dropped with a reason, and do not affect the others."""

import logging
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from helpers import Witness, breaking, raising, replacing, run_with

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.node import read_node
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.config import read_config
from fedkd_flwr.engines import flower_log_level
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.server_app import serve
from strategies.core.evaluations import DISTILLATION
from strategies.core.replies import TooFewRepliesError
from strategies.core.rounds import RowObserver

SHAPE = (40, 10)


def uniform():
    return np.full(SHAPE, 0.1, dtype=np.float32)


def with_value(value):
    predictions = uniform()
    predictions[3, 4] = value
    return predictions


def oversized():
    """Claims the right shape and carries far more."""
    return Array("float32", SHAPE, "numpy.ndarray", Array(np.zeros(10**6)).data)


BAD_ARRAYS = {
    "nan": (with_value(np.nan), "NaN or infinity"),
    "infinite": (with_value(np.inf), "NaN or infinity"),
    "huge": (with_value(1e38), r"beyond 1e\+08"),
    "large": (with_value(9.0), "has a row that sums to"),
    "wrong shape": (np.full((39, 10), 0.1, dtype=np.float32), r"shape \(39, 10\)"),
    "off the simplex": (2 * uniform(), "has a row that sums to"),
    "negative": (with_value(-0.5), "negative number"),
    "text": (np.full(SHAPE, "a"), "holds"),
    "oversized": (oversized(), "larger than its shape"),
    "garbage": (Array("float32", SHAPE, "numpy.ndarray", b"not an array"), "cannot be decoded"),
}


@pytest.fixture
def small(small):
    return {**small, "strategy": "kt-pfl"}


@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_every_bad_reply_is_dropped_and_named(strategy, small, tmp_path, logged):
    """In each round client 1 sends another one."""
    app, rounds = client_app, len(BAD_ARRAYS)
    for server_round, (array, _) in enumerate(BAD_ARRAYS.values(), start=1):
        app = breaking(replacing(predictions=array), only_round=server_round, answer=app)
    settings = {"strategy": strategy, "num-server-rounds": rounds, "local-iterations": 1}
    finished, _ = run_with(app, small, tmp_path / "run", **settings)
    assert finished.finished
    assert list(finished.rounds["replies"]) == [3] * rounds
    assert list(finished.rounds["failures"]) == [1] * rounds
    failures = finished.clients[finished.clients["failure"].notna()].set_index("round")
    assert list(failures["partition_id"]) == [1] * rounds
    for server_round, (_, reason) in enumerate(BAD_ARRAYS.values(), start=1):
        assert re.search(reason, failures["failure"][server_round])
    assert sum("client 1" in line for line in logged()) >= rounds
    for matrix in finished.matrices.values():
        assert np.isfinite(matrix).all()


def test_too_few_replies_stop_the_run_and_keep_completed_rounds(small, tmp_path):
    with pytest.raises(TooFewRepliesError, match=r"min-replies is 4.*out of memory.*1 rounds"):
        run_with(
            breaking(raising("out of memory"), only_round=2),
            small,
            tmp_path / "run",
            **{"min-replies": 4},
        )
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert not (tmp_path / "run" / "summary.json").exists()


def test_two_nodes_with_one_partition_count_once(small, tmp_path, logged):
    nodes = {"nodes": 4, "node_configs": {3: {"partition-id": 0}}}
    changes = {"strategy": "local", "num-clients": 3}
    finished, _ = run_with(client_app, small, tmp_path / "run", **nodes, **changes)
    assert set(finished.clients["partition_id"]) == {0, 1, 2}
    assert any("already taken" in line for line in logged())


def test_a_client_with_another_public_set_is_excluded_with_one_warning(small, tmp_path, logged):
    answers = []

    def with_another_public_set(reply):
        reply.content["info"]["public-hash"] = "f" * 64
        answers.append(reply)

    witness = Witness(breaking(with_another_public_set, 2, "properties"))
    finished, _ = run_with(witness, small, tmp_path / "run", **{"num-server-rounds": 4})
    assert set(finished.clients["partition_id"]) == {0, 1, 3}
    assert len(answers) == 3  # in rounds 1, 2 and 4
    assert {phase for _, phase, n in witness.up if n == 2} == {"properties"}
    assert sum("client 2 has another public set" in line for line in logged()) == 1


def with_queries(answer_query, small, tmp_path, rounds=20):
    """Run with ``answer_query(times asked)`` before client 2 answers who it is."""
    asked_in, current = [], [1]

    def app(message, context):
        kind = message.metadata.message_type
        if kind == "train":
            current[0] = message.content.config_records["config"]["server-round"]
        if kind == "query" and context.node_config["partition-id"] == 2:
            # Nodes are asked before the first train message of a round.
            asked_in.append(current[0] + 1 if asked_in else 1)
            answer_query(len(asked_in))
        return client_app(message, context)

    settings = {"strategy": "local", "models": "mlp", "num-server-rounds": rounds}
    settings |= {"evaluate-every": rounds, "local-iterations": 1}
    finished, _ = run_with(app, small, tmp_path / "run", **settings)
    return finished, asked_in


def test_a_node_whose_data_could_not_be_read_yet_is_asked_again(small, tmp_path, logged):
    def answer_query(times):
        if times <= 2:
            raise OSError("/srv/images is not mounted")

    finished, asked_in = with_queries(answer_query, small, tmp_path / "run", rounds=5)
    assert asked_in == [1, 2, 4]
    took_part = finished.clients[finished.clients["numbers_up"].notna()]
    assert list(took_part.query("partition_id == 2")["round"]) == [4, 5]
    excluded = [line for line in logged() if line.startswith("Excluded")]
    assert len(excluded) == 1 and "/srv/images is not mounted" in excluded[0]


def test_a_node_that_always_fails_is_asked_less_and_less_often(small, tmp_path, logged):
    def answer_query(times):
        raise OSError("no data" if times % 2 else "no disk")

    finished, asked_in = with_queries(answer_query, small, tmp_path / "run")
    assert asked_in == [1, 2, 4, 8, 16]
    assert set(finished.clients["partition_id"]) == {0, 1, 3}
    excluded = [line for line in logged() if "Excluded" in line]
    assert len(excluded) == 2 and "no data" in excluded[0] and "no disk" in excluded[1]


@pytest.mark.parametrize(("strategy", "last_reply"), [("fedavg", "evaluate"), ("kt-pfl", "train")])
def test_an_evaluation_counts_if_its_node_disconnects_afterwards(
    strategy, last_reply, small, tmp_path
):
    class LeavingGrid(InProcessGrid):
        replies = 0

        def get_node_ids(self):
            return [n for n in super().get_node_ids() if n != 1003 or self.replies < 2]

        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            self.replies += any(r.metadata.message_type == last_reply for r in replies)
            return replies

    settings = {"strategy": strategy, "models": "mlp", "evaluate-every": 1}
    whole, _ = run_with(client_app, small, tmp_path / "whole", **settings)
    left, _ = run_with(client_app, small, tmp_path / "left", LeavingGrid, **settings)
    assert left.rounds["absent"].tolist() == [0, 1]
    assert left.rounds["accuracy_mean"].tolist() == whole.rounds["accuracy_mean"].tolist()
    assert left.clients["accuracy"].tolist() == whole.clients["accuracy"].tolist()


def test_a_surplus_node_says_so_and_is_excluded(small, tmp_path, logged):
    finished, _ = run_with(client_app, small, tmp_path / "run", nodes=5, strategy="kt-pfl")
    assert list(finished.rounds["replies"]) == [4, 4]
    (excluded,) = [line for line in logged() if "Excluded" in line]
    assert excluded.startswith("Excluded: node 1004")
    assert excluded.endswith("this node is surplus: its partition-id 4 is none of the run's 0..3")


def test_the_public_hash_of_the_run_overrides_the_majority(small, tmp_path):
    with pytest.raises(TooFewRepliesError, match="has another public set"):
        run_with(client_app, small, tmp_path / "run", **{"public-hash": "0" * 64})


@pytest.mark.parametrize(
    ("node_config", "sentence"),
    [
        ({}, "this node's partition-id is missing in its config; it should be a whole number"),
        ({"partition-id": "two"}, "this node's partition-id is two in its config"),
        ({"partition-id": 0, "keep-runs": -1}, "this node's keep-runs is -1 in its config"),
        ({"partition-id": 0, "keep-runs": "all"}, "this node's keep-runs is all in its config"),
    ],
)
def test_an_invalid_number_in_a_nodes_config_is_reported(node_config, sentence, small):
    with pytest.raises(ValueError, match=sentence):
        read_node({**TRUSTED_NODE, **node_config}, read_config(small).run)


def test_an_unmet_setting_is_logged(small, tmp_path, logged):
    changes = {"strategy": "local", "models": "mlp", "num-server-rounds": 1}
    changes |= {"samples-per-class": 300, "data-root": str(tmp_path)}
    fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "run")
    (cut,) = [line for line in logged() if "samples-per-class" in line]
    assert cut.startswith("samples-per-class = 300, and there are only ")
    assert "digits does not read data-root: ignored." in logged()


def memory_in_use(name):
    """Return a figure of /proc/self/status in MB: VmRSS (now) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def scripted_client(num_clients, drop, generator):
    """Answer at once with random predictions; a share of the messages comes to nothing."""

    def serve_message(message, context):
        n = context.node_config["partition-id"]
        kind = message.metadata.message_type
        if kind == "train" and generator.random() < drop:
            raise RuntimeError("lost")
        arrays = ArrayRecord()
        if kind == "train" and message.content["config"]["phase"] != DISTILLATION:
            predictions = generator.dirichlet(np.ones(10), size=100).astype(np.float32)
            arrays = ArrayRecord({"predictions": Array(predictions)})
        counts = {"own-test-correct": 90 - n, "own-test-total": 100, "own-test-loss": 0.5}
        sizes = {"num-examples": 100, "test-size": 100, "validation-size": 0}
        numbers = sizes if message.metadata.message_type == "query" else counts
        info = ConfigRecord({"partition-id": n, "model": "mlp", "public-hash": "a" * 64})
        content = {"arrays": arrays, "metrics": MetricRecord(numbers), "info": info}
        return Message(RecordDict(content), reply_to=message)

    return serve_message


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_two_hundred_rounds_of_fifty_clients_with_every_fifth_reply_lost(strategy, small, tmp_path):
    settings = {**small, "strategy": strategy, "num-clients": 50, "num-server-rounds": 200}
    settings |= {"held-out-size": 100, "public-size": 100, "output-dir": str(tmp_path / "run")}
    configuration = read_config(settings)
    app = scripted_client(50, 0.2, np.random.default_rng(0))
    grid = InProcessGrid(app, 50, configuration.flat())
    memories = []
    with flower_log_level(logging.CRITICAL):
        measured = RowObserver(lambda row: memories.append(memory_in_use("VmRSS")))
        run = serve(grid, configuration, measured)
    assert list(run.rounds["round"]) == list(range(1, 201))
    share = run.rounds["failures"].sum() / (50 * 200)
    assert 0.18 < share < 0.22
    answers = run.rounds["replies"] + run.rounds["failures"]
    assert (answers[:-1] == 50).all()
    # A client of KT-pFL that replies in the last round may fail in the distillation after it.
    lost_after = answers.iloc[-1] - 50
    assert 0 < lost_after < 20 if strategy == "kt-pfl" else lost_after == 0
    lines = Counter(zip(run.clients["round"], run.clients["partition_id"], strict=True))
    assert len(lines) == 50 * 200 and set(lines.values()) == {1}
    warm, end = max(memories[40:60]), max(memories[-20:])
    assert end - warm < 30, memories[::10]


def test_a_node_that_did_not_answer_in_time_is_asked_again(small, tmp_path, logged):
    class SlowGrid(InProcessGrid):
        asked = 0

        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            if not messages or messages[0].metadata.message_type != "query":
                return replies
            self.asked += 1
            return [r for r in replies if self.asked > 1 or r.metadata.src_node_id != 1002]

    finished, _ = run_with(client_app, small, tmp_path / "run", SlowGrid)
    assert list(finished.rounds["replies"]) == [3, 4]
    assert [line for line in logged() if "Excluded" in line] == [
        "Excluded: node 1002 did not answer in time"
    ]
