"""What the gate lets out of a client, by its declaration and the policy of the node."""

import ast
from pathlib import Path

import numpy as np
import pytest

import fedkd_flwr
from fedkd_flwr.clients.gate import UndeclaredError, leaving
from fedkd_flwr.clients.messages import TrainReply
from fedkd_flwr.clients.policy import TRUSTING_POLICY, NodePolicy, PolicyError
from fedkd_flwr.config import read_config
from strategies.core.declarations import Data, Sent, of_model
from strategies.core.replies import Metric
from tests.conftest import SMALL

WITHOUT_COUNTS = NodePolicy(allow_counts=False, allow_training_metrics=True)
HIDDEN = NodePolicy(allow_counts=True, allow_training_metrics=False)
OPEN = TRUSTING_POLICY
BUDGET = NodePolicy(allow_counts=True, epsilon_budget=1.0)
OF_TEST = Metric("x", inputs=(Data.TEST,), through_model=True)
OF_BOTH = Metric("x", inputs=(Data.TRAINING, Data.TEST))
REQUESTED = Metric("x", inputs=(Data.TRAINING, Data.TEST), requested=True)


def left(policy, has_noise=False, sends=(), metrics=(), reply=None):
    run = read_config(SMALL).run
    record = run.method.record.derived(sends=sends, train_metrics=metrics)
    method = type("Method", (), {"record": record})
    stub = type("Run", (), {"method": method, "plan": run.plan, "strategy": "mine"})
    return leaving(reply or TrainReply({}, {"x": 1.0}), stub, 10, policy, has_noise)


@pytest.mark.parametrize(
    ("metric", "policy", "has_noise", "leaves"),
    [
        (Metric("x"), OPEN, False, True),
        (Metric("x"), OPEN, True, False),
        (Metric("x"), HIDDEN, False, False),
        (Metric("x", inputs=(Data.PUBLIC,), through_model=True), HIDDEN, False, False),
        (Metric("x", inputs=(Data.PUBLIC,)), HIDDEN, True, True),
        (Metric("x", inputs=()), WITHOUT_COUNTS, True, True),
        (OF_TEST, HIDDEN, True, True),
        (OF_TEST, WITHOUT_COUNTS, False, False),
        (OF_BOTH, OPEN, True, True),
        (OF_BOTH, BUDGET, False, False),
        (REQUESTED, BUDGET, True, True),
        (REQUESTED, WITHOUT_COUNTS, False, False),
    ],
)
def test_a_number_leaves_only_if_policy_and_noise_allow_it(metric, policy, has_noise, leaves):
    assert left(policy, has_noise, metrics=(metric,)).metrics == ({"x": 1.0} if leaves else {})


@pytest.mark.parametrize(
    ("sent", "policy", "has_noise", "leaves"),
    [
        (of_model("x/*"), HIDDEN, True, True),
        (Sent("x/*"), HIDDEN, False, True),
        (Sent("x/*"), OPEN, True, False),
        (of_model("x/*", Data.VALIDATION), WITHOUT_COUNTS, False, False),
    ],
)
def test_a_message_is_refused_without_what_the_server_needs(sent, policy, has_noise, leaves):
    reply = TrainReply({"x/0": np.ones(1)})
    if leaves:
        assert left(policy, has_noise, sends=(sent,), reply=reply).arrays == reply.arrays
        return
    with pytest.raises(PolicyError, match="`x/0`, which may not leave this node"):
        left(policy, has_noise, sends=(sent,), reply=reply)


@pytest.mark.parametrize("reply", [TrainReply({"y": np.ones(1)}), TrainReply({}, {"y": 1.0})])
def test_what_is_not_declared_is_an_error_even_where_all_is_allowed(reply):
    with pytest.raises(UndeclaredError, match="`y` is not declared: in the record of mine, add"):
        left(OPEN, reply=reply)


def test_answers_leave_to_a_trusted_server_alone():
    reply = TrainReply(answers=b"1")
    assert left(OPEN, reply=reply).answers == b"1"
    assert left(NodePolicy(), reply=reply).answers == b""


def test_the_gate_is_called_at_one_place():
    package = Path(fedkd_flwr.__file__).parent
    calls = [
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "leaving"
    ]
    assert calls == ["session.py"]
