"""The pages on disclosure name exactly what clients send and receive in real runs."""

import fnmatch
import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients import session as sessions
from fedkd_flwr.clients.gate import UndeclaredError, declaration_of, declared_metrics, leaving
from fedkd_flwr.clients.messages import TrainReply
from fedkd_flwr.clients.policy import TRUSTING_POLICY, NodePolicy, PolicyError
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client
from fedkd_flwr.methods import METHODS
from fedkd_flwr.testing import ARCHITECTURE_SEARCH
from fedkd_flwr.training import loop
from strategies.core.declarations import Data, Sent, of_model
from strategies.core.replies import Metric
from tests import disclosure
from tests.conftest import SMALL
from tests.disclosure import (
    COMMON,
    PAGES,
    SEARCHES,
    Record,
    blocks_of,
    common_rows_of,
    page_of,
    rows_of,
)
from tests.helpers import arrays_of, most_of_them_slow, run_with

HINT = "what a client sends has changed: run `python -m tests.disclosure` and read the difference"


@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_a_page_names_all_that_leaves_a_client(strategy, tmp_path):
    record = Record(strategy, tmp_path)
    assert list(record.run.rounds["failures"]) == [0, 0]
    assert record.records == {"arrays", "metrics", "info"}
    page = page_of(METHODS[strategy])
    assert blocks_of(page)[strategy] == rows_of(record), HINT
    assert set(common_rows_of(record)) <= set(disclosure.common_rows_on_page()), HINT


def test_a_node_of_a_deployment_sends_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(NodePolicy, "approves", lambda *_: True)  # of code in these tests
    trusting = Record("kt-pfl", tmp_path / "trusting")
    policy = {"trust-server": False, "min-class-count": 0}
    policy |= {"epsilon-budget": math.inf}
    careful = Record("kt-pfl", tmp_path / "careful", node_configs=dict.fromkeys(range(4), policy))
    assert list(careful.run.rounds["failures"]) == [0, 0]
    for kind, names in careful.info.items():
        assert names <= trusting.info[kind]
        assert careful.metrics[kind] <= trusting.metrics[kind]
        assert careful.sent[kind] == trusting.sent[kind]


def test_the_pages_are_what_the_command_writes():
    written = disclosure.pages(disclosure.common_rows_on_page(), disclosure.blocks_by_family())
    assert {page: page.read_text() for page in written} == written


NOT_IN_THESE_RUNS = {
    "perfed-ckt": {"weight"},  # with `weight-by-distance` alone
    "selective-fd": {"distillation-loss", "moved-public"},  # too few samples are kept
    # Their shared model has no batch normalization here.
    **{strategy: {"buffers"} for strategy in ("fml", "fedkd", "fedmrl", "fedapen")},
}


def test_what_a_method_declares_is_seen_in_its_run():
    for blocks in disclosure.blocks_by_family().values():
        for strategy, lines in blocks.items():
            cells = [row.split("|")[2:4] for row in lines if row.startswith("| ")]
            seen = {name for pair in cells for name in re.findall(r"`([^`]+)`", "".join(pair))}
            record = METHODS[strategy].record
            declared = *record.sends, *record.train_metrics, *record.evaluation_metrics
            unseen = {one.name for one in declared if not fnmatch.filter(seen, one.name)}
            unseen -= {"alphas"}  # a supernet's, which any method of parameters may train
            assert unseen == NOT_IN_THESE_RUNS.get(strategy, set()), strategy


def test_every_name_in_the_tables_has_a_meaning():
    blocks = [lines for page in (COMMON, *PAGES.values()) for lines in blocks_of(page).values()]
    rows = [row for lines in [disclosure.common_rows_on_page(), *blocks] for row in lines]
    names = {name for row in rows if row[0] == "|" for name in re.findall(r"`([^`]+)`", row)}
    explained = re.findall(r"`([^`]+)`", disclosure.COMMON.read_text().partition("## Names")[2])
    general = {name for name in names if name.startswith("generator/")}
    assert names - general - set(explained) == {"partition-id"}


# ---- What a method declares of its arrays and numbers is true ------------------------


PARTS = (Data.TRAINING, Data.VALIDATION, Data.TEST)
EXCHANGES = tuple(product(PARTS, ("its class", "another class")))
CHANGED = 0
"""The client whose samples are exchanged."""

FIXED = {
    # Its mixture of two models is learned from training samples.
    "fedapen": {"fedapen.adaptability-share": 0.0},
    "privatekt": {"soft-predictions.noise-seed": 1},
}
"""Settings with which neither a model nor noise changes."""


def exchanged(data, part, kind):
    """Return a client's data with the first sample of a part exchanged for one that it has not."""
    number = PARTS.index(part)
    first, *others = data.positions[number]
    same = data.samples.labels == data.samples.labels[first]
    fitting = np.flatnonzero(same if kind == "its class" else ~same)
    taken = np.setdiff1d(fitting, np.concatenate(data.positions))[0]
    positions = list(data.positions)
    positions[number] = np.array([taken, *others])
    return replace(data, positions=tuple(positions))


class Differences:
    """Serves each message with the client's data and with that of each exchange.

    Attributes
    ----------
    found : dict of Data to set of str
        Names of the items that changed with a sample of a part.
    """

    def __init__(self, monkeypatch):
        self.found = defaultdict(set)
        self._contexts, self._data, self._exchange = {}, {}, None
        monkeypatch.setattr(sessions, "load_client", self._load)

    def _load(self, plan, partition_id, *node):
        data = load_client(plan, partition_id, *node)
        if self._exchange is None:
            return data
        if self._exchange not in self._data:
            self._data[self._exchange] = exchanged(data, *self._exchange)
        return self._data[self._exchange]

    def __call__(self, message, context):
        is_changed = context.node_config["partition-id"] == CHANGED
        replies = {}
        for self._exchange in EXCHANGES if is_changed else ():
            own = self._contexts.setdefault(self._exchange, fresh(context))
            replies[self._exchange] = items_of(client_app(message, own))
        self._exchange = None
        reply = client_app(message, context)
        for (part, _), items in replies.items():
            expected = items_of(reply)
            assert items.keys() == expected.keys()
            self.found[part] |= {n for n in items if not equal(items[n], expected[n])}
        return reply


def fresh(context):
    """Return the context of a client that remembers nothing."""
    node_config, run_config = dict(context.node_config), context.run_config
    return Context(context.run_id, context.node_id, node_config, RecordDict(), run_config)


def items_of(reply):
    return {**arrays_of(reply), **reply.content.metric_records["metrics"]}


def equal(one, other):
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def fix_models(monkeypatch):
    """Let no step move a weight, and no image a running statistic."""
    for kind in (loop.SGD, loop.Adam, loop.AdamW):
        monkeypatch.setattr(kind, "step", lambda self: None)
    normalize = torch.nn.functional.batch_norm

    def by_running_statistics(images, mean, variance, weight, bias, training, momentum, eps):
        return normalize(images, mean, variance, weight, bias, False, 0.0, eps)

    monkeypatch.setattr(torch.nn.functional, "batch_norm", by_running_statistics)


@pytest.mark.parametrize("moves", [False, True], ids=["fixed", "trained"])
@pytest.mark.parametrize("strategy", most_of_them_slow(METHODS))
def test_nothing_depends_on_samples_that_its_declaration_lacks(
    strategy, moves, tmp_path, monkeypatch
):
    if not moves:
        fix_models(monkeypatch)
    differences = Differences(monkeypatch)
    models = ARCHITECTURE_SEARCH if strategy in SEARCHES else {"models": "mlp"}
    settings = {**SMALL, **models, "strategy": strategy, "local-iterations": 2}
    settings |= FIXED.get(strategy, {})
    run, _ = run_with(differences, settings, tmp_path)
    assert list(run.rounds["failures"]) == [0, 0]
    config = read_config(settings).run
    declared = *config.method.record.sends, *declared_metrics(config.plan, config.method.record, 10)
    known = {sent.name: sent for sent in declared}
    for part in PARTS:
        changed = {name: declaration_of(name, known) for name in differences.found[part]}
        lies = {
            name
            for name, sent in changed.items()
            if part not in sent.inputs and not (moves and sent.through_model)
        }
        assert lies == set()
        # Each exchange is seen, so that the comparison can fail.
        assert changed or (strategy == "privatekt" and part == Data.TRAINING)


# ---- The gate, by declaration and policy ---------------------------------------------


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
    node = type("Node", (), {"policy": policy})
    part = type("Part", (), {"run": run, "record": record, "node": node, "has_noise": has_noise})
    return leaving(reply or TrainReply({}, {"x": 1.0}), part, 10)


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
    with pytest.raises(UndeclaredError, match="`y` is not declared: in the record of kt-pfl, add"):
        left(OPEN, reply=reply)
